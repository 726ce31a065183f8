package fs

import (
	"context"
	"sync"
)

// lifetime is how long a mount works, and what works for it.
type lifetime struct {
	ctx  context.Context // ends with the mount
	stop context.CancelFunc
	late context.Context // for what is still proposed to the log after that: ends a bounded time later
	over context.CancelFunc
	work workers // publishes and watches under way
}

func newLifetime(ctx context.Context) *lifetime {
	lt := &lifetime{}
	lt.late, lt.over = context.WithCancel(context.WithoutCancel(ctx))
	lt.ctx, lt.stop = context.WithCancel(lt.late)
	return lt
}

// workers are the goroutines of a file system. Unlike with a WaitGroup, one may be started while somebody waits: a
// RELEASE can come at any time until the kernel's connection has ended.
type workers struct {
	mu      sync.Mutex
	running int
	none    chan struct{} // closed when running gets 0; nil while nobody waits
}

// Go starts a worker.
func (w *workers) Go(fn func()) {
	w.mu.Lock()
	w.running++
	w.mu.Unlock()
	go func() {
		defer w.ended()
		fn()
	}()
}

func (w *workers) ended() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running--; w.running == 0 && w.none != nil {
		close(w.none)
		w.none = nil
	}
}

// Wait waits for a moment in which none runs.
func (w *workers) Wait() {
	w.mu.Lock()
	if w.running == 0 {
		w.mu.Unlock()
		return
	}
	if w.none == nil {
		w.none = make(chan struct{})
	}
	none := w.none
	w.mu.Unlock()
	<-none
}
