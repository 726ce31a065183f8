package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/httpapi"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

func TestReadyAndAlive(t *testing.T) {
	for state, why := range map[string]string{"serving": "", "starting": "this node is starting, not serving",
		"rebuilding": "this node is rebuilding, not serving", "cut-off": "this node is cut-off, not serving",
		"stopping": "this node is stopping, not serving"} {
		if err := readyAs(state, 1); err != nil && err.Error() != why || (err == nil) != (why == "") {
			t.Errorf("%s: %v", state, err)
		}
	}
	if err := readyAs("serving", 0); err == nil || err.Error() != "no leader is known" {
		t.Error(err)
	}
	now := time.Now()
	if err := errors.Join(aliveAt(now, now), aliveAt(now.Add(-aliveWithin), now), aliveAt(time.Time{}, now)); err != nil {
		t.Error(err)
	}
	if err := aliveAt(now.Add(-time.Minute), now); err == nil || !strings.Contains(err.Error(), "1m0s") {
		t.Error(err)
	}
}

// Before the node has opened what it has, it is alive, not ready, tells nothing and trusts no certificate.
func TestHTTPWhileTheNodeOpens(t *testing.T) {
	p := &httpPort{raft: &lateRaft{}}
	if err := p.alive(); err != nil {
		t.Error(err)
	}
	if err := p.ready(); err == nil || !strings.Contains(err.Error(), "starting") {
		t.Error(err)
	}
	if p.trusted(tls.ConnectionState{}) {
		t.Error("trusted")
	}
	ask := func() int {
		w := httptest.NewRecorder()
		p.later(func(h *admin.Handlers) http.Handler { return h.Metrics }).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		return w.Code
	}
	if code := ask(); code != http.StatusServiceUnavailable {
		t.Error(code)
	}
	p.answers.Store(&httpAnswers{}) // of a node that rebuilds its state
	if code := ask(); code != http.StatusServiceUnavailable {
		t.Error(code)
	}
	p.answers.Store(&httpAnswers{Handlers: admin.Handlers{Metrics: http.NotFoundHandler()}})
	if code := ask(); code != http.StatusNotFound {
		t.Error(code)
	}
}

// lone is a cluster of one node that is served at a port of --http.
type lone struct {
	t        *testing.T
	dir, url string
	ended    chan error
	cancel   context.CancelFunc
}

func loneWithHTTP(t *testing.T) *lone {
	t.Helper()
	l := &lone{t: t, dir: filepath.Join(t.TempDir(), "n"), ended: make(chan error, 1)}
	addr := freePort(t)
	l.url = "https://" + addr
	if _, err := Init(InitConfig{DataDir: l.dir, Listen: freePort(t), Name: "n1", HTTP: addr}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	go func() {
		l.ended <- Run(ctx, Config{DataDir: l.dir, Fabric: Fabric{Mode: FabricTCP}, HTTP: HTTP{Addr: addr}})
	}()
	t.Cleanup(l.stop)
	within, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	if _, err := admin.NewClient(admin.SocketPath(l.dir)).Ready(within); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *lone) stop() {
	l.cancel()
	if err := <-l.ended; err != nil {
		l.t.Error(err)
	}
	l.ended <- nil
}

// client checks the node by the file that OPERATIONS.md has Prometheus take: ca.crt.
func (l *lone) client() *http.Client {
	raw, err := os.ReadFile(filepath.Join(l.dir, "tls", "ca.crt"))
	if err != nil {
		l.t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	authority, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		l.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: credentials.ServerName}}
	l.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

func (l *lone) get(c *http.Client, path, token string) (int, string) {
	l.t.Helper()
	req, err := http.NewRequest(http.MethodGet, l.url+path, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// A daemon tells on the network what it tells on its socket, to whom has its token or a certificate of the cluster.
func TestDaemonTellsOnTheNetwork(t *testing.T) {
	l := loneWithHTTP(t)
	raw, err := os.ReadFile(filepath.Join(l.dir, httpapi.TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(raw))
	c := l.client()
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n", "/metrics": "\nrdmcfs_quorum 1\n"} {
		if code, body := l.get(c, path, token); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	if code, _ := l.get(c, "/debug/pprof/", token); code != http.StatusNotFound {
		t.Errorf("profiles: %d", code)
	}
	if code, _ := l.get(c, "/metrics", ""); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d", code)
	}
	var st admin.Status
	code, body := l.get(c, "/v1/status", token)
	if err := admin.Unmarshal([]byte(body), &st); err != nil || code != http.StatusOK || !serving(st) || st.Name != "n1" {
		t.Errorf("%d %q, %v", code, body, err)
	}
	l.asNode(c)
	c.CloseIdleConnections()
	l.stop()
	if conn, err := net.Dial("tcp", strings.TrimPrefix(l.url, "https://")); err == nil {
		conn.Close()
		t.Error("the port outlives the node")
	}
}

// asNode reads with the node's own certificate.
func (l *lone) asNode(c *http.Client) {
	id, err := credentials.Dir(filepath.Join(l.dir, "tls")).LoadIdentity(time.Now)
	if err != nil {
		l.t.Fatal(err)
	}
	conf := c.Transport.(*http.Transport).TLSClientConfig.Clone()
	conf.GetClientCertificate = id.ClientConfig(0, "").GetClientCertificate
	transport := &http.Transport{TLSClientConfig: conf}
	defer transport.CloseIdleConnections()
	if code, body := l.get(&http.Client{Transport: transport}, "/readyz", ""); code != http.StatusOK {
		l.t.Errorf("with a certificate: %d %q", code, body)
	}
}

// A certificate counts as long as its node belongs to the cluster. A state that is being rebuilt knows no nodes.
func TestWhoseCertificatesCount(t *testing.T) {
	c := metatest.New(t, 3)
	db := c.DB.(*meta.DB)
	if !belongs(db, 2) || belongs(db, 9) || belongs(meta.OpenMemory(), 2) {
		t.Error("a member, a stranger, or a state without nodes")
	}
	c.Do(1, &meta.Evict{Node: 3})
	if belongs(db, 3) || !belongs(db, 2) {
		t.Error("an evicted node")
	}
}

// Two addresses that can't both be bound are found before one of them is.
func TestSamePort(t *testing.T) {
	for _, c := range []struct {
		http, listen string
		same         bool
	}{
		{"10.0.0.1:7400", "10.0.0.1:7400", true}, {"0.0.0.0:7400", "10.0.0.1:7400", true},
		{"[::]:7400", "10.0.0.1:7400", true},
		{":7400", "10.0.0.1:7400", true}, {"10.0.0.2:7400", "10.0.0.1:7400", false},
		{"10.0.0.1:7480", "10.0.0.1:7400", false},
		{"10.0.0.1:0", "10.0.0.1:0", false}, {"", "10.0.0.1:7400", false},
	} {
		if samePort(c.http, c.listen) != c.same {
			t.Errorf("%q and %q: %v", c.http, c.listen, !c.same)
		}
	}
	dir := filepath.Join(t.TempDir(), "n")
	_, err := Init(InitConfig{DataDir: dir, Listen: "127.0.0.1:7400", HTTP: "0.0.0.0:7400"})
	if !errors.Is(err, control.ErrUsage) {
		t.Error(err)
	}
}

// A port of --http that can't be taken is an error before anything is written.
func TestHTTPPortIsTakenFirst(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := taken.Addr().String()
	dir := filepath.Join(t.TempDir(), "n")
	listen := freePort(t)
	for addr, want := range map[string]error{busy: ErrPortInUse, "192.0.2.1:7480": control.ErrUsage} {
		if _, err := Init(InitConfig{DataDir: dir, Listen: listen, HTTP: addr}); !errors.Is(err, want) ||
			!strings.Contains(err.Error(), "--http") {
			t.Errorf("init, %s: %v", addr, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was made: %v", dir, err)
	}
	if _, err := Init(InitConfig{DataDir: dir, Listen: listen}); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]error{busy: ErrPortInUse, listen: control.ErrUsage} {
		err := Run(t.Context(), Config{DataDir: dir, HTTP: HTTP{Addr: addr}})
		if !errors.Is(err, want) {
			t.Errorf("run, %s: %v", addr, err)
		}
	}
	for _, name := range []string{httpapi.TokenFile, "state", "content"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was made: %v", name, err)
		}
	}
}
