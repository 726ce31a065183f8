package rendezvous

import (
	"net"
	"runtime"
	"sync"
	"testing"
	"time"
)

// guestRoom has its guests wait at the gate before the time that they may take to say something is set.
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

// TestDoorClosesOnAGuest has the door close when a stranger has just come in, who says nothing: nobody waits for him.
func TestDoorClosesOnAGuest(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	room := &guestRoom{Listener: inner, come: make(chan struct{}), gate: make(chan struct{})}
	d, err := openDoor(Config{Listener: room}, welcome{members: 2, detect: DefaultDetect})
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
