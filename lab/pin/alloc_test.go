package pin

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// stuck is a device whose registrations end only on release.
type stuck struct {
	rdma.Device
	release chan struct{}
}

type stuckRegion struct {
	rdma.Region
	release chan struct{}
}

func (s *stuck) Register([]byte, rdma.Access) (rdma.Region, error) {
	return &stuckRegion{release: s.release}, nil
}

func (s *stuck) AllocRegion(int, rdma.Access) (rdma.Region, error) {
	return &stuckRegion{release: s.release}, nil
}

func (r *stuckRegion) Close() error {
	<-r.release
	return nil
}

// TestNobodyWaitsForeverForRoom: a device that does not end a registration costs who needs its bytes a bounded time
// and an error, also Try; when it has ended there is room.
func TestNobodyWaitsForeverForRoom(t *testing.T) {
	memory := pages(t, 4096)
	synctest.Test(t, func(t *testing.T) {
		dev := &stuck{release: make(chan struct{})}
		d := NewDomain(dev, Config{Budget: 4096})
		p, err := d.Try(Ask{Memory: memory, Keep: true})
		if err == nil {
			err = p.Release()
		}
		if err != nil {
			t.Fatal(err)
		}
		flushed := make(chan error, 1)
		go func() { flushed <- d.Flush() }()
		synctest.Wait()
		for name, take := range map[string]func() error{
			"Alloc":   func() error { _, err := d.Alloc(4096, 0); return err },
			"Reserve": func() error { _, err := d.Reserve(4096); return err },
			"Try":     func() error { _, err := d.Try(Ask{Memory: memory}); return err },
		} {
			began := time.Now()
			err := take()
			if took := time.Since(began); !errors.Is(err, ErrBudget) || took != endPatience {
				t.Errorf("%s: %v after %v", name, err, took)
			}
		}
		close(dev.release)
		if err := <-flushed; err != nil {
			t.Fatal(err)
		}
		again, err := d.Reserve(4096)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
