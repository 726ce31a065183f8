package control

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fabricated is a cluster of identities for tests.
type fabricated struct {
	t         testing.TB
	id        credentials.ClusterID
	authority *credentials.Authority
}

func newFabricated(t testing.TB) *fabricated {
	t.Helper()
	id := credentials.NewClusterID()
	a, err := credentials.NewAuthority(id, time.Now().Add(-365*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return &fabricated{t: t, id: id, authority: a}
}

// node makes an identity that was signed at a time.
func (f *fabricated) nodeAt(node uint32, signed time.Time) *credentials.Identity {
	f.t.Helper()
	req, err := credentials.NewRequest()
	if err != nil {
		f.t.Fatal(err)
	}
	leaf, err := f.authority.Sign(req.DER(), node, signed)
	if err != nil {
		f.t.Fatal(err)
	}
	id, err := credentials.IdentityFromRequest(f.authority.CertificateDER(), leaf, req, time.Now)
	if err != nil {
		f.t.Fatal(err)
	}
	return id
}

func (f *fabricated) node(node uint32) *credentials.Identity { return f.nodeAt(node, time.Now()) }

// listen opens a port on loopback; it is closed with the test.
func listen(t testing.TB, cfg PortConfig) *Port {
	t.Helper()
	if cfg.Addr == "" && cfg.Listener == nil {
		cfg.Addr = "127.0.0.1:0"
	}
	cfg.Log = quiet()
	p, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// peersTo makes calls of a node to one port, whatever the node number.
func peersTo(t testing.TB, id *credentials.Identity, addr string, change ...func(*PeersConfig)) *Peers {
	t.Helper()
	cfg := PeersConfig{Identity: id, Resolve: func(uint32) (string, bool) { return addr, addr != "" }, Log: quiet()}
	for _, c := range change {
		c(&cfg)
	}
	p := NewPeers(cfg)
	t.Cleanup(func() { p.Close() })
	return p
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// pair is node 2 calling node 1.
func pair(t testing.TB, register func(*Server)) (*Peers, *Port) {
	t.Helper()
	f := newFabricated(t)
	server := NewServer(quiet())
	register(server)
	port := listen(t, PortConfig{Identity: f.node(1), Server: server})
	return peersTo(t, f.node(2), port.Addr().String()), port
}

func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// await waits for a channel's close or value.
func await[V any](t testing.TB, what string, c <-chan V) V {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: not in time", what)
		panic("unreachable")
	}
}

func dialPort(t testing.TB, p *Port) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn.(*net.TCPConn)
}
