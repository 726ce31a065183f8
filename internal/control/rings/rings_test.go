package rings_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/rings"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const kindEcho = 9

// couple is node 2, which calls, and node 1, which echoes. Each has a fabric unless the test asks for none.
type couple struct {
	*testing.T
	wires          *mem.Fabric
	rings1, rings2 *rings.Fabric
	port           *control.Port
	peers          *control.Peers
	raft           chan net.Conn // connections that node 1 was given
}

func newCouple(t *testing.T, with1, with2 bool) *couple {
	t.Helper()
	c := &couple{T: t, wires: mem.NewFabric(mem.Config{}), raft: make(chan net.Conn, 8)}
	id := identities(t)
	server := control.NewServer(quiet())
	server.HandleCall(kindEcho, func(_ context.Context, _ control.Caller, payload []byte) ([]byte, error) {
		return payload, nil
	})
	port := control.PortConfig{Addr: "127.0.0.1:0", Identity: id[1], Server: server, Log: quiet(),
		Raft: func(conn net.Conn, _ control.Caller) { c.raft <- conn }}
	if with1 {
		c.rings1 = c.fabric("1")
		port.Fabric = c.rings1
	}
	var err error
	if c.port, err = control.Listen(port); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.port.Close() })
	addr := c.port.Addr().String()
	peers := control.PeersConfig{Identity: id[2], Resolve: func(uint32) (string, bool) { return addr, true },
		DialTimeout: 20 * time.Second, Log: quiet()} // half of it is for the fabric, and machines are slow
	if with2 {
		c.rings2 = c.fabric("2")
		peers.Fabric = c.rings2
	}
	c.peers = control.NewPeers(peers)
	t.Cleanup(func() { c.peers.Close() })
	return c
}

func (c *couple) fabric(name string) *rings.Fabric {
	c.Helper()
	device := c.wires.Device(name)
	f, err := rings.New(device)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		if err := errors.Join(f.Close(), device.Close()); err != nil {
			c.Error(err)
		}
	})
	return f
}

func identities(t *testing.T) map[uint32]*credentials.Identity {
	t.Helper()
	authority, err := credentials.NewAuthority(credentials.NewClusterID(), time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[uint32]*credentials.Identity)
	for node := uint32(1); node <= 2; node++ {
		req, err := credentials.NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := authority.Sign(req.DER(), node, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if out[node], err = credentials.IdentityFromRequest(authority.CertificateDER(), leaf, req, time.Now); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func (c *couple) call(n int) error {
	payload := make([]byte, n)
	rand.Read(payload)
	got, err := c.peers.Call(bounded(c.T), 1, kindEcho, payload)
	if err == nil && !bytes.Equal(got, payload) {
		return errors.New("other bytes came back")
	}
	return err
}

// open says how many streams the two fabrics hold.
func (c *couple) open() (n int) {
	for _, f := range []*rings.Fabric{c.rings1, c.rings2} {
		if f != nil {
			n += f.Connections()
		}
	}
	return n
}

// settle waits until ready, looking again and again; streams end in the background.
func (c *couple) settle(what string, ready func() bool) {
	c.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for bound := time.After(20 * time.Second); !ready(); {
		select {
		case <-tick.C:
		case <-bound:
			c.Fatalf("%s: not in time", what)
		}
	}
}

func TestCallsGoOverRings(t *testing.T) {
	c := newCouple(t, true, true)
	var calls sync.WaitGroup
	for i := range 16 {
		calls.Go(func() {
			for range 10 {
				if err := c.call(i * 7777); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	calls.Wait()
	if c.open() != 2 {
		t.Errorf("%d ends of streams, want 2", c.open())
	}
	c.peers.Close()
	c.settle("streams end with the caller", func() bool { return c.open() == 0 })
}

func TestWithoutAFabric(t *testing.T) {
	for name, with := range map[string][2]bool{"the called": {true, false}, "the caller": {false, true}} {
		t.Run(name, func(t *testing.T) {
			c := newCouple(t, with[0], with[1])
			if err := c.call(1000); err != nil {
				t.Fatal(err)
			}
			c.settle("no stream is left", func() bool { return c.open() == 0 })
		})
	}
}

// TestDeviceDies: calls go on over TCP when one device is lost, and the stream ends at the other.
func TestDeviceDies(t *testing.T) {
	c := newCouple(t, true, true)
	if err := c.call(100); err != nil {
		t.Fatal(err)
	}
	c.wires.Kill("1")
	c.settle("a call over TCP", func() bool { return c.call(100) == nil })
	c.settle("the streams end", func() bool { return c.open() == 0 })
}

func TestLineIsCut(t *testing.T) {
	c := newCouple(t, true, true)
	if err := c.call(100); err != nil {
		t.Fatal(err)
	}
	c.wires.Cut("1", "2")
	c.settle("a call over TCP", func() bool { return c.call(100) == nil })
}

// TestLogConnection takes the bytes of a connection for the log, both ways, to its end.
func TestLogConnection(t *testing.T) {
	c := newCouple(t, true, true)
	conn, err := c.peers.DialRaft(bounded(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	other := <-c.raft
	defer other.Close()
	if c.open() != 2 {
		t.Fatalf("%d ends of streams, want 2", c.open())
	}
	data := make([]byte, 3<<20)
	rand.Read(data)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{conn, other}, {other, conn}} {
		both.Go(func() {
			if _, err := way[0].Write(data); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			got := make([]byte, len(data))
			if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%v, equal: %v", err, bytes.Equal(got, data))
			}
		})
	}
	both.Wait()
	if _, err := conn.Write([]byte("last words")); err != nil {
		t.Error(err)
	}
	conn.Close()
	if got, err := io.ReadAll(other); string(got) != "last words" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// agree has a peer that speaks raw bytes where an address is due.
func agree(t *testing.T, f *rings.Fabric, script func(net.Conn)) error {
	t.Helper()
	ours, theirs := net.Pipe()
	var peer sync.WaitGroup
	defer peer.Wait()
	peer.Go(func() {
		defer theirs.Close()
		script(theirs)
	})
	conn, err := f.Accept(bounded(t), ours)
	if err == nil {
		conn.Close()
	}
	return err
}

// skipAddress reads the address that the other end sends.
func skipAddress(conn net.Conn) {
	var length [2]byte
	io.ReadFull(conn, length[:])
	io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(length[:])))
}

func TestBadPeers(t *testing.T) {
	c := newCouple(t, true, false)
	for name, answer := range map[string][]byte{
		"refuses": {0, 0}, "hangs up": nil, "half a length": {1}, "too long": {0xff, 0xff}, "cut short": {0, 40, 'R', 2},
		"nonsense": append([]byte{0, 40}, make([]byte, 40)...),
	} {
		t.Run(name, func(t *testing.T) {
			err := agree(t, c.rings1, func(conn net.Conn) {
				skipAddress(conn)
				conn.Write(answer)
			})
			if err == nil || name == "refuses" != errors.Is(err, rings.ErrRefused) {
				t.Error(err)
			}
		})
	}
	c.settle("no stream is left", func() bool { return c.open() == 0 })
}

// TestSilentPeer: the wait ends with its context.
func TestSilentPeer(t *testing.T) {
	c := newCouple(t, true, false)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.rings1.Dial(ctx, ours); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	c.settle("no stream is left", func() bool { return c.open() == 0 })
}

func TestClosedFabric(t *testing.T) {
	c := newCouple(t, true, true)
	if err := c.call(10); err != nil {
		t.Fatal(err)
	}
	c.rings2.Close()
	c.settle("a call over TCP", func() bool { return c.call(10) == nil })
	c.settle("the other end ends", func() bool { return c.open() == 0 })
}
