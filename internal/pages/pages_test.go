package pages

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// TestCloseWaitsForUsers: of several that close a region one is the first, and it goes on when no use is left.
func TestCloseWaitsForUsers(t *testing.T) {
	for range 200 {
		var u Uses
		u.Init()
		var wg sync.WaitGroup
		var using, firsts atomic.Int32
		for range 4 {
			wg.Go(func() {
				for range 10 {
					if !u.Acquire() {
						return
					}
					using.Add(1)
					using.Add(-1)
					u.Release()
				}
			})
		}
		for range 3 {
			wg.Go(func() {
				if !u.Close() {
					<-u.Ended()
					return
				}
				firsts.Add(1)
				<-u.Idle()
				if n := using.Load(); n != 0 || !u.Over() || !u.Stale() {
					t.Errorf("idle with %d users, over %t, stale %t", n, u.Over(), u.Stale())
				}
				u.End()
			})
		}
		wg.Wait()
		if n := firsts.Load(); n != 1 || u.Acquire() {
			t.Fatalf("%d were the first to close", n)
		}
	}
}

func TestMap(t *testing.T) {
	if _, err := Map(0); !errors.Is(err, rdma.ErrRequest) {
		t.Errorf("no bytes: %v", err)
	}
	mem, err := Map(hugeBytes)
	if err != nil || len(mem) != hugeBytes {
		t.Fatalf("%d bytes, %v", len(mem), err)
	}
	if err := unix.Munmap(mem); err != nil {
		t.Error(err)
	}
}
