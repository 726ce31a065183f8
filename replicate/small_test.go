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

// pacedPeers reports how the bytes of the puts to a node go, in steps of 300 ms. Other calls go through.
type pacedPeers struct {
	nodePeers
	steps func(to meta.NodeID) []int64 // what is left after each step
}

func (p *pacedPeers) CallMoving(
	ctx context.Context, node meta.NodeID, kind Kind, payload []byte, moved func(left int64),
) ([]byte, error) {
	for _, left := range p.steps(node) {
		select {
		case <-time.After(300 * time.Millisecond):
			if moved != nil {
				moved(left)
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return p.Call(ctx, node, kind, payload)
}

// pace gives a node's puts a pace. It starts the node's Replicator again.
func (n *testNode) pace(steps func(to meta.NodeID) []int64) {
	n.stop()
	n.peers = &pacedPeers{nodePeers: nodePeers{n}, steps: steps}
	n.start()
}

// holdersAre fails the test unless the log holds these nodes for the holders of a content.
func (c *cluster) holdersAre(id meta.ContentID, want ...meta.NodeID) {
	c.t.Helper()
	got, err := c.node(1).db.Holders(id)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		c.t.Errorf("holders of %v are %v, %v; want %v", id, got, err, want)
	}
}

// falling is a way from 1 MiB to nothing, in steps.
func falling(steps int) (out []int64) {
	for i := steps - 1; i >= 0; i-- {
		out = append(out, int64(i)<<20/int64(steps))
	}
	return out
}

// TestSmallContentIsJudgedByItsProgress: it takes as long as its bytes go, beyond all the times of a session in which
// nothing moves.
func TestSmallContentIsJudgedByItsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 3)
		c.setLeaderless()
		c.node(1).tuning.Stuck, c.node(1).tuning.Silent = 2*time.Second, 5*time.Second
		c.node(1).pace(func(meta.NodeID) []int64 { return falling(16) }) // 4.8 s
		ino := c.create(1, "f")
		out, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, 50_000))
		if err != nil {
			t.Fatal(err)
		}
		c.holdersAre(out.Content, 1, 2, 3)
	})
}

// TestSlowLinkHoldsNoSmallContent: the others have it at once, one link would take 2 minutes.
func TestSlowLinkHoldsNoSmallContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		c.setLeaderless()
		c.node(1).pace(func(to meta.NodeID) []int64 {
			if to == 3 {
				return falling(400)
			}
			return nil
		})
		ino := c.create(1, "f")
		began := time.Now()
		out, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, 50_000))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("close took %v", took)
		}
		c.holdersAre(out.Content, 1, 2, 4)
		if why := c.node(1).rep.transfers.whySlow(3, out.Content); why == "" {
			t.Error("nobody knows why node 3 is owed the content")
		}
		other := out.Content
		other.Seq++
		if why := c.node(1).rep.transfers.whySlow(3, other); why != "" {
			t.Errorf("node 3 is owed another content because of this one: %s", why)
		}
	})
}

// TestWhyAMemberIsOwedASmallContent: one member acknowledges nothing, another has all bytes and does not answer.
func TestWhyAMemberIsOwedASmallContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, 3)
		c.setLeaderless()
		c.node(1).tuning.Silent = time.Second
		c.node(1).pace(func(to meta.NodeID) []int64 {
			switch to {
			case 3:
				return slices.Repeat([]int64{50_000}, 400)
			case 4:
				return slices.Repeat([]int64{0}, 400)
			}
			return nil
		})
		out, err := c.node(1).publish(c.create(1, "f"), meta.ContentID{}, randomBytes(1, 50_000))
		if err != nil {
			t.Fatal(err)
		}
		c.holdersAre(out.Content, 1, 2, 5)
		for node, want := range map[meta.NodeID]meta.OwedReason{3: meta.OwedUnreachable, 4: meta.OwedSlow} {
			if got := owedReasons(t, c.node(1).db, node)[out.Content]; got != want {
				t.Errorf("node %d is owed it for the reason %q, want %q", node, got, want)
			}
		}
	})
}

// TestTwoSlowLinksHoldNoSmallContent: two links would take 2 minutes, and neither is ever served alone.
func TestTwoSlowLinksHoldNoSmallContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, 3)
		c.setLeaderless()
		c.node(1).pace(func(to meta.NodeID) []int64 {
			if to == 3 || to == 4 {
				return falling(400)
			}
			return nil
		})
		ino := c.create(1, "f")
		began := time.Now()
		out, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, 50_000))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("close took %v", took)
		}
		c.holdersAre(out.Content, 1, 2, 5)
	})
}

// TestSlowLinkIsLeftOutBesideOtherPuts: short puts to another member come and go all the time. They do not hide that
// one link would take 2 minutes.
func TestSlowLinkIsLeftOutBesideOtherPuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		c.setLeaderless()
		c.node(1).pace(func(to meta.NodeID) []int64 {
			if to == 3 {
				return falling(400)
			}
			return nil
		})
		ino := c.create(1, "f")
		ctx, cancel := context.WithCancel(context.Background())
		var others sync.WaitGroup
		defer others.Wait()
		defer cancel()
		others.Go(func() {
			p := &c.node(1).rep.pusher.sharing
			for ctx.Err() == nil {
				p.begin(2, time.Now())
				pause(ctx, SystemClock(), 50*time.Millisecond)
				p.end(2, time.Now())
				pause(ctx, SystemClock(), 100*time.Millisecond)
			}
		})
		out, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, 50_000))
		if err != nil {
			t.Fatal(err)
		}
		c.holdersAre(out.Content, 1, 2, 4)
	})
}

// TestBytesSentAgainAreNoProgress: a member whose connection breaks again and again does not hold close for ever.
func TestBytesSentAgainAreNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 1)
		c.setLeaderless()
		c.node(1).tuning.Stuck = 2 * time.Second
		c.node(1).pace(func(meta.NodeID) []int64 { return falling(4) })
		c.setCalls(func(_, _ meta.NodeID, kind Kind) error {
			if kind == KindPut {
				return errNoSuchNode
			}
			return nil
		})
		ino := c.create(1, "f")
		if _, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, 50_000)); !errors.Is(err, ErrCopies) {
			t.Fatalf("%v, want too few copies", err)
		}
	})
}

// TestSmallIsAskedAgain: a member that is needed and could not be reached for a moment is asked again, and the close
// goes on.
func TestSmallIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 2)
		ino := c.create(1, "f")
		var refused atomic.Int32
		c.setCalls(func(from, to meta.NodeID, kind Kind) error {
			if kind == KindPut && from == 1 && to == 2 && refused.Add(1) <= 4 {
				return errors.New("no route for a moment")
			}
			return nil
		})
		b := randomBytes(1, 100_000)
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatalf("after %d puts: %v", refused.Load(), err)
		}
		if n := refused.Load(); n < 5 || n > 6 {
			t.Errorf("%d puts, want two at once, two a second later, and one that is taken", n)
		}
		c.node(2).wantBytes(out.Content, b)
	})
}
