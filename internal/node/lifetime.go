package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
)

// lifetime is the run of a node: what ends it, and who works for it.
type lifetime struct {
	ctx    context.Context // ends when the node is to end
	cancel context.CancelFunc
	tasks  sync.WaitGroup // goroutines that end with ctx; the node waits for them

	ready   atomic.Bool           // everything is open, and the node does not end yet
	failure atomic.Pointer[error] // why the node ends by itself
	log     *slog.Logger
}

func newLifetime(ctx context.Context, log *slog.Logger) *lifetime {
	l := &lifetime{log: log}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

// err is why the node ends by itself, or nil.
func (l *lifetime) err() error {
	if why := l.failure.Load(); why != nil {
		return *why
	}
	return nil
}

// fail ends the node because of an error.
func (l *lifetime) fail(err error) {
	l.log.Error("node must end", "err", err)
	l.failure.CompareAndSwap(nil, &err)
	l.cancel()
}

// closer runs what was deferred, last first.
type closer struct{ steps []func() error }

func (c *closer) add(f func() error) { c.steps = append(c.steps, f) }

func (c *closer) Close() error {
	var errs error
	for i := len(c.steps) - 1; i >= 0; i-- {
		errs = errors.Join(errs, c.steps[i]())
	}
	c.steps = nil
	return errs
}
