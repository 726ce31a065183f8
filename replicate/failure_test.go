package replicate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// owedReasons returns the contents that are owed to a node, with the reasons.
func owedReasons(t *testing.T, db *meta.DB, node meta.NodeID) map[meta.ContentID]meta.OwedReason {
	t.Helper()
	list, err := db.OwedTo(node, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[meta.ContentID]meta.OwedReason)
	for _, o := range list {
		out[o.Content] = o.Reason
	}
	return out
}

func TestMemberDiesInMidTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		c.setLeaderless()
		ino := c.create(1, "f")
		b := randomBytes(1, 10<<20)
		var once sync.Once
		var blocks atomic.Int64
		c.hub.setBlock(func(to meta.NodeID, i uint64) error {
			if to == 3 {
				blocks.Add(1)
			}
			if to == 3 && i >= 60 {
				once.Do(c.node(3).cut)
				return errNoSuchNode
			}
			return nil
		})
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Result.Owed) != 1 || out.Result.Owed[0] != 3 {
			t.Fatalf("owed %v, want node 3", out.Result.Owed)
		}
		for _, id := range []meta.NodeID{1, 2, 4} {
			c.node(id).wantBytes(out.Content, b)
		}
		if got := owedReasons(t, c.node(1).db, 3)[out.Content]; got != meta.OwedUnreachable {
			t.Errorf("owed for reason %d, want unreachable", got)
		}
		// It comes back with what it has, and gets the rest without a command.
		blocks.Store(0)
		c.hub.setBlock(func(to meta.NodeID, i uint64) error {
			if to == 3 {
				blocks.Add(1)
			}
			return nil
		})
		c.node(3).stop()
		c.declareDown(3)
		c.node(3).start()
		c.setLeader()
		c.settled()
		c.node(3).wantBytes(out.Content, b)
		if n := blocks.Load(); n == 0 || n > 160-40 {
			t.Errorf("%d blocks of 64 KiB were sent again; it had most of the first 60 of 160", n)
		}
	})
}

func TestOnlyMissingBlocksAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		c.setLeaderless()
		ino := c.create(1, "f")
		b := randomBytes(1, 10<<20)
		var perNode [5]atomic.Int64
		var once sync.Once
		c.hub.setBlock(func(to meta.NodeID, i uint64) error {
			perNode[to].Add(1)
			if to == 4 && i >= 120 {
				once.Do(c.node(4).cut)
				return errNoSuchNode
			}
			return nil
		})
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		c.node(2).wantBytes(out.Content, b)
		if n := perNode[2].Load(); n > 160+16 {
			t.Errorf("member 2 was given %d blocks of 160: what it had was sent again", n)
		}
		if got := c.node(1).rep.Counters(); got.Epochs == 0 || got.Ejected != 1 {
			t.Errorf("counters %+v, want an epoch and one ejection", got)
		}
	})
}

func TestStalledMemberIsEjectedAndOthersFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 3)
		c.setLeaderless()
		ino := c.create(1, "f")
		b := randomBytes(2, 6<<20)
		release := make(chan struct{})
		var once sync.Once
		c.hub.setBlock(func(to meta.NodeID, i uint64) error {
			if to != 3 || i < 10 {
				return nil
			}
			<-release
			return nil
		})
		// A stopped process answers nothing.
		c.setCalls(func(from, to meta.NodeID, kind Kind) error {
			if to == 3 && kind == KindFinish {
				<-release
			}
			return nil
		})
		defer once.Do(func() { close(release) })
		go func() { // the hub gives up on the stopped member when the root has failed the group
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for c.hub.unended(1) == 0 {
				select {
				case <-tick.C:
				case <-t.Context().Done():
					return
				}
			}
			once.Do(func() { close(release) })
		}()
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Result.Owed) != 1 || out.Result.Owed[0] != 3 {
			t.Fatalf("owed %v, want node 3", out.Result.Owed)
		}
		c.node(2).wantBytes(out.Content, b)
	})
}

func TestTooFewCopiesIsAnErrorAndAborts(t *testing.T) {
	t.Parallel() // waits for seconds
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{5000, 3 << 20} {
			c := newCluster(t, 3, 3)
			c.setLeaderless()
			ino := c.create(1, "f")
			c.node(2).cut()
			c.node(3).cut()
			_, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, size))
			if !errors.Is(err, ErrCopies) {
				t.Fatalf("size %d: error %v, want ErrCopies", size, err)
			}
			if strings.Contains(err.Error(), "reason") || !strings.Contains(err.Error(), "; node 3: unreachable") {
				t.Errorf("size %d: %q; versions lists it, in words", size, err)
			}
			i, err := c.node(1).db.Inode(ino)
			if err != nil || i.Version != 0 {
				t.Fatalf("inode %+v, %v: nothing may be published", i, err)
			}
			c.eventually("session aborted in the log", func() bool {
				over, err := c.node(1).db.Decided(meta.ContentID{Node: 1, Incarnation: 1, Seq: 1})
				return err == nil && over
			})
			c.eventually("nothing is left of it", func() bool {
				return len(c.node(1).store.List(content.Undecided))+len(c.node(1).store.List(content.Partial)) == 0
			})
		}
	})
}

func TestFullMemberIsOwedWithTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{200_000, 3 << 20} {
			c := newCluster(t, 3, 3)
			c.setLeaderless()
			c.node(3).stop()
			c.node(3).full = true
			c.node(3).start()
			ino := c.create(1, "f")
			out, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, size))
			if err != nil {
				t.Fatal(err)
			}
			if got := owedReasons(t, c.node(1).db, 3)[out.Content]; got != meta.OwedFull {
				t.Errorf("size %d: owed for reason %d, want full", size, got)
			}
		}
	})
}

// fill starts nodes again with stores that take nothing.
func (c *cluster) fill(ids ...meta.NodeID) {
	c.t.Helper()
	for _, id := range ids {
		n := c.node(id)
		n.stop()
		n.full = true
		n.start()
	}
}

// Where a policy asks for a number of copies, others stand in for nodes that have no room, at the first file too. When
// a full node has room it gets its files.
func TestOthersStandInForFullNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 1}})
		c.fill(2, 3)
		owed := map[meta.NodeID][]meta.ContentID{}
		for i := range 12 {
			ino := c.create(1, fmt.Sprint(i))
			file, err := c.node(1).db.Inode(ino)
			if err != nil {
				t.Fatal(err)
			}
			members, err := c.node(1).db.Members(file.Policy, ino)
			if err != nil || len(members) != 1 {
				t.Fatal(members, err)
			}
			out, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(uint64(i), []int{200_000, 3 << 20}[i%2]))
			if err != nil {
				t.Fatalf("file %d, of node %d: %v", i, members[0], err)
			}
			holders, err := c.node(1).db.Holders(out.Content)
			if err != nil || len(holders) != 1 || holders[0] == 2 || holders[0] == 3 {
				t.Errorf("file %d, of node %d, is at %v: %v", i, members[0], holders, err)
			}
			if full := members[0]; full == 2 || full == 3 {
				owed[full] = append(owed[full], out.Content)
				if got := owedReasons(t, c.node(1).db, full)[out.Content]; got != meta.OwedFull {
					t.Errorf("file %d is owed to node %d for reason %v, want full", i, full, got)
				}
			}
		}
		if len(owed) != 2 {
			t.Fatalf("only nodes %v were chosen", owed)
		}
		for id, list := range owed {
			n := c.node(id)
			n.stop()
			n.full = false
			n.start()
			c.eventually("with room, the node gets its files", func() bool {
				for _, content := range list {
					if holds, err := n.db.Holds(id, content); err != nil || !holds {
						return false
					}
				}
				return true
			})
		}
	})
}

// A push that has too few copies for lack of room alone, here or elsewhere, says so.
func TestNoNodeHasRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, policy := range map[string]meta.Policy{
			"all":         {Placement: meta.PlaceAll, MinCopies: 2},
			"one copy":    {Placement: meta.PlaceCopies, Copies: 1, Labels: map[string]string{"kind": "disk"}},
			"both copies": {Placement: meta.PlaceCopies, Copies: 2, Labels: map[string]string{"kind": "disk"}},
		} {
			c := newClusterWith(t, 3, 1, func(id meta.NodeID) map[string]string {
				if id == 1 {
					return nil
				}
				return map[string]string{"kind": "disk"}
			})
			c.must(1, &meta.SetPolicy{Dir: 0, Policy: &policy})
			c.fill(2, 3)
			for i, size := range []int{200_000, 3 << 20} {
				_, err := c.node(1).publish(c.create(1, fmt.Sprint(i)), meta.ContentID{}, randomBytes(1, size))
				if !errors.Is(err, ErrNoSpace) {
					t.Errorf("%s, %d bytes: %v, want ErrNoSpace", name, size, err)
				}
			}
			if policy.Copies != 2 {
				continue
			}
			c.node(3).stop()
			_, err := c.node(1).publish(c.create(1, "g"), meta.ContentID{}, randomBytes(1, 200_000))
			if !errors.Is(err, ErrCopies) || errors.Is(err, ErrNoSpace) {
				t.Errorf("%s, and one node does not answer: %v, want ErrCopies", name, err)
			}
		}
	})
}

// What a node said of its room counts for its incarnation, and for a while.
func TestWordOfRoomPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 1)
		clock := &handClock{now: time.Unix(1, 0)}
		b := newRoomBook(Config{Clock: clock, Names: c.node(1).db, Logger: slog.New(slog.DiscardHandler)})
		nodes, err := c.node(1).db.Nodes()
		if err != nil {
			t.Fatal(err)
		}
		lacking := func(what string, bytes int64, want ...meta.NodeID) {
			t.Helper()
			if got := b.lacking(nodes, bytes); !slices.Equal(got, want) {
				t.Errorf("%s: no room for %d bytes at %v, want %v", what, bytes, got, want)
			}
		}
		lacking("nothing was said", 1<<40)
		b.note(2, NoRoom{FreeBytes: 100, NeedBytes: 500})
		lacking("said", 100)
		lacking("said", 101, 2)
		b.refused(2, 50)
		lacking("refused", 50, 2)
		lacking("refused", 49)
		clock.now = clock.now.Add(roomGood)
		lacking("long ago", 101)
		b.refused(2, 50)
		lacking("refused again", 50, 2)
		b.forget(2)
		lacking("room again", 50)
		b.refused(2, 50)
		c.restart(2)
		lacking("another incarnation", 50)
	})
}

func TestFullWriterGetsNoSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, 1)
		c.node(1).stop()
		c.node(1).full = true
		c.node(1).start()
		ino := c.create(1, "f")
		for _, size := range []int{200_000, 3 << 20} {
			_, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, size))
			if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("size %d: error %v, want ErrNoSpace and ENOSPC", size, err)
			}
		}
	})
}

// vanishing fails every read after some bytes, or blocks.
type vanishing struct {
	io.ReaderAt
	reads atomic.Int64
	at    int64
	err   error
	wait  chan struct{}
}

func (v *vanishing) ReadAt(p []byte, off int64) (int, error) {
	if v.reads.Add(1) > v.at {
		if v.wait != nil {
			<-v.wait
		}
		if v.err != nil {
			return 0, v.err
		}
	}
	return v.ReaderAt.ReadAt(p, off)
}

func TestFailingSourceEndsThePush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 3)
		ino := c.create(1, "f")
		b := randomBytes(1, 8<<20)
		src := &vanishing{ReaderAt: bytes.NewReader(b), at: 3, err: syscall.EIO}
		_, err := c.node(1).rep.Publish(t.Context(), Push{Ino: ino, Size: int64(len(b)), Source: src,
			Data: []Extent{{0, int64(len(b))}}})
		if !errors.Is(err, syscall.EIO) {
			t.Fatalf("error %v, want the source's EIO", err)
		}
		c.eventually("nothing is left on any node", func() bool {
			for _, n := range c.all() {
				for _, state := range []content.State{content.Undecided, content.Partial, content.Committed} {
					if len(n.store.List(state)) > 0 {
						return false
					}
				}
			}
			return true
		})
	})
}

// TestCancelDoesNotWaitForTheSource: the source of a push hangs for ever; nothing else would end the push.
func TestCancelDoesNotWaitForTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 3)
		for _, n := range c.all() {
			n.stop()
			n.tuning.Stuck = time.Hour
			n.start()
		}
		ino := c.create(1, "f")
		b := randomBytes(1, 8<<20)
		wait := make(chan struct{})
		defer close(wait)
		src := &vanishing{ReaderAt: bytes.NewReader(b), at: 3, wait: wait}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		ended := make(chan error, 1)
		go func() {
			_, err := c.node(1).rep.Publish(ctx, Push{Ino: ino, Size: int64(len(b)), Source: src,
				Data: []Extent{{0, int64(len(b))}}})
			ended <- err
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a cancelled push waits for its source")
		}
	})
}

func TestConflictKeepsTheLoser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 3)
		ino := c.create(1, "f")
		b0, b1, b2 := randomBytes(1, 2<<20), randomBytes(2, 2<<20), randomBytes(3, 50_000)
		base, err := c.node(1).publish(ino, meta.ContentID{}, b0)
		if err != nil {
			t.Fatal(err)
		}
		first, err := c.node(2).publish(ino, base.Content, b1)
		if err != nil {
			t.Fatal(err)
		}
		second, err := c.node(3).publish(ino, base.Content, b2)
		if err != nil {
			t.Fatal(err)
		}
		if first.Result.Conflict || !second.Result.Conflict {
			t.Fatalf("conflict %v, %v", first.Result.Conflict, second.Result.Conflict)
		}
		for _, n := range c.all() {
			i, err := n.db.Inode(ino)
			if err != nil || i.Content != second.Content {
				t.Fatalf("node %d: current %v, %v", n.id, i.Content, err)
			}
			n.wantBytes(first.Content, b1)
			n.wantBytes(second.Content, b2)
		}
	})
}

func TestUnknownOutcomeIsResolvedFromTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 3)
		ino := c.create(1, "f")
		n := c.node(1)
		var held *meta.Publish
		n.mu.Lock()
		n.propose = func(op meta.Op) error {
			if p, ok := op.(*meta.Publish); ok {
				held = p
				return ErrUnknown
			}
			return nil
		}
		n.mu.Unlock()
		_, err := n.publish(ino, meta.ContentID{}, randomBytes(1, 100_000))
		if !errors.Is(err, ErrUnknown) {
			t.Fatalf("error %v, want ErrUnknown", err)
		}
		for _, m := range c.all() {
			if state, ok := m.store.State(storeID(held.Session)); !ok || state != content.Undecided {
				t.Errorf("node %d: the vote must stay: %v %v", m.id, state, ok)
			}
		}
		c.must(1, held) // the log had it after all
		c.eventually("committed", func() bool { return c.node(2).heldHere(held.Session) })
	})
}

// A publish that waited for the log until its time was over, and was not proposed, leaves no votes behind.
func TestPublishThatWasNotProposedInTimeEndsItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 3)
		ino := c.create(1, "f")
		n := c.node(1)
		n.mu.Lock()
		n.propose = func(op meta.Op) error {
			if _, ok := op.(*meta.Publish); ok {
				<-time.After(proposeMax + time.Second) // as for the outcome of an earlier change
			}
			return nil
		}
		n.mu.Unlock()
		if _, err := n.publish(ino, meta.ContentID{}, randomBytes(1, 100_000)); err == nil || errors.Is(err, ErrUnknown) {
			t.Fatalf("not proposed: %v", err)
		}
		c.eventually("no votes", func() bool {
			return !slices.ContainsFunc(c.all(), func(m *testNode) bool {
				return len(m.store.List(content.Undecided)) > 0
			})
		})
	})
}

func TestAckLocalAnswersAtOnceAndDeliversBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{50_000, 3 << 20} {
			c := newCluster(t, 3, 3)
			c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{AckLocal: true}})
			ino := c.create(1, "f")
			b := randomBytes(9, size)
			feed := c.node(1).replicator().FollowTransfers()
			out, err := c.node(1).publish(ino, meta.ContentID{}, b)
			if err != nil {
				t.Fatal(err)
			}
			if len(out.Result.Owed) != 2 {
				t.Fatalf("owed %v, want both others", out.Result.Owed)
			}
			ended, _, _ := feed.Take()
			feed.Close()
			if len(ended) == 0 || ended[0].Ending != EndPublished || len(ended[0].Members) != 2 {
				t.Fatalf("ended %+v", ended)
			}
			for _, m := range ended[0].Members { // none was slow, or left out
				if m.State != session.MemberAsked.String() || m.Reason != 0 || !strings.Contains(m.Text, "--ack local") {
					t.Errorf("%d bytes: %+v", size, m)
				}
			}
			c.settled()
			for _, n := range c.all() {
				n.wantBytes(out.Content, b)
			}
		}
	})
}

func TestMemberDeclaredDownIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{60_000, 3 << 20} {
			c := newCluster(t, 2, 1)
			ino := c.create(1, "f")
			release := make(chan struct{})
			c.setCalls(func(from, to meta.NodeID, kind Kind) error {
				if to == 2 {
					<-release // a cut without a word
					return errNoSuchNode
				}
				return nil
			})
			time.AfterFunc(300*time.Millisecond, func() {
				c.node(2).cut()
				c.declareDown(2)
			})
			out, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, size))
			close(release)
			if err != nil {
				t.Fatalf("size %d: %v: one node is left, so one copy is enough", size, err)
			}
			if len(out.Result.Owed) != 1 {
				t.Errorf("owed %v", out.Result.Owed)
			}
		}
	})
}
