package tcp

import (
	"errors"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// TestNobodyStaysParked has a dialer parked just when Connect ends: its connection is closed, as nobody will ever take
// it.
func TestNobodyStaysParked(t *testing.T) {
	d, err := New(Config{Advertise: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	cq, err := d.NewCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Close()
	qp, err := d.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	q := qp.(*queuePair)
	if err := q.beginConnect(func(error) {}); err != nil {
		t.Fatal(err)
	}
	late, dialer := net.Pipe()
	q.mu.Lock()
	ended := make(chan error)
	go func() { ended <- q.endConnect(nil, 0, io.EOF) }()
	for range 1000 {
		runtime.Gosched()
	}
	q.shake.hello <- parked{conn: late} // as park does, under the lock
	q.mu.Unlock()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	select {
	case <-q.shake.hello:
		late.Close()
		t.Error("it is parked for ever")
	default:
	}
	if _, err := dialer.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
