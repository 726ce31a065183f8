package httpapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a server with what its clients need.
type served struct {
	t         *testing.T
	authority *credentials.Authority
	identity  *credentials.Identity
	token     Token
	word      string
	url       string
	wrong     atomic.Pointer[error] // why it is neither alive nor ready
}

func serve(t *testing.T, change func(*Config)) *served {
	t.Helper()
	authority, err := credentials.NewAuthority(credentials.NewClusterID(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &served{t: t, authority: authority}
	s.identity, _ = member(t, authority, 1)
	if s.token, err = OpenToken(filepath.Join(t.TempDir(), TokenFile)); err != nil {
		t.Fatal(err)
	}
	if s.word, err = s.token.read(); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "https://" + ln.Addr().String()
	cfg := Config{Listener: ln, Identity: s.identity, Token: s.token, Log: slog.New(slog.DiscardHandler),
		Trusted: func(cs tls.ConnectionState) bool { _, err := s.identity.Check(cs, false); return err == nil },
		Source: Source{Metrics: text("metrics"), Status: text(`{"state":"serving"}`), Alive: s.whyNot,
			Ready: s.whyNot}}
	if change != nil {
		change(&cfg)
	}
	server := Serve(cfg)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func text(s string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, s) })
}

func (s *served) whyNot() error {
	if why := s.wrong.Load(); why != nil {
		return *why
	}
	return nil
}

// member makes an identity of an authority, and its certificate as a client shows it.
func member(t *testing.T, a *credentials.Authority, node uint32) (*credentials.Identity, tls.Certificate) {
	t.Helper()
	req, err := credentials.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.Sign(req.DER(), node, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	id, err := credentials.IdentityFromRequest(a.CertificateDER(), leaf, req, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := id.ReaderServerConfig(nil).GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return id, *shown
}

// client checks the server as Prometheus does: by the authority and the name in all certificates.
func (s *served) client(shows ...tls.Certificate) *http.Client {
	roots := x509.NewCertPool()
	authority, err := x509.ParseCertificate(s.authority.CertificateDER())
	if err != nil {
		s.t.Fatal(err)
	}
	roots.AddCert(authority)
	conf := &tls.Config{RootCAs: roots, ServerName: credentials.ServerName}
	if len(shows) > 0 { // also one that the server did not ask for
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shows[0], nil }
	}
	transport := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 2 * time.Minute}
}

// get returns the code and the text of an answer. word is the token that is shown, "" for none.
func (s *served) get(c *http.Client, path, word string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodGet, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if word != "" {
		req.Header.Set("Authorization", "Bearer "+word)
	}
	return s.do(c, req)
}

func (s *served) do(c *http.Client, req *http.Request) (int, string) {
	s.t.Helper()
	resp, err := c.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.Proto != "HTTP/1.1" || resp.TLS.Version != tls.VersionTLS13 {
		s.t.Errorf("%s over TLS %x", resp.Proto, resp.TLS.Version)
	}
	return resp.StatusCode, string(body)
}

var paths = []string{"/metrics", "/v1/status", "/readyz", "/debug/pprof/cmdline", "/", "/nothing"}

// Nobody reads without a proof, and nobody learns what there is. Whether the process lives is for everybody.
func TestReadersProveThemselves(t *testing.T) {
	s := serve(t, func(c *Config) { c.Pprof = true })
	foreign, err := credentials.NewAuthority(credentials.NewClusterID(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, ours := member(t, s.authority, 2)
	_, theirs := member(t, foreign, 2)
	for _, c := range []struct {
		name   string
		client *http.Client
		word   string
		passes bool
	}{
		{"nothing", s.client(), "", false},
		{"wrong token", s.client(), strings.Repeat("0", len(s.word)), false},
		{"part of the token", s.client(), s.word[1:], false},
		{"token", s.client(), s.word, true},
		{"certificate", s.client(ours), "", true},
		{"certificate and wrong token", s.client(ours), "wrong", true},
		{"foreign certificate", s.client(theirs), "", false},
		{"foreign certificate and token", s.client(theirs), s.word, true},
	} {
		if code, body := s.get(c.client, "/healthz", c.word); code != http.StatusOK || body != "ok\n" {
			t.Errorf("%s: /healthz: %d %q", c.name, code, body)
		}
		for i, path := range paths {
			want := http.StatusUnauthorized
			if c.passes && i < 4 {
				want = http.StatusOK
			} else if c.passes {
				want = http.StatusNotFound
			}
			if code, body := s.get(c.client, path, c.word); code != want {
				t.Errorf("%s: %s: %d %q, want %d", c.name, path, code, body, want)
			}
		}
	}
	if code, body := s.get(s.client(ours), "/v1/status", ""); code != http.StatusOK || body != `{"state":"serving"}` {
		t.Errorf("%d %q", code, body)
	}
}

// A certificate of the cluster is of no use to a node that was evicted.
func TestCertificateThatIsNotTrusted(t *testing.T) {
	s := serve(t, func(c *Config) { c.Trusted = func(tls.ConnectionState) bool { return false } })
	_, cert := member(t, s.authority, 2)
	if code, _ := s.get(s.client(cert), "/metrics", ""); code != http.StatusUnauthorized {
		t.Error(code)
	}
}

func TestAuthorizationIsReadAsHTTPSays(t *testing.T) {
	s := serve(t, nil)
	for header, want := range map[string]int{
		"bearer " + s.word: http.StatusOK, "BEARER  " + s.word + " ": http.StatusOK, s.word: http.StatusUnauthorized,
		"Basic " + s.word: http.StatusUnauthorized, "Bearer": http.StatusUnauthorized, "Bearer ": http.StatusUnauthorized,
	} {
		req, err := http.NewRequest(http.MethodGet, s.url+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", header)
		if code, _ := s.do(s.client(), req); code != want {
			t.Errorf("%q: %d, want %d", header, code, want)
		}
	}
}

// Whoever does not serve, or does not live, says why in one line.
func TestReadiness(t *testing.T) {
	s := serve(t, nil)
	c := s.client()
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := s.get(c, path, s.word); code != http.StatusOK || body != "ok\n" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	why := errors.Join(errors.New("this node is cut-off"), errors.New("no leader is known"))
	s.wrong.Store(&why)
	for _, path := range []string{"/healthz", "/readyz"} {
		code, body := s.get(c, path, s.word)
		if code != http.StatusServiceUnavailable || body != "this node is cut-off; no leader is known\n" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}

func TestProfilesAreOffUnlessAskedFor(t *testing.T) {
	off, on := serve(t, nil), serve(t, func(c *Config) { c.Pprof = true })
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/profile?seconds=1",
		"/debug/pprof/symbol", "/debug/pprof/trace?seconds=0.1"} {
		if code, _ := off.get(off.client(), path, off.word); code != http.StatusNotFound {
			t.Errorf("off: %s: %d", path, code)
		}
		if code, body := on.get(on.client(), path, on.word); code != http.StatusOK || body == "" {
			t.Errorf("on: %s: %d %q", path, code, body)
		}
	}
	for _, seconds := range []string{"61", "-1", "NaN", "1e9", "x"} {
		code, _ := on.get(on.client(), "/debug/pprof/profile?seconds="+seconds, on.word)
		if code != http.StatusBadRequest {
			t.Errorf("%s seconds: %d", seconds, code)
		}
	}
}

// A new certificate counts for the next connection, without a restart.
func TestRenewedCertificate(t *testing.T) {
	s := serve(t, nil)
	serial := func() string {
		t.Helper()
		conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), s.client().Transport.(*http.Transport).
			TLSClientConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	req, err := credentials.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := s.authority.Sign(req.DER(), 1, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.identity.Install(leaf, req); err != nil {
		t.Fatal(err)
	}
	if again := serial(); again == before {
		t.Error("the old certificate is shown")
	}
}
