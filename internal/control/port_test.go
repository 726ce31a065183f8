package control

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

func TestDataConnectionIsHandedOverUntouched(t *testing.T) {
	f := newFabricated(t)
	got := make(chan *net.TCPConn, 1)
	port := listen(t, PortConfig{Identity: f.node(1), Raw: func(c *net.TCPConn) { got <- c }})
	conn := dialPort(t, port)
	if _, err := conn.Write([]byte("RDMA hello")); err != nil {
		t.Fatal(err)
	}
	raw := await(t, "connection", got)
	defer raw.Close()
	buf := make([]byte, 10)
	if _, err := io.ReadFull(raw, buf); err != nil || string(buf) != "RDMA hello" {
		t.Errorf("%q, %v", buf, err)
	}
}

// ended waits until the peer has closed the connection.
func ended(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		t.Fatalf("still open: %v", err)
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func TestGarbageIsClosed(t *testing.T) {
	f := newFabricated(t)
	server := NewServer(quiet())
	server.HandleCall(kindTest, echo)
	port := listen(t, PortConfig{Identity: f.node(1), Server: server})
	for name, data := range map[string]string{
		"no TLS and no data handler": "GET / HTTP/1.1\r\n\r\n",
		"TLS that is none":           "\x16\x03\x01\x00\x05hello",
		"TLS of a huge record":       "\x16\x03\x01\xff\xff" + string(make([]byte, 100)),
	} {
		conn := dialPort(t, port)
		if _, err := conn.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
		ended(t, conn)
		t.Logf("%s: closed", name)
	}
	peers := peersTo(t, f.node(2), port.Addr().String())
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Errorf("an honest call afterwards: %v", err)
	}
}

func TestUnknownProtocolIsRefused(t *testing.T) {
	f := newFabricated(t)
	port := listen(t, PortConfig{Identity: f.node(1)})
	for _, name := range []string{"h2", "http/1.1", ProtocolPeer, ProtocolRaft} { // none is registered here
		conn := tls.Client(dialPort(t, port), f.node(2).ClientConfig(1, name))
		if err := conn.HandshakeContext(bounded(t)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCallerWithoutCertificateIsRefused(t *testing.T) {
	f := newFabricated(t)
	port := listen(t, PortConfig{Identity: f.node(1), Server: NewServer(quiet())})
	conn := tls.Client(dialPort(t, port), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{ProtocolPeer}})
	err := conn.HandshakeContext(bounded(t))
	if err == nil {
		err = greet(conn, saying(0, format.End{}))
	}
	if !errors.Is(err, ErrRefused) {
		t.Errorf("refusal: %v", err)
	}
}

func TestSilentConnectionsEndInTime(t *testing.T) {
	f := newFabricated(t)
	// enough for the third to greet
	port := listen(t, PortConfig{Identity: f.node(1), Server: NewServer(quiet()), HandshakeTimeout: 3 * time.Second})
	silent, half := dialPort(t, port), dialPort(t, port)
	if _, err := half.Write([]byte{tlsFirstByte}); err != nil {
		t.Fatal(err)
	}
	greeted := tls.Client(dialPort(t, port), f.node(2).ClientConfig(1, ProtocolPeer)) // TLS, and then no hello
	if err := greeted.HandshakeContext(bounded(t)); err != nil {
		t.Fatal(err)
	}
	ended(t, silent)
	ended(t, half)
	ended(t, greeted)
}

func TestSlowlorisDoesNotKeepOthersOut(t *testing.T) {
	f := newFabricated(t)
	server := NewServer(quiet())
	server.HandleCall(kindTest, echo)
	port := listen(t, PortConfig{Identity: f.node(1), Server: server, HalfOpenMax: 8, HandshakeTimeout: time.Hour})
	var slow []*net.TCPConn
	for range 40 {
		conn := dialPort(t, port)
		if _, err := conn.Write([]byte{tlsFirstByte, 3}); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, conn)
	}
	peers := peersTo(t, f.node(2), port.Addr().String())
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Errorf("an honest call: %v", err)
	}
	for _, conn := range slow[:32] {
		ended(t, conn)
	}
	port.mu.Lock()
	open := port.halfOpen.Len()
	port.mu.Unlock()
	if open > 8 {
		t.Errorf("%d half open connections", open)
	}
}

func TestGarbageAfterTheHandshakeIsNamed(t *testing.T) {
	f := newFabricated(t)
	server := NewServer(quiet())
	server.HandleCall(kindTest, echo)
	port := listen(t, PortConfig{Identity: f.node(1), Server: server})
	greeted := func() *tls.Conn {
		conn, err := dialTLS(bounded(t), (&net.Dialer{}).DialContext, port.Addr().String(),
			f.node(2).ClientConfig(1, ProtocolPeer), saying(0, format.End{}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.NetConn().Close() })
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		return conn
	}
	for name, frame := range map[string][]byte{
		"text":           []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"a reply":        appendHeader(nil, header{kind: frameReply, id: 1}),
		"a second hello": appendHello(nil, hello{version: 1}),
		"too long":       appendHeader(nil, header{kind: frameCall, id: 1, length: MaxPayload + 1}),
		"an unused type": appendHeader(nil, header{kind: 4, id: 1, argument: kindTest}),
		"reserved bytes": {0, 0, 0, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0},
		"call with id 0": appendHeader(nil, header{kind: frameCall}),
	} {
		conn := greeted()
		if _, err := conn.Write(frame); err != nil {
			t.Fatal(err)
		}
		ended(t, conn)
		t.Logf("%s: closed", name)
	}
	// a caller gets a reason before the hello
	conn := tls.Client(dialPort(t, port), f.node(2).ClientConfig(1, ProtocolPeer))
	if _, err := conn.Write([]byte("this is no hello frame at all")); err != nil {
		t.Fatal(err)
	}
	if _, err := readGreeting(conn); !errors.Is(err, ErrProtocol) {
		t.Errorf("garbage instead of hello: %v", err)
	}
	peers := peersTo(t, f.node(3), port.Addr().String())
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Errorf("an honest call afterwards: %v", err)
	}
}

func TestEvictedNodeIsToldSo(t *testing.T) {
	f := newFabricated(t)
	var evicted atomic.Bool
	server := NewServer(quiet())
	server.HandleCall(kindTest, echo)
	port := listen(t, PortConfig{Identity: f.node(1), Server: server, Raft: func(c net.Conn, _ Caller) { c.Close() },
		Evicted: func(node uint32) bool { return node == 2 && evicted.Load() }})
	peers := peersTo(t, f.node(2), port.Addr().String())
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Fatal(err)
	}
	evicted.Store(true)
	port.Drop(2)
	var err error
	for err == nil { // the last answers of the old connection may still come
		_, err = peers.Call(bounded(t), 1, kindTest, nil)
	}
	peers.Seen(1)
	for !errors.Is(err, credentials.ErrEvicted) {
		if bounded(t).Err() != nil {
			t.Fatalf("evicted node: %v", err)
		}
		_, err = peers.Call(bounded(t), 1, kindTest, nil)
	}
	if _, err := peers.DialRaft(bounded(t), 1); !errors.Is(err, credentials.ErrEvicted) {
		t.Errorf("evicted node's raft: %v", err)
	}
}

// An evicted node that is still a member of raft may lead: its raft connections are taken, and nothing else of it.
func TestEvictedMemberOfRaftMayLead(t *testing.T) {
	f := newFabricated(t)
	server := NewServer(quiet())
	server.HandleCall(kindTest, echo)
	taken := make(chan uint32, 1)
	port := listen(t, PortConfig{Identity: f.node(1), Server: server,
		Raft:    func(c net.Conn, from Caller) { taken <- from.Node; c.Close() },
		Evicted: func(uint32) bool { return true }, InRaft: func(node uint32) bool { return node == 2 }})
	leader := peersTo(t, f.node(2), port.Addr().String())
	conn, err := leader.DialRaft(bounded(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if from := <-taken; from != 2 {
		t.Errorf("raft of node %d", from)
	}
	if _, err := leader.Call(bounded(t), 1, kindTest, nil); !errors.Is(err, credentials.ErrEvicted) {
		t.Errorf("its call: %v", err)
	}
	if _, err := peersTo(t, f.node(3), port.Addr().String()).DialRaft(bounded(t), 1); !errors.Is(err,
		credentials.ErrEvicted) {
		t.Errorf("raft of an evicted node that is no member: %v", err)
	}
}

// A node that missed a recovery may know of evictions that the recovered cluster has lost. It does not end a member.
func TestEarlierGenerationEvictsNobody(t *testing.T) {
	f := newFabricated(t)
	port := listen(t, PortConfig{Identity: f.node(1), Generation: 5, Raft: func(c net.Conn, _ Caller) { c.Close() },
		Evicted: func(uint32) bool { return true }})
	for generation, want := range map[uint32]error{
		4: credentials.ErrEvicted, 5: credentials.ErrEvicted, 6: ErrGeneration,
	} {
		peers := peersTo(t, f.node(2), port.Addr().String(), func(c *PeersConfig) { c.Generation = generation })
		if _, err := peers.DialRaft(bounded(t), 1); !errors.Is(err, want) {
			t.Errorf("a node of generation %d: %v", generation, err)
		}
	}
}

func TestStrangersAreToldApart(t *testing.T) {
	f, other := newFabricated(t), newFabricated(t)
	port := listen(t, PortConfig{Identity: f.node(1), Generation: 2, Server: NewServer(quiet())})
	addr := port.Addr().String()
	for name, c := range map[string]struct {
		peers *Peers
		want  error
	}{
		"another cluster":     {peersTo(t, other.node(2), addr), credentials.ErrForeignCluster},
		"a copied directory":  {peersTo(t, f.node(1), addr), ErrSameNode},
		"another generation":  {peersTo(t, f.node(2), addr, func(c *PeersConfig) { c.Generation = 1 }), ErrGeneration},
		"expired certificate": {peersTo(t, f.nodeAt(2, time.Now().Add(-2*credentials.LeafValidity)), addr), ErrRefused},
	} {
		node := uint32(1)
		if name == "a copied directory" {
			node = 3
		}
		_, err := c.peers.Call(bounded(t), node, kindTest, nil)
		if name == "a copied directory" { // the address book led to ourselves: also the wrong node
			_, err = dialTLS(bounded(t), (&net.Dialer{}).DialContext, addr, f.node(1).ClientConfig(0, ProtocolPeer),
				saying(2, format.End{}))
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	same := peersTo(t, f.node(2), addr, func(c *PeersConfig) { c.Generation = 2 })
	if _, err := same.Call(bounded(t), 1, kindTest, nil); !errors.Is(err, ErrNoHandler) {
		t.Errorf("our own: %v", err)
	}
}

func TestDialingWhatIsNoNode(t *testing.T) {
	f := newFabricated(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "220 smtp.example ESMTP\r\n")
			conn.Close()
		}
	}()
	peers := peersTo(t, f.node(2), ln.Addr().String())
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); !errors.Is(err, ErrPeerDown) {
		t.Error(err)
	} else {
		t.Log(err)
	}
	ln.Close()
	await(t, "end of the other program", done)
}

func TestOnePeerHasFewConnections(t *testing.T) {
	f := newFabricated(t)
	id := f.node(2)
	port := listen(t, PortConfig{Identity: f.node(1), Server: NewServer(quiet())})
	var last error
	for i := range connsPerPeerMax + 1 {
		conn, err := dialTLS(bounded(t), (&net.Dialer{}).DialContext, port.Addr().String(), id.ClientConfig(1, ProtocolPeer),
			saying(0, format.End{}))
		if err != nil {
			if i < connsPerPeerMax {
				t.Fatalf("connection %d: %v", i, err)
			}
			last = err
			continue
		}
		defer conn.NetConn().Close()
	}
	if !errors.Is(last, ErrBusy) {
		t.Errorf("one too many: %v", last)
	}
}

func TestCloseWithEverythingOpen(t *testing.T) {
	f := newFabricated(t)
	started := make(chan struct{}, 2)
	server := NewServer(quiet())
	server.HandleCall(kindTest, func(ctx context.Context, _ Caller, _ []byte) ([]byte, error) {
		started <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	port := listen(t, PortConfig{Identity: f.node(1), Server: server, HandshakeTimeout: time.Hour})
	dialPort(t, port)
	peers := peersTo(t, f.node(2), port.Addr().String())
	result := make(chan error, 1)
	go func() {
		_, err := peers.Call(bounded(t), 1, kindTest, nil)
		result <- err
	}()
	await(t, "start", started)
	closed := make(chan struct{})
	go func() {
		port.Close()
		close(closed)
	}()
	await(t, "Close", closed)
	if err := await(t, "call", result); err == nil {
		t.Error("the call succeeded")
	}
}

func TestRefusalsAreLoggedSparsely(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(slog.NewTextHandler(&b, nil))
	var s sparseLog
	start := time.Now()
	for i := range 1000 {
		s.log(log, start.Add(time.Duration(i)*time.Millisecond))
	}
	s.log(log, start.Add(refusalsEvery+time.Second))
	if n := strings.Count(b.String(), "refused"); n != refusalsMost+1 ||
		!strings.Contains(b.String(), "not_shown_before=980") {
		t.Errorf("%d lines: %s", n, b.String())
	}
}
