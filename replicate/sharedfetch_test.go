package replicate

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// TestBlockIsFetchedOnce: many readers of the pieces of a block, as the kernel reads ahead, cost one fetch of it.
func TestBlockIsFetchedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers = 8
		var asked atomic.Int32
		entered := make(chan struct{})
		n, id, b := heldByTwo(t, func(ctx context.Context, _ meta.NodeID, _ func(int64)) error {
			asked.Add(1)
			select {
			case <-entered:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		remote := n.replicator().remote
		rr := &remoteReader{r: remote, ctx: t.Context(), cancel: func() {}}
		var err error
		if rr.content, err = n.db.Content(id); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(b); i += content.BlockBytes {
			rr.leaves = append(rr.leaves, content.Leaf(b[i:min(i+content.BlockBytes, len(b))]))
		}
		var all sync.WaitGroup
		for i := range int64(readers) {
			all.Go(func() {
				piece := make([]byte, content.BlockBytes/readers)
				off := i * int64(len(piece))
				if _, err := rr.ReadAt(piece, off); err != nil || !bytes.Equal(piece, b[off:][:len(piece)]) {
					t.Errorf("piece %d: %v", i, err)
				}
			})
		}
		n.c.eventually("all wait for the fetch", func() bool {
			remote.shared.mu.Lock()
			defer remote.shared.mu.Unlock()
			for _, f := range remote.shared.running {
				return f.readers == readers
			}
			return false
		})
		close(entered)
		all.Wait()
		if got := asked.Load(); got != 1 {
			t.Errorf("%d questions for one block", got)
		}
		if left := len(remote.shared.running); left != 0 {
			t.Errorf("%d fetches still run", left)
		}
	})
}

// TestSharedFetchEndsWithItsLastReader: who gives up costs the others nothing, and the fetch ends with the last.
func TestSharedFetchEndsWithItsLastReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sharedFetches{running: map[fetchKey]*sharedFetch{}}
		ended, answer := 0, make(chan []byte)
		fetch := func(ctx context.Context) ([]byte, error) {
			select {
			case b := <-answer:
				return b, nil
			case <-ctx.Done():
				ended++
				return nil, ctx.Err()
			}
		}
		var readers sync.WaitGroup
		read := func() (giveUp func(), got *[]byte, failed *error) {
			ctx, cancel := context.WithCancel(t.Context())
			got, failed = new([]byte), new(error)
			readers.Go(func() { *got, *failed = s.get(ctx, fetchKey{}, fetch) })
			synctest.Wait()
			return cancel, got, failed
		}
		giveUp, _, failed := read()
		alsoGivesUp, got, alsoFailed := read()
		giveUp()
		synctest.Wait()
		if ended != 0 || !errors.Is(*failed, context.Canceled) || *alsoFailed != nil {
			t.Fatalf("the first gave up: %d ended, %v, %v", ended, *failed, *alsoFailed)
		}
		answer <- []byte("block")
		readers.Wait()
		if string(*got) != "block" || *alsoFailed != nil || ended != 0 {
			t.Fatalf("the second got %q, %v", *got, *alsoFailed)
		}
		alsoGivesUp()

		giveUp, _, failed = read()
		alsoGivesUp, _, alsoFailed = read()
		giveUp()
		alsoGivesUp()
		readers.Wait()
		if ended != 1 || !errors.Is(*failed, context.Canceled) || !errors.Is(*alsoFailed, context.Canceled) {
			t.Fatalf("both gave up: %d ended, %v, %v", ended, *failed, *alsoFailed)
		}
		if len(s.running) != 0 {
			t.Errorf("still running: %v", s.running)
		}
	})
}
