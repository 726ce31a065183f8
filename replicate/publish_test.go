package replicate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

func TestPublishReachesEveryMember(t *testing.T) {
	for _, tc := range []struct {
		name   string
		size   int
		voters int
	}{
		{"empty", 0, 3}, {"inline", 4096, 3}, {"tiny without enough voters", 4096, 1}, {"small", 300_000, 3},
		{"one block", 1 << 20, 3}, {"one byte more", 1<<20 + 1, 3}, {"large", 9<<20 + 12345, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 4, tc.voters)
				ino := c.create(1, "f")
				b := randomBytes(uint64(tc.size), tc.size)
				out, err := c.node(1).publish(ino, meta.ContentID{}, b)
				if err != nil {
					t.Fatal(err)
				}
				if len(out.Result.Owed) != 0 || len(out.Behind) != 0 {
					t.Fatalf("owed %v, behind %v", out.Result.Owed, out.Behind)
				}
				if tc.size == 0 {
					return
				}
				for _, n := range c.all() {
					n.wantBytes(out.Content, b)
				}
				if tc.name == "inline" {
					return
				}
				c.eventually("committed on all", func() bool {
					for _, n := range c.all() {
						if !n.heldHere(out.Content) {
							return false
						}
					}
					return true
				})
			})
		})
	}
}

// G2: min-copies holds for the smallest files too. The log has their bytes on a majority of the voters only.
func TestTinyFileHasAsManyCopiesAsItsPolicyAsksFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		for _, x := range []struct {
			copies uint32
			inLog  bool
		}{{2, true}, {3, false}, {4, false}} {
			c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceAll, MinCopies: x.copies}})
			out, err := c.node(1).publish(c.create(1, fmt.Sprint(x.copies)), meta.ContentID{}, []byte("bytes"))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := c.node(1).db.Content(out.Content); err != nil || got.Inline != x.inLog {
				t.Errorf("%d copies: in the log %v, want %v (%v)", x.copies, got.Inline, x.inLog, err)
			}
		}
		ino := c.create(1, "one node is away")
		c.node(4).stop()
		c.declareDown(4)
		if _, err := c.node(1).publish(ino, meta.ContentID{}, []byte("bytes")); !errors.Is(err, ErrCopies) {
			t.Errorf("published with 3 of 4 copies: %v", err)
		}
	})
}

func TestPublishOnASingleNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, 1)
		ino := c.create(1, "f")
		for _, size := range []int{100, 5 << 20} {
			b := randomBytes(1, size)
			cur, err := c.node(1).db.Inode(ino)
			if err != nil {
				t.Fatal(err)
			}
			out, err := c.node(1).publish(ino, cur.Content, b)
			if err != nil {
				t.Fatal(err)
			}
			c.node(1).wantBytes(out.Content, b)
		}
	})
}

func TestHolesStayHolesAndReadAsZeros(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		ino := c.create(1, "f")
		b := make([]byte, 12<<20)
		copy(b[3<<20:], randomBytes(3, 1<<20))
		copy(b[9<<20+777:], randomBytes(4, 1000))
		out, err := c.node(1).rep.Publish(t.Context(), Push{
			Ino: ino, Size: int64(len(b)), Source: bytes.NewReader(b), Data: []Extent{{3 << 20, 1 << 20}, {9<<20 + 777, 1000}},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range c.all() {
			n.wantBytes(out.Content, b)
			r, err := n.store.OpenUndecided(storeID(out.Content))
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Layout().StreamBytes(); got != 2<<20 {
				t.Errorf("node %d stores a stream of %d bytes, want 2 MiB", n.id, got)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestDeltaMovesOnlyWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		ino := c.create(1, "f")
		b := randomBytes(5, 16<<20)
		base, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		var dirty []Extent
		for i := range 40 {
			off := int64(i) * 400_000 / 4096 * 4096
			copy(b[off:], randomBytes(uint64(100+i), 4096))
			dirty = append(dirty, Extent{off, 4096})
		}
		out, err := c.node(1).rep.Publish(t.Context(), Push{
			Ino: ino, Base: base.Content, Size: int64(len(b)), Source: bytes.NewReader(b), Data: []Extent{{0, int64(len(b))}},
			Dirty: dirty,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range c.all() {
			n.wantBytes(out.Content, b)
			r, err := n.store.OpenUndecided(storeID(out.Content))
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Layout().StreamBytes(); got != 40*4096 {
				t.Errorf("node %d stores a stream of %d bytes, want %d", n.id, got, 40*4096)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// waitingBarrier is a log whose barrier waits for a word of the test.
type waitingBarrier struct {
	nodeLog
	index  chan uint64
	behind chan []meta.NodeID
}

func (l *waitingBarrier) Barrier(_ context.Context, index uint64) ([]meta.NodeID, error) {
	l.index <- index
	return <-l.behind, nil
}

// G3: close returns when the others show the version, and names the nodes that do not.
func TestCloseWaitsForTheBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 1)
		n := c.node(1)
		log := &waitingBarrier{nodeLog: nodeLog{n}, index: make(chan uint64), behind: make(chan []meta.NodeID)}
		n.rep.pusher.cfg.Log = log
		ino := c.create(1, "f")
		done := make(chan Outcome, 1)
		go func() {
			out, err := n.publish(ino, meta.ContentID{}, []byte("bytes"))
			if err != nil {
				t.Error(err)
			}
			done <- out
		}()
		select {
		case <-done:
			t.Fatal("close has returned without the barrier")
		case index := <-log.index:
			log.behind <- []meta.NodeID{2}
			if out := <-done; index != out.Result.Index || !slices.Equal(out.Behind, []meta.NodeID{2}) {
				t.Errorf("barrier at %d, published at %d, behind %v", index, out.Result.Index, out.Behind)
			}
		}
	})
}

// leaderlessLog is a log whose leader is gone once the publish is in.
type leaderlessLog struct{ nodeLog }

func (leaderlessLog) Barrier(context.Context, uint64) ([]meta.NodeID, error) {
	return nil, errors.New("no leader")
}

// G3: what is published and shown by nobody knows whom is said to be so.
func TestPublishWithoutALeaderForItsBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 1)
		n := c.node(1)
		n.rep.pusher.cfg.Log = leaderlessLog{nodeLog{n}}
		out, err := n.publish(c.create(1, "f"), meta.ContentID{}, []byte("bytes"))
		if err != nil || out.Unseen == nil || out.Result.Index == 0 {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

// refusingLog is a log that refuses every publish.
type refusingLog struct{ noLog }

func (refusingLog) Propose(context.Context, meta.Op) (meta.Result, error) {
	return meta.Result{Errno: syscall.EIO}, nil
}

// Members keep what they have of a session until the log has ended it, so each one that failed is ended there.
func TestPushThatFailedIsEndedInTheLog(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx context.Context
		src io.ReaderAt
	}{
		"refused":        {t.Context(), bytes.NewReader([]byte("bytes"))},
		"not read":       {over, bytes.NewReader(nil)},
		"given up first": {over, bytes.NewReader([]byte("bytes"))},
	} {
		t.Run(name, func(t *testing.T) {
			c := metatest.New(t, 3)
			c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}})
			ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile}).Ino
			s, _ := steppedNode(t, c, 1, &onlyStates{}, SystemClock())
			s.pusher.cfg.Log = refusingLog{}
			if _, err := s.pusher.publish(tc.ctx, &Push{Ino: ino, Size: 5, Source: tc.src, Data: []Extent{{0, 5}}}); err == nil {
				t.Fatal("published")
			}
			if id, waits := s.pusher.aborts.first(); !waits || id.Seq != 1 {
				t.Errorf("its session is not ended in the log: %v", id)
			}
		})
	}
}

// refusingOnce is a log that refuses the first publish, behind what it does meanwhile, and takes the next.
type refusingOnce struct {
	noLog
	meanwhile func() syscall.Errno
	asked     []meta.Publish
}

func (l *refusingOnce) Propose(_ context.Context, op meta.Op) (res meta.Result, err error) {
	l.asked = append(l.asked, *op.(*meta.Publish))
	if len(l.asked) == 1 {
		res.Errno = l.meanwhile()
	}
	return res, nil
}

// A publish that apply refused for what came between the votes and the log is made again, in a new session.
func TestRefusedByWhatCameBetweenIsMadeAgain(t *testing.T) {
	for name, meanwhile := range map[string]func(c *metatest.Cluster) syscall.Errno{
		"this node was fenced": func(c *metatest.Cluster) syscall.Errno { c.Boot(1); return syscall.ESTALE },
		"a member restarted":   func(c *metatest.Cluster) syscall.Errno { c.Boot(2); return syscall.EIO },
	} {
		t.Run(name, func(t *testing.T) {
			c := metatest.New(t, 3)
			c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}})
			ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile}).Ino
			base := c.Inline(1, ino, []byte("before")).Inode.Content
			s, _ := steppedNode(t, c, 1, &onlyStates{}, SystemClock())
			log := &refusingOnce{meanwhile: func() syscall.Errno { return meanwhile(c) }}
			s.pusher.cfg.Log = log
			push := &Push{Ino: ino, Base: base, Size: 5, Source: bytes.NewReader([]byte("bytes")), Data: []Extent{{0, 5}}}
			if _, err := s.pusher.publish(t.Context(), push); err != nil {
				t.Fatal(err)
			}
			if len(log.asked) != 2 || log.asked[0].Session == log.asked[1].Session ||
				log.asked[1].Session.Incarnation != c.Lease(1).Incarnation {
				t.Errorf("proposed %+v", log.asked)
			}
		})
	}
}

// Votes are proposed as of a view. One of a member that has restarted before that view is none: what it had stored
// may be gone.
func TestVoteOfBeforeARestartIsNotProposed(t *testing.T) {
	c := metatest.New(t, 3)
	ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile}).Ino
	s, _ := steppedNode(t, c, 1, &onlyStates{}, SystemClock())
	op := &meta.Publish{Ino: ino, Session: c.Session(1)}
	push := &Push{Ino: ino, Size: 100_000}
	chosen, err := s.pusher.choose(push)
	if err != nil {
		t.Fatal(err)
	}
	session := &pushSession{
		p: s.pusher, push: push, targets: chosen, id: op.Session, op: op, asked: map[meta.NodeID]uint32{},
	}
	for _, n := range chosen.others {
		session.asks(n)
	}
	c.Boot(3)
	if err := session.count([]meta.NodeID{1, 2, 3}, nil); err != nil {
		t.Fatal(err)
	}
	if op.Votes.View != c.DB.View() || op.Votes.Has(3) || !op.Votes.Has(1) || !op.Votes.Has(2) {
		t.Errorf("proposed %+v in view %d", op.Votes, c.DB.View())
	}
	if len(op.Missing) != 1 || op.Missing[0] != (meta.Missed{Node: 3, Reason: meta.OwedDown}) {
		t.Errorf("missing %+v", op.Missing)
	}
}
