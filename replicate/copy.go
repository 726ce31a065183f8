package replicate

import (
	"context"
	"errors"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/content"
)

// localCopy is this node's copy of a session's content, from its first block to the vote: a Receiving while
// blocks come in, the stored content once it is finished. Blocks can be read back all the time.
type localCopy struct {
	store  Store
	id     content.ID
	recv   *content.Receiving
	layout *content.Layout

	mu      sync.Mutex
	idle    sync.Cond
	active  int             // reads of recv under way
	sealed  bool            // no more reads of it begin
	settled chan struct{}   // closed when a finish has ended, or none is to come
	reader  *content.Reader // after a good finish
	closed  bool
}

func newLocalCopy(store Store, recv *content.Receiving) *localCopy {
	c := &localCopy{store: store, id: recv.ID(), recv: recv, layout: recv.Layout(), settled: make(chan struct{})}
	c.idle.L = &c.mu
	return c
}

// readBlock reads a stored block of the stream into p.
func (c *localCopy) readBlock(i int64, p []byte) error {
	if c.enter() {
		defer c.leave()
		return c.recv.ReadBlock(i, p)
	}
	<-c.settled // a check and a sync: bounded by the disk
	c.mu.Lock()
	r, closed := c.reader, c.closed
	c.mu.Unlock()
	if r == nil || closed {
		return ErrClosed
	}
	return c.layout.ReadBlock(r, i, p)
}

func (c *localCopy) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sealed {
		return false
	}
	c.active++
	return true
}

func (c *localCopy) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active--; c.active == 0 {
		c.idle.Broadcast()
	}
}

// seal waits for reads of the Receiving and lets no more in.
func (c *localCopy) seal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed = true
	for c.active > 0 {
		c.idle.Wait()
	}
}

// sealedNow reports whether a finish was begun.
func (c *localCopy) sealedNow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sealed
}

// finish checks the bytes against the root and makes them durable: undecided. No write may be under way. It is
// called once; after a failure only close is left.
func (c *localCopy) finish(ctx context.Context, root content.Hash) error {
	c.seal()
	err := c.recv.Finish(ctx, root)
	var r *content.Reader
	if err == nil {
		r, err = c.store.OpenUndecided(c.id)
	}
	c.mu.Lock()
	c.reader = r
	c.mu.Unlock()
	close(c.settled)
	return err
}

// close lets go of the copy: what was received of an unfinished one is kept, or dropped with discard. No finish may be
// under way. Reads and writes that a worker of a failed group begins later fail.
func (c *localCopy) close(discard bool) error {
	c.seal()
	c.mu.Lock()
	r, closed := c.reader, c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	select {
	case <-c.settled:
	default:
		close(c.settled)
	}
	var err error
	if r != nil {
		err = r.Close()
	}
	if discard {
		return errors.Join(err, c.recv.Discard())
	}
	return errors.Join(err, c.recv.Close())
}
