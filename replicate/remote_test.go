package replicate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// holderPeers answers the questions of a reader as a test says; other calls go through.
type holderPeers struct {
	nodePeers
	before func(ctx context.Context, to meta.NodeID, moved func(int64)) error
}

func (p *holderPeers) CallMoving(
	ctx context.Context, node meta.NodeID, kind Kind, payload []byte, moved func(left int64),
) ([]byte, error) {
	if kind == KindFetch || kind == KindLeaves {
		if err := p.before(ctx, node, moved); err != nil {
			return nil, err
		}
	}
	return p.Call(ctx, node, kind, payload)
}

// heldByTwo is a cluster with a content that two nodes hold, and node 4 as a reader of it whose questions before sees.
func heldByTwo(
	t *testing.T, before func(ctx context.Context, to meta.NodeID, moved func(int64)) error,
) (*testNode, meta.ContentID, []byte) {
	t.Helper()
	c := newCluster(t, 4, 1)
	c.setLeaderless()
	c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2}})
	ino := c.create(1, "f")
	b := randomBytes(4, 1<<20+17)
	out, err := c.node(1).publish(ino, meta.ContentID{}, b)
	if err != nil {
		t.Fatal(err)
	}
	holders, err := c.node(1).db.Holders(out.Content)
	if err != nil || len(holders) != 2 {
		t.Fatalf("holders %v, %v", holders, err)
	}
	for _, n := range c.all() {
		if !slices.Contains(holders, n.id) {
			n.stop()
			n.peers = &holderPeers{nodePeers: nodePeers{n}, before: before}
			n.start()
			return n, out.Content, b
		}
	}
	t.Fatal("all nodes hold it")
	return nil, out.Content, nil
}

// TestReaderWaitsAsLongAsBytesCome: each question takes longer than a silent holder is waited for.
func TestReaderWaitsAsLongAsBytesCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tuning := testTuning()
		silent := tuning.fetchSilent()
		n, id, b := heldByTwo(t, func(ctx context.Context, _ meta.NodeID, moved func(int64)) error {
			for range 8 {
				select {
				case <-time.After(silent / 5):
					moved(0)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
		n.wantBytes(id, b)
	})
}

// TestReaderAsksAgain: holders that can't be reached for a while cost no reader an error.
func TestReaderAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		n, id, b := heldByTwo(t, func(context.Context, meta.NodeID, func(int64)) error {
			if asked.Add(1) <= 6 { // three times each
				return errors.New("connection refused")
			}
			return nil
		})
		n.wantBytes(id, b)
	})
}

// TestSilentHolderCostsItsTimeOnce: of two blocks and the leaves only the first question waits for it.
func TestSilentHolderCostsItsTimeOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked := 0
		var silent meta.NodeID
		n, id, b := heldByTwo(t, func(ctx context.Context, to meta.NodeID, _ func(int64)) error {
			mu.Lock()
			if silent == 0 {
				silent = to
			}
			mute := to == silent
			if mute {
				asked++
			}
			mu.Unlock()
			if mute {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		n.wantBytes(id, b)
		n.wantBytes(id, b)
		mu.Lock()
		defer mu.Unlock()
		if asked != 1 {
			t.Errorf("a holder that is silent was asked %d times", asked)
		}
	})
}
