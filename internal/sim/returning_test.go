package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// copying is a cluster of three in which the first node pushes a large file.
type copying struct {
	*world
	t       *testing.T
	blocks  int
	small   bool   // the file goes by put
	created func() // called before the push begins, or nil
	over    bool
	err     error
}

func newCopying(t *testing.T, seed uint64, blocks int) *copying {
	t.Helper()
	w := newWorld(Options{Seed: seed})
	w.gather(3)
	x := &copying{world: w, t: t, blocks: blocks}
	everywhere := false
	w.machines[0].life.propose(&meta.SetPolicy{Policy: &meta.Policy{Placement: meta.PlaceAll}}, func(res meta.Result, err error) {
		everywhere = err == nil && res.Errno == 0
	})
	x.await("policy set", 30*time.Second, func() bool { return everywhere })
	x.await("three voters", 30*time.Second, func() bool {
		voters := 0
		for _, n := range w.machines[0].life.book {
			if n.Voter {
				voters++
			}
		}
		return voters == 3
	})
	return x
}

// begin starts the push.
func (x *copying) begin() *copying {
	w, blocks := x.world, x.blocks
	f := &file{size: int64(blocks) * content.BlockBytes}
	for i := range blocks {
		f.leaves = append(f.leaves, content.Leaf([]byte{1, byte(i), byte(i >> 8)}))
	}
	if x.small {
		data := make([]byte, 2*meta.MaxInline)
		f = &file{size: int64(len(data)), data: data, leaves: []content.Hash{content.Leaf(data)}}
	}
	l := w.machines[0].life
	l.propose(&meta.Create{Parent: meta.RootIno, Name: "image", Kind: meta.KindFile, Mode: 0o644}, func(res meta.Result, err error) {
		if err != nil || res.Errno != 0 {
			w.fail("create: %v, errno %v", err, res.Errno)
			return
		}
		if x.created != nil {
			x.created()
		}
		l.publish(replicate.Push{Ino: res.Ino, Path: "/image", Size: f.size}, f, func(out pushOutcome, err error) {
			w.oracle.closed(l, res.Ino, meta.ContentID{}, out, err)
			x.over, x.err = true, err
		})
	})
	return x
}

// await runs the world until something is so.
func (x *copying) await(what string, limit time.Duration, is func() bool) {
	x.t.Helper()
	x.until(limit, is)
	if x.world.err != nil || !is() {
		x.t.Fatalf("seed %d: never %s: %v", x.opt.Seed, what, x.world.err)
	}
}

// has is how many blocks of the file a machine has received; -1 when it takes no part.
func (x *copying) has(m *machine) int {
	if m.life == nil {
		return -1
	}
	for _, h := range m.life.holds {
		if h.blob != nil && len(h.blob.have) == x.blocks {
			return x.blocks - h.blob.missing()
		}
	}
	return -1
}

// isBack tells whether the writer has learned from the log that a machine runs again.
func (x *copying) isBack(m *machine) bool {
	for _, n := range x.machines[0].life.book {
		if n.ID == m.node {
			return n.State == meta.NodeUp && n.Incarnation == uint32(m.lives)
		}
	}
	return false
}

// delivered holds that close has succeeded and that all get the file in the end.
func (x *copying) delivered(limit time.Duration) {
	x.t.Helper()
	x.await("close returned", limit, func() bool { return x.over })
	if x.err != nil {
		x.t.Fatalf("seed %d: close: %v", x.opt.Seed, x.err)
	}
	x.settle()
	if x.world.err != nil {
		x.t.Fatalf("seed %d: %v", x.opt.Seed, x.world.err)
	}
}

const returnSeeds = 8

// G2, G6: one member dies and comes back, then the other one dies: the session goes on with the one that is back.
func TestOneReturnsAndTheOtherDies(t *testing.T) {
	for seed := uint64(1); seed <= returnSeeds; seed++ {
		x := newCopying(t, seed, 120).begin()
		back, dies := x.machines[1], x.machines[2]
		x.await("a part is there", time.Minute, func() bool { return x.has(back) >= 20 && x.has(dies) >= 20 })
		back.crash(false, "by the test")
		back.start()
		x.await("it is back", 20*time.Second, func() bool { return x.isBack(back) })
		dies.crash(seed%2 == 0, "by the test")
		x.delivered(30 * time.Second)
	}
}

// G2: both members die at once and come back, in either order, before or after the log has noticed.
func TestAllMembersReturn(t *testing.T) {
	for seed := uint64(1); seed <= returnSeeds; seed++ {
		for _, pause := range []time.Duration{0, 700 * time.Millisecond, 4 * time.Second} {
			t.Run(fmt.Sprint(seed, pause), func(t *testing.T) {
				x := newCopying(t, seed, 120).begin()
				b, c := x.machines[1], x.machines[2]
				x.await("a part is there", time.Minute, func() bool { return x.has(b) >= 20 && x.has(c) >= 20 })
				b.crash(false, "by the test")
				c.crash(false, "by the test")
				x.after(pause, nil, b.start)
				x.after(2*pause, nil, c.start)
				x.delivered(40 * time.Second)
			})
		}
	}
}

// G2: a member that was down when the push began is asked when the other one is lost.
func TestOneThatWasDownAtFirstStepsIn(t *testing.T) {
	for seed := uint64(1); seed <= returnSeeds; seed++ {
		x := newCopying(t, seed, 120)
		back, dies := x.machines[1], x.machines[2]
		back.crash(false, "by the test")
		x.await("it is down", 20*time.Second, func() bool {
			n, err := x.machines[0].life.db.Node(back.node)
			return err == nil && n.State == meta.NodeDown
		})
		x.begin()
		x.await("a part is there", time.Minute, func() bool { return x.has(dies) >= 20 })
		back.start()
		x.await("it is back", 20*time.Second, func() bool { return x.isBack(back) })
		if x.over {
			t.Fatalf("seed %d: the push was over before", seed)
		}
		dies.crash(false, "by the test")
		x.delivered(30 * time.Second)
	}
}

// G2: small files too wait for members that restart.
func TestSmallFileWaitsForMembersThatReturn(t *testing.T) {
	for seed := uint64(1); seed <= returnSeeds; seed++ {
		x := newCopying(t, seed, 1)
		b, c := x.machines[1], x.machines[2]
		x.small = true
		x.created = func() {
			b.crash(false, "by the test")
			c.crash(true, "by the test")
			x.after(time.Duration(seed)*450*time.Millisecond, nil, b.start)
		}
		x.begin()
		x.delivered(30 * time.Second)
	}
}

// G2, G6: a member whose link is slow does not hold close; it is owed the file as slow and gets it afterwards.
func TestSlowLinkDoesNotHoldClose(t *testing.T) {
	for seed := uint64(1); seed <= returnSeeds; seed++ {
		x := newCopying(t, seed, 4000)
		slow := x.machines[1+int(seed%2)]
		slow.drag = 39
		x.begin()
		x.await("close returned", 3*time.Minute, func() bool { return x.over })
		owed, err := x.machines[0].life.db.OwedTo(slow.node, 0, 10)
		if err != nil || len(owed) != 1 || owed[0].Reason != meta.OwedSlow {
			t.Errorf("seed %d: owed %+v, %v: want one content, slow", seed, owed, err)
		}
		slow.drag = 0
		x.delivered(time.Second)
	}
}
