// Package packaging has no code: its tests hold what lies here to what the program does.
package packaging

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/httpapi"
	"github.com/rdmcfs/rdmcfs/internal/node"
)

// TestCountersAndOptionsExist: each counter that an alert or a panel uses is one that a node prints, and the man page
// of mount tells the options that a node takes.
func TestCountersAndOptionsExist(t *testing.T) {
	text, refusal := askNode(t)
	// of the node exporter, and Prometheus' own
	there := map[string]bool{"node_textfile_mtime_seconds": true, `up{job="rdmcfs"}`: true}
	for _, name := range regexp.MustCompile(`(?m)^[a-z_]+`).FindAllString(text, -1) {
		there[name] = true
	}
	source := read(t, "../internal/node/metrics.go") // has the names whose labels no push has given a value yet
	for _, name := range regexp.MustCompile(`"(rdmcfs_[a-z_]+)"`).FindAllStringSubmatch(source, -1) {
		there[name[1]] = true
	}
	if !there["rdmcfs_quorum"] || !there["rdmcfs_push_seconds_total"] {
		t.Fatalf("the node's counters were not found:\n%s", text)
	}
	exprs := append(ruleExprs(t), panelExprs(t)...)
	if len(exprs) < 20 {
		t.Fatalf("only %d expressions found: the test looks in the wrong place", len(exprs))
	}
	counter := regexp.MustCompile(`\b(rdmcfs|node|go|process|promhttp)_[a-z0-9_]+|\bup\{job="[a-z]+"\}`)
	for _, expr := range exprs {
		names := counter.FindAllString(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s: no counter", expr)
		}
		for _, name := range names {
			if !there[name] {
				t.Errorf("%s: no node prints %s", expr, name)
			}
			if rises := strings.HasSuffix(name, "_total"); rises != (strings.Contains(expr, "rate("+name) ||
				strings.Contains(expr, "increase("+name)) {
				t.Errorf("%s: %s is read as what it is not, a counter or a gauge", expr, name)
			}
		}
	}
	_, options, _ := strings.Cut(refusal, "there are ")
	page := read(t, "mount.fuse.rdmcfs.8")
	for option := range strings.SplitSeq(options, ", ") {
		if !strings.Contains(page, `\fB`+option+`\fR`) {
			t.Errorf("mount.fuse.rdmcfs.8 does not tell the option %q of %q", option, refusal)
		}
	}
}

// askNode runs a cluster of one node, and returns its counters as rdmcfs.scrape.yml has them read, and what it says to
// an option that it does not know.
func askNode(t *testing.T) (counters, refusal string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	addr := freePort(t)
	if _, err := node.Init(node.InitConfig{DataDir: dir, Listen: freePort(t), Name: "n1"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan error, 1)
	go func() {
		ended <- node.Run(ctx, node.Config{DataDir: dir, Fabric: node.Fabric{Mode: node.FabricTCP},
			HTTP: node.HTTP{Addr: addr}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	client := admin.NewClient(admin.SocketPath(dir))
	if _, err := client.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	counters = scrape(t, dir, addr)
	_, err := client.Mount(ctx, admin.MountRequest{Dir: "/nowhere", Options: map[string]string{"bogus": ""}})
	if err == nil || !strings.Contains(err.Error(), "there are ") {
		t.Fatalf("option bogus: %v", err)
	}
	return counters, err.Error()
}

// freePort is an address that nobody listens at, and that no connection of another program takes meanwhile.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := net.Listen("tcp", "127.77.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	return port.Addr().String()
}

// scrape does what rdmcfs.scrape.yml says, with the files of a data directory.
func scrape(t *testing.T, dir, addr string) string {
	t.Helper()
	conf := read(t, "monitoring/rdmcfs.scrape.yml")
	value := func(key string) string {
		t.Helper()
		m := regexp.MustCompile(`(?m)^ +` + key + `: ([^ \n]+)`).FindStringSubmatch(conf)
		if m == nil {
			t.Fatalf("rdmcfs.scrape.yml has no %s", key)
		}
		return m[1]
	}
	for _, file := range []string{httpapi.TokenFile + " of", "tls/ca.crt of"} {
		if !strings.Contains(conf, file) {
			t.Errorf("rdmcfs.scrape.yml does not say where its files come from: %s", file)
		}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(read(t, filepath.Join(dir, "tls", "ca.crt")))) {
		t.Fatal("ca.crt has no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: value("server_name")}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequest(http.MethodGet, value("scheme")+"://"+addr+value("metrics_path"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(read(t, filepath.Join(dir, httpapi.TokenFile))))
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v\n%s", resp.Status, err, body)
	}
	return string(body)
}

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func ruleExprs(t *testing.T) (exprs []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^ +expr: (.*)$`).FindAllStringSubmatch(read(t,
		"monitoring/rdmcfs.rules.yml"), -1) {
		exprs = append(exprs, m[1])
	}
	return exprs
}

func panelExprs(t *testing.T) (exprs []string) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "monitoring/rdmcfs.grafana.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range dashboard.Panels {
		if seen[p.ID] || len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d %q: its id is taken, it shows nothing, or it is too far right", p.ID, p.Title)
		}
		seen[p.ID] = true
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	return exprs
}
