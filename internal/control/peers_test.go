package control

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
)

const kindTest = 7

func echo(_ context.Context, _ Caller, payload []byte) ([]byte, error) { return payload, nil }

func TestCallsRunSideBySide(t *testing.T) {
	peers, _ := pair(t, func(s *Server) { s.HandleCall(kindTest, echo) })
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			payload := make([]byte, i*1777)
			rand.Read(payload)
			for range 20 {
				got, err := peers.Call(bounded(t), 1, kindTest, payload)
				if err != nil || !bytes.Equal(got, payload) {
					t.Errorf("call of %d bytes: %d bytes, %v", len(payload), len(got), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestLargestPayload(t *testing.T) {
	peers, _ := pair(t, func(s *Server) {
		s.HandleCall(kindTest, echo)
		s.HandleCall(kindTest+1, func(context.Context, Caller, []byte) ([]byte, error) {
			return make([]byte, MaxPayload+1), nil
		})
	})
	got, err := peers.Call(bounded(t), 1, kindTest, make([]byte, MaxPayload))
	if err != nil || len(got) != MaxPayload {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := peers.Call(bounded(t), 1, kindTest, make([]byte, MaxPayload+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large a call: %v", err)
	}
	if _, err := peers.Call(bounded(t), 1, kindTest+1, nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large a reply: %v", err)
	}
}

func TestHandlerKnowsItsCaller(t *testing.T) {
	callers := make(chan Caller, 1)
	peers, _ := pair(t, func(s *Server) {
		s.HandleCall(kindTest, func(_ context.Context, from Caller, _ []byte) ([]byte, error) {
			callers <- from
			return nil, nil
		})
	})
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Fatal(err)
	}
	if from := await(t, "caller", callers); from.Node != 2 {
		t.Errorf("caller %+v", from)
	}
}

func TestErrorsKeepTheirMeaning(t *testing.T) {
	answers := map[string]error{
		"plain": errors.New("odd"), "app": &RemoteError{Code: CodeApplication + 3, Message: "mine"},
		"used": fmt.Errorf("x: %w", ErrTokenUsed), "evicted": credentials.ErrEvicted, "deadline": context.DeadlineExceeded,
	}
	peers, _ := pair(t, func(s *Server) {
		s.HandleCall(kindTest, func(_ context.Context, _ Caller, p []byte) ([]byte, error) { return nil, answers[string(p)] })
	})
	for name, want := range answers {
		_, err := peers.Call(bounded(t), 1, kindTest, []byte(name))
		var remote *RemoteError
		if !errors.As(err, &remote) {
			t.Errorf("%s: %v is no RemoteError", name, err)
			continue
		}
		if inner := errors.Unwrap(want); inner != nil {
			want = inner
		}
		switch name {
		case "plain":
			if remote.Code != CodeInternal || remote.Message != "odd" {
				t.Errorf("plain: %+v", remote)
			}
		case "app":
			if remote.Code != CodeApplication+3 || remote.Message != "mine" {
				t.Errorf("application: %+v", remote)
			}
		default:
			if !errors.Is(err, want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := peers.Call(bounded(t), 1, kindTest+1, nil); !errors.Is(err, ErrNoHandler) {
		t.Errorf("unknown kind: %v", err)
	}
}

// TestDeadlineAndCancelReachTheHandler runs in virtual time: no call is late before its deadline.
func TestDeadlineAndCancelReachTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		started := make(chan bool, 1)
		c := piped(t, func(s *Server) {
			s.HandleCall(kindTest, func(ctx context.Context, _ Caller, _ []byte) ([]byte, error) {
				_, limited := ctx.Deadline()
				started <- limited
				<-ctx.Done()
				ended <- ctx.Err()
				return nil, ctx.Err()
			})
		})
		ctx, cancel := context.WithTimeout(bounded(t), 50*time.Millisecond)
		defer cancel()
		if _, err := c.call(ctx, kindTest, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deadline: %v", err)
		}
		if !await(t, "start", started) {
			t.Error("the handler's context has no deadline")
		}
		await(t, "handler's end after the deadline", ended)

		ctx, cancel = context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() {
			_, err := c.call(ctx, kindTest, nil)
			result <- err
		}()
		if await(t, "start", started) {
			t.Error("a deadline from nowhere")
		}
		cancel()
		if err := await(t, "result", result); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		await(t, "handler's end after cancel", ended)
	})
}

// piped is a connection for calls to a server in memory.
func piped(t *testing.T, register func(*Server)) *client {
	server := NewServer(quiet())
	register(server)
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.ServeConn(context.Background(), theirs, Caller{Node: 2})
	}()
	c := newClient(ours)
	t.Cleanup(func() {
		c.close()
		<-served
	})
	return c
}

func TestTooManyCallsAreAnsweredBusy(t *testing.T) {
	release := make(chan struct{})
	var running atomic.Int32
	full := make(chan struct{})
	peers, _ := pair(t, func(s *Server) {
		s.HandleCall(kindTest, func(context.Context, Caller, []byte) ([]byte, error) {
			if running.Add(1) == callsMax {
				close(full)
			}
			<-release
			return nil, nil
		})
	})
	var wg sync.WaitGroup
	for range callsMax {
		wg.Go(func() {
			if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
				t.Errorf("one of the first: %v", err)
			}
		})
	}
	await(t, "all running", full)
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); !errors.Is(err, ErrBusy) {
		t.Errorf("one too many: %v", err)
	}
	close(release)
	wg.Wait()
}

func TestRequestsInHandlersAreBounded(t *testing.T) {
	var held, most atomic.Int64
	release := make(chan struct{})
	const calls = 2 * requestBytesMax / MaxPayload
	peers, _ := pair(t, func(s *Server) {
		s.HandleCall(kindTest, func(_ context.Context, _ Caller, p []byte) ([]byte, error) {
			if now := held.Add(int64(len(p))); now > most.Load() {
				most.Store(now)
			}
			release <- struct{}{}
			held.Add(-int64(len(p)))
			return nil, nil
		})
	})
	var wg sync.WaitGroup
	payload := make([]byte, MaxPayload)
	for range calls {
		wg.Go(func() {
			if _, err := peers.Call(bounded(t), 1, kindTest, payload); err != nil {
				t.Error(err)
			}
		})
	}
	for range calls {
		await(t, "a handler", release)
	}
	wg.Wait()
	if most.Load() > requestBytesMax {
		t.Errorf("%d bytes of requests at a time", most.Load())
	}
}

func TestPeerThatEndsFailsCallsAndComesBack(t *testing.T) {
	f := newFabricated(t)
	started := make(chan struct{}, 1)
	server := NewServer(quiet())
	server.HandleCall(kindTest, func(ctx context.Context, _ Caller, _ []byte) ([]byte, error) {
		started <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	server.HandleCall(kindTest+1, echo)
	first := listen(t, PortConfig{Identity: f.node(1), Server: server})
	addr := first.Addr().String()
	peers := peersTo(t, f.node(2), addr)
	result := make(chan error, 1)
	go func() {
		_, err := peers.Call(bounded(t), 1, kindTest, nil)
		result <- err
	}()
	await(t, "start", started)
	if !peers.Connected(1) {
		t.Error("not connected during a call")
	}
	first.Close()
	if err := await(t, "result", result); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("call on a lost connection: %v", err)
	}
	if _, err := peers.Call(bounded(t), 1, kindTest+1, nil); !errors.Is(err, ErrPeerDown) {
		t.Errorf("call to nobody: %v", err)
	}
	listen(t, PortConfig{Addr: addr, Identity: f.node(1), Server: server})
	peers.Seen(1)
	if _, err := peers.Call(bounded(t), 1, kindTest+1, nil); err != nil {
		t.Errorf("call after its return: %v", err)
	}
}

func TestUnreachablePeerFailsFast(t *testing.T) {
	f := newFabricated(t)
	var dials atomic.Int32
	peers := peersTo(t, f.node(2), "192.0.2.1:1", func(c *PeersConfig) {
		c.DialTimeout = 100 * time.Millisecond
		c.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { // a host that swallows packets
			dials.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	start := time.Now()
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); !errors.Is(err, ErrPeerDown) {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 100*time.Millisecond || took > 10*time.Second {
		t.Errorf("first attempt took %v", took)
	}
	for range 1000 {
		if _, err := peers.Call(bounded(t), 1, kindTest, nil); !errors.Is(err, ErrPeerDown) {
			t.Fatal(err)
		}
	}
	if n := dials.Load(); n > 100 {
		t.Errorf("%d attempts for 1,001 calls", n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := peers.Call(ctx, 1, kindTest, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
}

func TestOneDialForManyCalls(t *testing.T) {
	f := newFabricated(t)
	server := NewServer(quiet())
	server.HandleCall(kindTest, echo)
	port := listen(t, PortConfig{Identity: f.node(1), Server: server})
	var dials atomic.Int32
	peers := peersTo(t, f.node(2), port.Addr().String(), func(c *PeersConfig) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if dials.Load() != 1 {
		t.Errorf("%d connections", dials.Load())
	}
}

func TestMovedPeerIsFoundAtItsNewAddress(t *testing.T) {
	f := newFabricated(t)
	server := NewServer(quiet())
	server.HandleCall(kindTest, echo)
	a := listen(t, PortConfig{Identity: f.node(1), Server: server})
	b := listen(t, PortConfig{Identity: f.node(1), Server: server})
	var addr atomic.Value
	addr.Store(a.Addr().String())
	peers := peersTo(t, f.node(2), "", func(c *PeersConfig) {
		c.Resolve = func(node uint32) (string, bool) { return addr.Load().(string), node == 1 }
	})
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Fatal(err)
	}
	a.Close()
	addr.Store(b.Addr().String())
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Errorf("after the move: %v", err)
	}
	if _, err := peers.Call(bounded(t), 9, kindTest, nil); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("no such node: %v", err)
	}
	if _, err := peers.Call(bounded(t), 2, kindTest, nil); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("itself: %v", err)
	}
}

func TestCallsAfterCloseFail(t *testing.T) {
	peers, _ := pair(t, func(s *Server) { s.HandleCall(kindTest, echo) })
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Fatal(err)
	}
	peers.Close()
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestRaftConnection(t *testing.T) {
	f := newFabricated(t)
	got := make(chan net.Conn, 1)
	port := listen(t, PortConfig{Identity: f.node(1), Raft: func(conn net.Conn, from Caller) {
		if from.Node != 2 {
			t.Errorf("from %+v", from)
		}
		got <- conn
	}})
	peers := peersTo(t, f.node(2), port.Addr().String())
	conn, err := peers.DialRaft(bounded(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello raft")); err != nil {
		t.Fatal(err)
	}
	accepted := await(t, "connection", got)
	defer accepted.Close()
	buf := make([]byte, 10)
	if _, err := io.ReadFull(accepted, buf); err != nil || string(buf) != "hello raft" {
		t.Errorf("%q, %v", buf, err)
	}
	accepted.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := accepted.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadlines are the owner's: %v", err)
	}
	if _, err := peers.DialRaft(bounded(t), 5); !errors.Is(err, credentials.ErrWrongNode) || !errors.Is(err, ErrPeerDown) {
		t.Errorf("another node at the address: %v", err)
	}
}

func BenchmarkCall(b *testing.B) {
	peers, _ := pair(b, func(s *Server) { s.HandleCall(kindTest, echo) })
	payload := make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if _, err := peers.Call(ctx, 1, kindTest, payload); err != nil {
			b.Fatal(err)
		}
		cancel()
	}
}
