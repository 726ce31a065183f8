package tcp

import (
	"context"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// bed is a device with one pair, and the means to make it meet bad peers.
type bed struct {
	t    testing.TB
	dev  *Device
	addr string
	qp   rdma.QueuePair
	cq   rdma.CompletionQueue
	mem  rdma.Region
}

func newBed(t testing.TB, cfg Config) *bed {
	t.Helper()
	b := &bed{t: t, dev: testDevice(t, cfg)}
	b.addr = b.dev.Info().Advertise
	var err error
	if b.cq, err = b.dev.NewCQ(64); err != nil {
		t.Fatal(err)
	}
	if b.qp, err = b.dev.NewQP(rdma.QPConfig{SendCQ: b.cq, RecvCQ: b.cq}); err != nil {
		t.Fatal(err)
	}
	if b.mem, err = b.dev.AllocRegion(1<<20, rdma.RemoteRead|rdma.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.t.Cleanup(cancel)
	return ctx
}

// next is the next completion.
func (b *bed) next() rdma.Completion {
	b.t.Helper()
	var out [1]rdma.Completion
	if err := b.cq.Wait(b.context()); err != nil {
		b.t.Fatal(err)
	}
	b.cq.Poll(out[:])
	return out[0]
}

// silent makes a pair that has no address to dial, so that it dials itself.
func silent(t testing.TB) *queuePair {
	t.Helper()
	d, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	cq, err := d.NewCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := d.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	return qp.(*queuePair)
}

// raw connects the bed's pair with a peer that speaks the preamble well, and then is the caller's.
func (b *bed) raw() net.Conn {
	b.t.Helper()
	peer := silent(b.t)
	failed := make(chan error, 1)
	go func() { failed <- b.qp.Connect(b.context(), peer.Address()) }()
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	remote, err := decodeAddress(b.qp.Address())
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := peer.shake.greet(b.context(), conn, &remote, peer.advertise); err != nil {
		b.t.Fatal(err)
	}
	if err := <-failed; err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// TestHandedOverIsNoGuest: once a pair may take a connection the device does not close it as one that still shakes
// hands. To close what a pair reads waits for that reader, and Close did so under the lock that the hand-over needs.
func TestHandedOverIsNoGuest(t *testing.T) {
	b := newBed(t, Config{})
	remote, err := decodeAddress(b.qp.Address())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	q := b.qp.(*queuePair)
	q.mu.Lock() // the hand-over waits for it
	defer q.mu.Unlock()
	hello := encodeHello(remote.token, token{1}, [nonceBytes]byte{}, remote.secret[:])
	var was bool
	guests := func() int {
		b.dev.mu.Lock()
		defer b.dev.mu.Unlock()
		return len(b.dev.guestConns)
	}
	for end := time.Now().Add(patience); ; {
		n := guests()
		if n == 1 && !was {
			was = true
			b.write(conn, hello[:])
		}
		if n == 0 && was {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d connections still shake hands while one is handed over", n)
		}
		runtime.Gosched()
	}
}

func (b *bed) write(conn net.Conn, data []byte) {
	b.t.Helper()
	if _, err := conn.Write(data); err != nil {
		b.t.Fatal(err)
	}
}

// hungUp waits until the other side has closed the connection.
func hungUp(t testing.TB, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		if nerr, ok := err.(net.Error); ok && nerr.Timeout() {
			t.Fatal("connection is still open")
		}
	}
}

// good checks that the device still serves good peers.
func (b *bed) good() {
	b.t.Helper()
	other := newBed(b.t, Config{})
	fresh, err := b.dev.NewQP(rdma.QPConfig{SendCQ: b.cq, RecvCQ: b.cq})
	if err != nil {
		b.t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- fresh.Connect(b.context(), other.qp.Address()) }()
	if err := other.qp.Connect(b.context(), fresh.Address()); err != nil {
		b.t.Fatal(err)
	}
	if err := <-failed; err != nil {
		b.t.Fatal(err)
	}
}

// TestGarbageIsHungUpOn: strangers cost their own connection only.
func TestGarbageIsHungUpOn(t *testing.T) {
	b := newBed(t, Config{HandshakeTimeout: 2 * time.Second})
	self, err := decodeAddress(b.qp.Address())
	if err != nil {
		t.Fatal(err)
	}
	forged := encodeHello(self.token, token{1}, [nonceBytes]byte{}, make([]byte, secretBytes))
	unknown := encodeHello(token{9}, token{1}, [nonceBytes]byte{}, self.secret[:])
	newer := encodeHello(self.token, token{1}, [nonceBytes]byte{}, self.secret[:])
	newer[3]++
	t.Run("strangers", func(t *testing.T) {
		for name, data := range map[string][]byte{
			"nothing":  nil,
			"one byte": {PreambleByte},
			"TLS":      append([]byte{0x16, 3, 1}, make([]byte, helloBytes)...),
			"text": []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n and so on, long enough to fill all of a hello " +
				"message of this protocol"),
			"zeros":            make([]byte, 4096),
			"unknown pair":     unknown[:],
			"without secret":   forged[:],
			"newer version":    newer[:],
			"cut in the proof": forged[:helloBytes-1],
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				conn, err := net.Dial("tcp", b.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				_, _ = conn.Write(data)
				hungUp(t, conn)
			})
		}
	})
	b.good()
}

// TestDialerMustKnowBothSecrets: a dialer that knows only the acceptor's address is dropped, and the right peer
// connects afterwards.
func TestDialerMustKnowBothSecrets(t *testing.T) {
	b := newBed(t, Config{})
	peer := silent(t)
	failed := make(chan error, 1)
	go func() { failed <- b.qp.Connect(b.context(), peer.Address()) }()
	remote, err := decodeAddress(b.qp.Address())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []token{peer.shake.addr.token, {1, 2, 3}} {
		thief := silent(t)
		thief.shake.addr.token = name // the dialer's name may be known, its secret is not
		conn, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := thief.shake.greet(b.context(), conn, &remote, thief.advertise); err == nil {
			t.Error("connected without the secret")
		}
		_ = conn.Close()
	}
	if err := peer.Connect(b.context(), b.qp.Address()); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// TestAcceptorMustKnowBothSecrets: a dialer does not talk to an impostor at the peer's address.
func TestAcceptorMustKnowBothSecrets(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		var hi [helloBytes]byte
		_, _ = io.ReadFull(conn, hi[:])
		h, _ := decodeHello(hi[:])
		answer := encodeAccept(h.from, [nonceBytes]byte{}, 1, make([]byte, 32), hi[:])
		_, _ = conn.Write(answer[:])
		_, _ = io.Copy(io.Discard, conn)
	}()
	q := silent(t)
	victim := newAddress(l.Addr().String())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := q.Connect(ctx, victim.encode()); err == nil {
		t.Error("connected to an impostor")
	}
	<-served
}

// header is a frame with a good checksum.
func header(f frame) []byte {
	var b [frameBytes]byte
	f.encode(&b)
	return b[:]
}

// TestViolationsEndThePair: a peer that breaks the rules after a good handshake loses the pair, all work
// is flushed, and the device goes on.
func TestViolationsEndThePair(t *testing.T) {
	badCRC := header(frame{kind: frameAck})
	badCRC[20] ^= 1
	for name, data := range map[string][]byte{
		"bad checksum":      badCRC,
		"unknown kind":      header(frame{kind: 99}),
		"ack of nothing":    header(frame{kind: frameAck, ack: 1}),
		"ack far ahead":     header(frame{kind: frameAck, ack: 1 << 31}),
		"too many receives": header(frame{kind: frameAck, credit: maxQueueDepth + 1}),
		"receives taken back": append(header(frame{kind: frameAck, credit: 5}),
			header(frame{kind: frameAck, credit: 4})...),
		"answer without a read":  header(frame{kind: frameReadData, length: 8}),
		"nak of nothing":         header(frame{kind: frameNak, status: rdma.StatusLength}),
		"nak without status":     header(frame{kind: frameNak}),
		"too long":               header(frame{kind: frameSend, length: maxMessage + 1}),
		"half a header":          header(frame{kind: frameAck})[:20],
		"header without payload": header(frame{kind: frameSend, length: 50}),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, Config{})
			if err := b.qp.PostRecv(rdma.RecvWR{ID: 1, List: []rdma.SGE{{Region: b.mem, Length: 100}}}); err != nil {
				t.Fatal(err)
			}
			conn := b.raw()
			b.write(conn, data)
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if c := b.next(); c.ID != 1 || c.Status != rdma.StatusFlushed {
				t.Errorf("completion %+v", c)
			}
			hungUp(t, conn)
			b.good()
		})
	}
}

// TestSendsBeyondCreditEndThePair: a peer that ignores credits cannot make us hold its bytes.
func TestSendsBeyondCreditEndThePair(t *testing.T) {
	b := newBed(t, Config{})
	conn := b.raw()
	b.write(conn, header(frame{kind: frameSend}))
	hungUp(t, conn)
}

// TestTooManyReadsEndThePair: so are reads beyond what may be in flight.
func TestTooManyReadsEndThePair(t *testing.T) {
	b := newBed(t, Config{})
	conn := b.raw()
	one := header(frame{kind: frameRead, length: 1 << 20, key: uint64(b.mem.Key())})
	for range 200 {
		if _, err := conn.Write(one); err != nil {
			break
		}
	}
	hungUp(t, conn)
	b.good()
}

// TestStalledPeerHoldsNothing: a peer that stops in the middle of a write holds up neither the region's
// Close nor the pair's.
func TestStalledPeerHoldsNothing(t *testing.T) {
	b := newBed(t, Config{})
	conn := b.raw()
	b.write(conn, header(frame{kind: frameWrite, length: 8, key: uint64(b.mem.Key()), addr: 8}))
	b.write(conn, []byte("12345678"))
	half := append(header(frame{kind: frameWrite, length: 1 << 19, key: uint64(b.mem.Key())}), make([]byte, 1<<18)...)
	b.write(conn, half)
	var ack [frameBytes]byte
	if _, err := io.ReadFull(conn, ack[:]); err != nil {
		t.Fatal(err)
	}
	if err := b.mem.Close(); err != nil {
		t.Fatal(err)
	}
	b.write(conn, make([]byte, 1<<17))
	for { // the refusal comes behind acknowledgements
		if _, err := io.ReadFull(conn, ack[:]); err != nil {
			t.Fatal(err)
		}
		f, err := decodeFrame(ack[:])
		if err != nil {
			t.Fatal(err)
		}
		if f.kind == frameNak {
			if f.status != rdma.StatusRemoteAccess || f.ack != 1 {
				t.Errorf("refusal %+v", f)
			}
			break
		}
	}
	if err := b.qp.Close(); err != nil {
		t.Error(err)
	}
}

// TestPeerThatDoesNotRead: work for a peer whose socket is full ends at once by Close.
func TestPeerThatDoesNotRead(t *testing.T) {
	b := newBed(t, Config{})
	conn := b.raw()
	b.write(conn, header(frame{kind: frameAck, credit: 100}))
	wr := rdma.SendWR{Op: rdma.OpSend, List: []rdma.SGE{{Region: b.mem, Length: 1 << 20}}}
	for i := range 64 {
		wr.ID = uint64(i)
		if err := b.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.qp.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		if c := b.next(); c.ID != uint64(i) || c.Status != rdma.StatusFlushed {
			t.Fatalf("completion %d: %+v", i, c)
		}
	}
}

// FuzzPeer feeds frames with good checksums and any content to a pair.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 5, 0, 1, 2, 3, 4, 5}, uint64(0))
	f.Add([]byte{2, 0, 0, 0, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 0, 0, 0, 9, 0}, uint64(16))
	f.Add([]byte{7, 1, 0, 0, 0, 0}, uint64(0))
	f.Fuzz(func(t *testing.T, script []byte, addr uint64) {
		b := newBed(t, Config{})
		for i := range 4 {
			if err := b.qp.PostRecv(rdma.RecvWR{ID: uint64(i), List: []rdma.SGE{{Region: b.mem, Length: 100}}}); err != nil {
				t.Fatal(err)
			}
		}
		conn := b.raw()
		for len(script) >= 6 {
			fr := frame{kind: frameKind(script[0]), status: rdma.Status(script[1]), ack: uint32(script[2]),
				credit: uint32(script[3]),
				length: uint32(script[4]) | uint32(script[5])<<8, key: uint64(b.mem.Key()), addr: addr}
			script = script[6:]
			n := min(int(fr.length), len(script))
			if _, err := conn.Write(append(header(fr), script[:n]...)); err != nil {
				break
			}
			script = script[n:]
		}
		_ = conn.(*net.TCPConn).CloseWrite()
		hungUp(t, conn)
		for i := range 4 {
			if c := b.next(); c.ID != uint64(i) {
				t.Errorf("completion %d has id %d", i, c.ID)
			}
		}
		if err := b.dev.Close(); err != nil {
			t.Error(err)
		}
	})
}
