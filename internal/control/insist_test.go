package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A line that is whole again is found within a quarter of a second, however long the attempts to connect that were
// lost would still wait.
func TestDialFindsALineThatIsWholeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := time.Now().Add(1700 * time.Millisecond)
		var made atomic.Int32
		dial := insisting(func(ctx context.Context, _, _ string) (net.Conn, error) {
			made.Add(1)
			if time.Now().Before(whole) { // the packet is lost, and the kernel's next comes after the end
				<-ctx.Done()
				return nil, ctx.Err()
			}
			a, b := net.Pipe()
			b.Close()
			return a, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		conn, err := dial(ctx, "tcp", "x")
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if late := time.Since(whole); late > dialAgain {
			t.Errorf("connected %v after the line was whole", late)
		}
		if n := made.Load(); n > dialsMost {
			t.Errorf("%d attempts", n)
		}
	})
}

// A refusal is an answer, connections that are too many are closed, and nothing is tried for ever.
func TestDialThatInsistsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := insisting(func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED })
		if _, err := refused(t.Context(), "tcp", "x"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("refused: %v", err)
		}
		var mu sync.Mutex
		var ends []net.Conn
		slow := insisting(func(context.Context, string, string) (net.Conn, error) {
			<-time.After(600 * time.Millisecond)
			a, b := net.Pipe()
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, b)
			return a, nil
		})
		conn, err := slow(t.Context(), "tcp", "x")
		if err != nil || len(ends) != 3 {
			t.Fatalf("%d connections: %v", len(ends), err)
		}
		conn.Close()
		for i, end := range ends {
			if _, err := end.Read(make([]byte, 1)); err == nil {
				t.Errorf("connection %d is open", i)
			}
		}
		silent := insisting(func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := silent(ctx, "tcp", "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("silent: %v", err)
		}
	})
}

// A connection on which the kernel waits for seconds until it sends again is not used for a node that was seen: its
// line is whole.
func TestSeenEndsAConnectionThatSendsInVain(t *testing.T) {
	f := newFabricated(t)
	server := NewServer(quiet())
	server.HandleCall(kindTest, echo)
	port := listen(t, PortConfig{Identity: f.node(1), Server: server})
	var first atomic.Pointer[net.TCPConn]
	peers := peersTo(t, f.node(2), port.Addr().String(), func(c *PeersConfig) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				first.CompareAndSwap(nil, conn.(*net.TCPConn))
			}
			return conn, err
		}
	})
	call := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := peers.Call(ctx, 1, kindTest, nil)
		return err
	}
	if err := call(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	peers.Seen(1)
	if err := call(20 * time.Second); err != nil || !sameConn(peers, first.Load()) {
		t.Fatalf("a connection that works was ended: %v", err)
	}
	swallow(t, first.Load())
	if err := call(2500 * time.Millisecond); err == nil {
		t.Fatal("answered over a line that swallows all")
	}
	peers.Seen(1)
	began := time.Now()
	if err := call(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the call took %v", took)
	}
}

// sameConn reports whether the connection for calls to node 1 is the given one.
func sameConn(p *Peers, conn *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.nodes[way{1, false}].client
	return c != nil && c.conn.RemoteAddr() != nil && c.conn.LocalAddr().String() == conn.LocalAddr().String()
}

// swallow has the kernel drop all that arrives on a connection, acknowledgements too.
func swallow(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	nothing := [1]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: 1, Filter: &nothing[0]})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Only an answer that refuses a join for good says that the cluster has not taken the machine in.
func TestJoinThatMayHaveBeenTaken(t *testing.T) {
	for code, want := range map[Code]bool{CodeTokenUsed: true, CodeAddrTaken: true, CodeNameTaken: true,
		CodeUnavailable: false, CodeInternal: false, CodeDeadline: false, CodeBusy: false} {
		if err := fmt.Errorf("join: %w", &RemoteError{Code: code}); JoinRefused(err) != want {
			t.Errorf("code %d: refused %v, want %v", code, !want, want)
		}
	}
	for _, err := range []error{nil, ErrNoNode, context.DeadlineExceeded, ErrTokenUsed} {
		if JoinRefused(err) {
			t.Errorf("%v: nobody has answered", err)
		}
	}
}
