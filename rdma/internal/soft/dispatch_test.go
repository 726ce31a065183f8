package soft

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// TestDispatchHandsOverAllInOrder: pushed with and without a Hold, from several goroutines, each completion is handed
// over once, those of one goroutine in their order, one call at a time.
func TestDispatchHandsOverAllInOrder(t *testing.T) {
	const pushers, each = 4, 5000
	q, err := NewCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	var next [pushers]uint64
	var inside atomic.Int32
	left := pushers * each
	all := make(chan struct{})
	handle := func(c *rdma.Completion) {
		if inside.Add(1) != 1 {
			t.Error("two calls at a time")
		}
		from := c.ID % pushers
		if c.ID/pushers != next[from] {
			t.Errorf("completion %d of %d, want %d", c.ID/pushers, from, next[from])
		}
		next[from]++
		if left--; left == 0 {
			close(all)
		}
		inside.Add(-1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- q.Dispatch(ctx, handle) }()
	var wg sync.WaitGroup
	for from := range uint64(pushers) {
		wg.Go(func() {
			for i := range uint64(each) {
				if held := i%3 > 0; held {
					q.Hold()
					q.Push(rdma.Completion{ID: i*pushers + from})
					q.Release()
				} else {
					q.Push(rdma.Completion{ID: i*pushers + from})
				}
			}
		})
	}
	wg.Wait()
	select {
	case <-all:
	case <-ctx.Done():
		t.Fatal("completions are missing")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Dispatch: %v", err)
	}
	q.Push(rdma.Completion{ID: 1 << 40}) // after the end nobody is called
	q.Hold()
	q.Release()
	if n := q.Poll(make([]rdma.Completion, 2)); n != 1 {
		t.Errorf("%d completions are left to poll, want 1", n)
	}
}

// TestReleaseGoesBackToWork: a goroutine that hands over what others push is relieved after a while.
func TestReleaseGoesBackToWork(t *testing.T) {
	q, err := NewCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	started := make(chan struct{})
	var calls atomic.Int32
	enough := make(chan struct{})
	handle := func(c *rdma.Completion) {
		switch n := calls.Add(1); {
		case n == 1:
			close(started)
		case n == 10*dispatchBatch*dispatchTurns:
			close(enough)
		case n < 10*dispatchBatch*dispatchTurns:
			q.Push(rdma.Completion{}) // never empty
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- q.Dispatch(ctx, handle) }()
	q.Push(rdma.Completion{})
	<-started
	q.Hold()
	q.Push(rdma.Completion{})
	returned := make(chan struct{})
	go func() { q.Release(); close(returned) }()
	for _, c := range []chan struct{}{returned, enough} {
		select {
		case <-c:
		case <-ctx.Done():
			t.Fatal("stuck")
		}
	}
	cancel()
	<-ended
}

// TestDispatchEndsWhileCompletionsCome: a queue that is never empty does not keep Dispatch from ending.
func TestDispatchEndsWhileCompletionsCome(t *testing.T) {
	q, err := NewCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	q.Push(rdma.Completion{})
	ended := make(chan error, 1)
	why := errors.New("enough")
	go func() {
		ended <- q.Dispatch(ctx, func(c *rdma.Completion) {
			q.Push(*c)
			cancel(why)
		})
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, why) {
			t.Errorf("Dispatch: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Dispatch goes on")
	}
}
