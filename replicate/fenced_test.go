package replicate

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// fence declares a node down that lives, and lets it in again.
func (c *cluster) fence(id meta.NodeID) {
	c.t.Helper()
	n := c.node(id)
	rec, err := n.db.Node(id)
	if err != nil {
		c.t.Fatal(err)
	}
	c.must(id%2+1, &meta.Down{Node: id, Incarnation: rec.Incarnation, Reason: "test"})
	n.mu.Lock()
	n.seq, n.lease = 0, meta.Lease{Node: id}
	n.mu.Unlock()
	res := c.must(id, &meta.Boot{Node: id, Store: [16]byte{byte(id)}, Addr: "10.0.0.1:1", Nonce: rand.Uint64()})
	n.mu.Lock()
	n.seq, n.lease = 0, meta.Lease{Node: id, Incarnation: res.Incarnation}
	n.mu.Unlock()
}

// A writer that was taken for dead in mid-push, and lives, pushes again under its next incarnation: its members
// dropped what they had.
func TestFencedPushIsMadeAgain(t *testing.T) {
	for name, size := range map[string]int{"small": 100_000, "large": 10 << 20} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 4, 3)
				ino := c.create(1, "f")
				old, err := c.node(1).publish(ino, meta.ContentID{}, []byte("the version before"))
				if err != nil {
					t.Fatal(err)
				}
				reached, fenced := make(chan struct{}), make(chan struct{})
				goOn := sync.OnceFunc(func() { close(fenced) })
				t.Cleanup(goOn) // a test that fails ends too
				var once sync.Once
				wait := func() {
					once.Do(func() { close(reached) })
					<-fenced
				}
				c.hub.setBlock(func(to meta.NodeID, i uint64) error {
					if i >= 60 {
						wait()
					}
					return nil
				})
				c.setCalls(func(from, to meta.NodeID, kind Kind) error {
					if kind == KindPut && from == 1 {
						wait()
					}
					return nil
				})
				type answer struct {
					out Outcome
					err error
				}
				done := make(chan answer, 1)
				b := randomBytes(1, size)
				go func() {
					out, err := c.node(1).publish(ino, old.Content, b)
					done <- answer{out, err}
				}()
				<-reached
				c.fence(1)
				goOn()
				a := <-done
				if a.err != nil || a.out.Content.Incarnation != 2 {
					t.Fatalf("published %v: %v", a.out.Content, a.err)
				}
				c.settled()
				for id := meta.NodeID(1); id <= 4; id++ {
					c.node(id).wantBytes(a.out.Content, b)
				}
			})
		})
	}
}

// A fence frees the name of a new file whose push is under way. Nothing more is pushed for an inode that is gone: it
// would be an orphan, on the members of a default placement. The file gets a new inode first.
func TestFencedPushOfANewFileEndsWithoutAnOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		ino := c.create(1, "f")
		reached, fenced := make(chan struct{}), make(chan struct{})
		var once sync.Once
		c.hub.setBlock(func(_ meta.NodeID, i uint64) error {
			if i >= 60 {
				once.Do(func() { close(reached) })
				<-fenced
			}
			return nil
		})
		done := make(chan error)
		b := randomBytes(1, 10<<20)
		go func() {
			_, err := c.node(1).publish(ino, meta.ContentID{}, b)
			done <- err
		}()
		<-reached
		c.fence(1)
		close(fenced)
		if err := <-done; !errors.Is(err, ErrNoInode) {
			t.Fatalf("a push of a file whose name was freed: %v", err)
		}
		if _, err := c.node(1).db.Content(meta.ContentID{Node: 1, Incarnation: 2, Seq: 1}); !isNotFound(err) {
			t.Errorf("a content that no file has: %v", err)
		}
		out, err := c.node(1).publish(c.create(1, "f"), meta.ContentID{}, b)
		if err != nil || out.Result.Orphan {
			t.Fatalf("published under the name that was reserved again: %+v, %v", out.Result, err)
		}
		c.settled()
		c.node(4).wantBytes(out.Content, b)
	})
}

// A fence ends a push that nodes without room are members of too: with the copy that the fence has ended it would have
// been published, so it is made again.
func TestFencedPushIsMadeAgainThoughMembersHaveNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		c.setLeaderless()
		ino := c.create(1, "f")
		old, err := c.node(1).publish(ino, meta.ContentID{}, []byte("the version before"))
		if err != nil {
			t.Fatal(err)
		}
		c.fill(2, 3)
		var once sync.Once
		c.hub.setBlock(func(_ meta.NodeID, i uint64) error {
			if i >= 30 {
				once.Do(func() { c.fence(1) })
			}
			return nil
		})
		b := randomBytes(1, 5<<20)
		out, err := c.node(1).publish(ino, old.Content, b)
		if err != nil || out.Content.Incarnation != 2 {
			t.Fatalf("published %v: %v", out.Content, err)
		}
		c.node(4).wantBytes(out.Content, b)
	})
}

// A push is made again under the next incarnation only if its writer may still write: it is asked when it is settled to
// which incarnation the session belongs.
func TestFencedPushIsNotMadeAgainIfItMayNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		ino := c.create(1, "f")
		old, err := c.node(1).publish(ino, meta.ContentID{}, []byte("the version before"))
		if err != nil {
			t.Fatal(err)
		}
		reached, fenced := make(chan struct{}), make(chan struct{})
		goOn := sync.OnceFunc(func() { close(fenced) })
		t.Cleanup(goOn) // a test that fails ends too
		var once sync.Once
		c.hub.setBlock(func(_ meta.NodeID, i uint64) error {
			if i >= 60 {
				once.Do(func() { close(reached) })
				<-fenced
			}
			return nil
		})
		n := c.node(1)
		first, mayNot := n.self(), errors.New("may not")
		done := make(chan error, 1)
		go func() {
			b := randomBytes(1, 10<<20)
			_, err := n.rep.Publish(t.Context(), Push{
				Ino: ino, Base: old.Content, Size: int64(len(b)), Source: bytes.NewReader(b),
				Data: []Extent{{0, int64(len(b))}},
				Allowed: func() error {
					if n.self() != first {
						return mayNot
					}
					return nil
				},
			})
			done <- err
		}()
		<-reached
		c.fence(1)
		goOn()
		if err := <-done; !errors.Is(err, mayNot) {
			t.Errorf("published: %v", err)
		}
		rec, err := n.db.Inode(ino)
		if err != nil || rec.Content != old.Content {
			t.Errorf("the file has the version %v (%v), want %v", rec.Content, err, old.Content)
		}
	})
}

// downNames is a log that holds its own node down.
type downNames struct{ meta.Reader }

func (downNames) Node(id meta.NodeID) (meta.Node, error) {
	return meta.Node{ID: id, State: meta.NodeDown, Incarnation: 1}, nil
}

// A push that failed waits for the end of its session and for its node's next incarnation, with one limit for both. A
// close has then taken 30 s at most since bytes or votes last came.
func TestFencedPushWaitsForALimitedTime(t *testing.T) {
	for still, limit := range map[time.Duration]time.Duration{0: 10 * time.Second, 25 * time.Second: 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			lease := meta.Lease{Node: 1, Incarnation: 1}
			cfg := Config{Self: func() meta.Lease { return lease }, Names: downNames{}, Clock: SystemClock()}
			cfg.Tuning = cfg.Tuning.withDefaults()
			s := &pushSession{p: &Pusher{cfg: cfg}, id: meta.ContentID{Node: 1, Incarnation: 1, Seq: 1},
				ended: make(chan struct{}), moved: time.Now().Add(-still)}
			began := time.Now()
			err := s.fenced(context.Background(), ErrCopies)
			if took := time.Since(began); !errors.Is(err, ErrCopies) || took > limit+bootPoll {
				t.Errorf("nothing came for %v: %v after %v more, limit %v", still, err, took, limit)
			}
		})
	}
}

// The session behind a fence goes on from the blocks that its members kept, as the next epoch of a session does: a
// new file of 48 MiB that was fenced at half is under its new inode after 60% of its bytes, and is the same
// everywhere. Nobody keeps anything of the session before.
func TestFencedPushGoesOnFromWhatMembersKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		for _, n := range c.all() {
			n.stop()
			n.tuning.KeepFenced = neverComes
			n.start()
		}
		ino := c.create(1, "f")
		b := randomBytes(1, 48<<20)
		form, _, err := chooseForm(c.node(1).db, []meta.NodeID{1, 2, 3}, int64(len(b)), 0)
		if err != nil {
			t.Fatal(err)
		}
		groupBlock := form.BlockBytes
		half := uint64(int64(len(b)) / groupBlock / 2)
		reached, fenced := make(chan struct{}), make(chan struct{})
		goOn := sync.OnceFunc(func() { close(fenced) })
		t.Cleanup(goOn)
		var once sync.Once
		var sent atomic.Int64
		c.hub.setBlock(func(_ meta.NodeID, i uint64) error {
			select {
			case <-fenced:
				sent.Add(groupBlock)
			default:
				if i >= half {
					once.Do(func() { close(reached) })
					<-fenced
				}
			}
			return nil
		})
		type answer struct {
			out Outcome
			err error
		}
		done := make(chan answer, 1)
		go func() {
			push := Push{Ino: ino, Path: "/f", Size: int64(len(b)), Source: bytes.NewReader(b),
				Data: []Extent{{0, int64(len(b))}}}
			push.Rename = func(context.Context) (meta.Ino, error) { return c.create(1, "f"), nil }
			out, err := c.node(1).rep.Publish(context.Background(), push)
			done <- answer{out, err}
		}()
		<-reached
		first := meta.ContentID{Node: 1, Incarnation: c.node(1).self().Incarnation, Seq: 1}
		c.fence(1)
		c.eventually("members keep what they have", func() bool {
			for id := meta.NodeID(2); id <= 4; id++ {
				k := c.node(id).rep.member.kept
				k.mu.Lock()
				_, kept := k.kept[first]
				k.mu.Unlock()
				if !kept {
					return false
				}
			}
			return true
		})
		goOn()
		a := <-done
		if a.err != nil || a.out.Content.Incarnation == first.Incarnation || a.out.Result.Orphan {
			t.Fatalf("published %v: %v", a.out.Content, a.err)
		}
		share := float64(sent.Load()) / 3 / float64(len(b))
		t.Logf("sent again: %.0f%% of the file to each member", 100*share)
		if share > 0.6 {
			t.Errorf("%.0f%% of the file was sent again", 100*share)
		}
		c.settled()
		for id := meta.NodeID(1); id <= 4; id++ {
			c.node(id).wantBytes(a.out.Content, b)
			if state, here := c.node(id).store.State(storeID(first)); here {
				t.Errorf("node %d has the bytes of the session before: %v", id, state)
			}
		}
	})
}
