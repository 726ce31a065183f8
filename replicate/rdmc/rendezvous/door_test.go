package rendezvous

import (
	"net"
	"runtime"
	"sync"
	"testing"
	"time"
)

// guestRoom makes its guests wait at the gate before their time to say something is limited.
type guestRoom struct {
	net.Listener
	come chan struct{}
	gate chan struct{}
}

type guest struct {
	net.Conn
	room *guestRoom
	once sync.Once
}

func (r *guestRoom) Accept() (net.Conn, error) {
	conn, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &guest{Conn: conn, room: r}, nil
}

func (g *guest) SetReadDeadline(at time.Time) error {
	g.once.Do(func() {
		close(g.room.come)
		<-g.room.gate
	})
	return g.Conn.SetReadDeadline(at)
}

// TestDoorClosesOnAGuest: the door closes when a stranger has just come in that says nothing: nobody waits for the
// stranger.
func TestDoorClosesOnAGuest(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	room := &guestRoom{Listener: inner, come: make(chan struct{}), gate: make(chan struct{})}
	d, err := openDoor(Config{Listener: room}, welcome{members: 2})
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	<-room.come
	began := time.Now()
	var closing sync.WaitGroup
	closing.Go(d.close)
	for shut := false; !shut; runtime.Gosched() {
		d.mu.Lock()
		shut = d.shut
		d.mu.Unlock()
	}
	close(room.gate)
	closing.Wait()
	if took := time.Since(began); took > helloTimeout*3/4 {
		t.Errorf("it took %v", took)
	}
}

// TestDoorLetsInWhoWasStartedAgain: a member leaves while others are awaited, and comes again: it is let in. A second
// member of its rank is not.
func TestDoorLetsInWhoWasStartedAgain(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d, err := openDoor(Config{Listener: listener}, welcome{members: 3, blockSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	enter := func(rank int, want frameKind) net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if err := send(conn, frame{kind: kindHello, rank: rank}); err != nil {
			t.Fatal(err)
		}
		if f, err := receive(conn, maxFrame); err != nil || f.kind != want {
			t.Fatalf("rank %d is told %d %q, %v", rank, f.kind, f.text, err)
		}
		for want == kindWelcome { // until it is noted
			d.mu.Lock()
			in := d.in[rank]
			d.mu.Unlock()
			if in != nil && in.RemoteAddr().String() == conn.LocalAddr().String() || rank == 2 {
				break
			}
			runtime.Gosched()
		}
		return conn
	}
	enter(1, kindWelcome).Close()
	again := enter(1, kindWelcome)
	enter(1, kindRefused)
	enter(2, kindWelcome)
	in, err := d.admitAll(t.Context())
	if err != nil || len(in) != 2 || in[1].RemoteAddr().String() != again.LocalAddr().String() {
		t.Errorf("%v, %v", in, err)
	}
	for _, conn := range in {
		conn.Close()
	}
}
