package content

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// errOtherShape: a partial content was begun with another shape.
var errOtherShape = errors.New("other shape")

// resume opens what an earlier Receiving left and checks every block that it noted.
func (s *Store) resume(id, base ID, want *Shape) (*Receiving, error) {
	b, err := s.files.open(id, base, Partial, os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if want != nil && !want.Equal(b.layout.shape) {
		return nil, errors.Join(errOtherShape, b.close())
	}
	if err := s.opener.attachBase(b); err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.head.flags &^= flagComplete
	r := s.newReceiving(b, nil)
	ctx, cancel := context.WithTimeout(context.Background(), verifyLeftMax)
	defer cancel()
	if err := r.verifyLeft(ctx); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return r, nil
}

// verifyLeftMax bounds how long blocks of a partial content are looked at before its transfer goes on.
const verifyLeftMax = 10 * time.Second

// verifyLeft finds the whole blocks of a partial content. Blocks that it has not looked at when ctx ends are taken to
// be missing.
func (r *Receiving) verifyLeft(ctx context.Context) error {
	err := eachBlock(ctx, r.body.layout.Blocks(), func(i int64, sc *scratch) error {
		if !r.body.readRow(i, sc) {
			return nil
		}
		noted := sc.row
		block := sc.block[:r.body.layout.BlockLen(i)]
		if n, _ := r.body.stream.ReadAt(block, r.body.streamAt(i*BlockBytes)); n < len(block) {
			return nil
		}
		fillRow(&sc.row, block)
		if sc.row != noted {
			return nil
		}
		r.mu.Lock()
		r.have.Set(uint64(i))
		r.missing--
		r.mu.Unlock()
		return nil
	})
	if ctx.Err() != nil {
		r.s.log.Info("not all of a partial content was looked at", "content", r.body.id.String(), "missing blocks",
			r.Missing())
		return nil
	}
	return err
}

// eachBlock calls work for the numbers below n on as many goroutines as there are processors, each with
// its own scratch, and waits for them. The first error ends it.
func eachBlock(ctx context.Context, n int64, work func(i int64, sc *scratch) error) error {
	workers := min(int64(runtime.GOMAXPROCS(0)), n)
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		group.Go(func() {
			sc := scratches.Get().(*scratch)
			defer scratches.Put(sc)
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				err := ctx.Err()
				if err == nil {
					err = work(i, sc)
				}
				if err != nil {
					errs[w] = err
					next.Store(n)
					return
				}
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// Root computes the root of the content that was received, for the writer that announces it. All blocks must be here.
// For a delta it reads and hashes the blocks of the content that changed.
func (r *Receiving) Root(ctx context.Context) (Hash, error) {
	if missing := r.Missing(); missing > 0 {
		return Hash{}, fmt.Errorf("content: root of %s: %d blocks missing: %w", r.body.id, missing, ErrIncomplete)
	}
	if err := r.ownLeaves(ctx); err != nil {
		return Hash{}, err
	}
	if r.tree != nil {
		return r.tree.root(r.body.head.size), nil
	}
	if root, ok, err := r.rootOver(ctx); ok || err != nil {
		return root, err
	}
	return r.body.root(ctx)
}

// ownLeaves hashes the touched blocks of a delta as they are over the base.
func (r *Receiving) ownLeaves(ctx context.Context) error {
	b := r.body
	if b.base == nil || r.leavesDone {
		return nil
	}
	touched := make([]int64, 0, b.layout.leaves.Count())
	for i := range b.layout.leaves.Blocks {
		touched = append(touched, int64(i))
	}
	err := eachBlock(ctx, int64(len(touched)), func(index int64, sc *scratch) error {
		i := touched[index]
		block := sc.block[:blockLen(b.head.size, i)]
		if err := b.readAt(block, i*BlockBytes); err != nil {
			return err
		}
		leaf := Leaf(block)
		return b.writeLeaf(index, i, &leaf)
	})
	if err != nil {
		return fmt.Errorf("content: leaves of %s: %w", b.id, err)
	}
	r.leavesDone = true
	return nil
}

// Finish checks that the content has the given root and makes it durable: it is then undecided until
// [Store.Commit] or [Store.Abort]. ErrMismatch: the root is another one. After an error the Receiving is still
// to be closed; after success Close does nothing.
func (r *Receiving) Finish(ctx context.Context, root Hash) error {
	got, err := r.Root(ctx)
	if err != nil {
		return fmt.Errorf("content: finish: %w", err)
	}
	if got != root {
		return fmt.Errorf("content: finish %s: root is %s, not %s: %w", r.body.id, got, root, ErrMismatch)
	}
	if !r.end() {
		return fmt.Errorf("content: finish %s: %w", r.body.id, ErrClosed)
	}
	err = r.persist(root)
	if err != nil {
		r.mu.Lock()
		r.ended, r.broken = false, true
		r.mu.Unlock()
		return fmt.Errorf("content: finish %s: %w", r.body.id, noSpace(err))
	}
	if r.tree != nil {
		r.s.trees.put(r.body.id, r.tree) // the next delta is most often over this one
	}
	r.body.look()
	return r.release(func(e *entry) { e.state, e.checked, e.mark = Undecided, true, r.body.mark })
}

// end refuses all further calls; it returns false if they were refused already.
func (r *Receiving) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.broken {
		return false
	}
	r.ended = true
	return true
}

// persist makes the content durable: bytes, then sidecar, then its name.
func (r *Receiving) persist(root Hash) error {
	b := r.body
	if err := b.writeHeader(root, flagComplete); err != nil {
		return err
	}
	final := r.s.files.sidecarPath(b.id, b.head.base, Undecided)
	if m, inline := b.side.(image); inline {
		if err := r.s.files.writeNew(final, m); err != nil {
			return err
		}
		return r.s.files.syncShard(b.id)
	}
	if err := r.s.files.sync(b.streamFile); err != nil {
		return err
	}
	if err := r.s.files.sync(b.sideFile); err != nil {
		return err
	}
	if err := r.s.files.rename(r.s.files.sidecarPath(b.id, b.head.base, Partial), final); err != nil {
		return err
	}
	return r.s.files.syncShard(b.id)
}

// release closes the files and releases the entry.
func (r *Receiving) release(change func(*entry)) error {
	r.settle()
	return errors.Join(r.body.close(), r.s.index.unclaim(r.body.id, change))
}

// Close ends an unfinished Receiving and keeps what was received for [Store.Begin] or [Store.Resume]; small
// contents, and those whose Finish failed at the disk, keep nothing.
func (r *Receiving) Close() error {
	r.mu.Lock()
	done, broken := r.ended, r.broken
	r.ended = true
	r.mu.Unlock()
	if done {
		return nil
	}
	if broken || r.body.head.has(flagInline) {
		return r.drop(broken)
	}
	return r.release(nil)
}

// Discard ends an unfinished Receiving and drops what was received.
func (r *Receiving) Discard() error {
	r.mu.Lock()
	done, broken := r.ended, r.broken
	r.ended = true
	r.mu.Unlock()
	if done {
		return nil
	}
	return r.drop(broken)
}

// drop removes the content; after a failed Finish its sidecar may have its final name already.
func (r *Receiving) drop(broken bool) error {
	var err error
	if broken {
		err = r.s.files.unlink(r.s.files.sidecarPath(r.body.id, r.body.head.base, Undecided))
	}
	return errors.Join(err, r.release(kill))
}
