package session

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/meta/id"
	"github.com/rdmcfs/rdmcfs/meta/owed"
	"github.com/rdmcfs/rdmcfs/replicate/slow"
)

// paceSim is a session whose groups go, in virtual time, at the pace of their slowest member; groups share the root's
// link.
type paceSim struct {
	t      *testing.T
	s      *Root
	now    time.Time
	blocks int
	rates  map[id.Node]float64                 // bytes a second
	load   func(elapsed time.Duration) float64 // part of their rates that the machines give
	// of the root's link, for the group of a member; nil: all have the same
	share    func(n id.Node, groups int) float64
	have     map[id.Node]*blockset.Bitmap
	groups   map[int]*paceGroup
	queue    []RootEvent
	sent     map[id.Node]int // blocks
	apart    map[uint32]bool // epochs with several groups
	ended    bool
	slowDisk bool          // the root waits for room, not for the link
	step     int64         // bytes in which progress is reported; 0: any
	stop     time.Duration // when the root stands still for half a minute; 0: never
}

type paceGroup struct {
	Send
	list  []int
	moved int // of list
	bytes float64
}

const paceLink = 12e6

func newPaceSim(t *testing.T, blocks int, rates ...float64) *paceSim {
	x := &paceSim{
		t: t, now: time.Unix(1000, 0), blocks: blocks, rates: map[id.Node]float64{}, load: func(time.Duration) float64 {
			return 1
		},
		have: map[id.Node]*blockset.Bitmap{}, groups: map[int]*paceGroup{}, sent: map[id.Node]int{},
		apart: map[uint32]bool{},
	}
	var nodes []id.Node
	for i, r := range rates {
		n := id.Node(i + 2)
		nodes, x.rates[n], x.have[n] = append(nodes, n), r*paceLink, blockset.NewBitmap(uint64(blocks))
	}
	x.s = NewRoot(RootConfig{Members: nodes, Blocks: blocks, Limits: DefaultLimits()})
	x.s.need = 1
	return x
}

func (x *paceSim) perform(acts []RootAction) {
	for _, act := range acts {
		switch a := act.(type) {
		case Announce:
			x.queue = append(x.queue, Answered{a.Node, Standing{Epoch: a.Epoch, Status: StatusReady,
				Have: x.have[a.Node].Clone()}})
		case Poll:
			st := Standing{Epoch: a.Epoch, Status: StatusReceiving, Held: uint32(x.have[a.Node].Count())}
			if int(st.Held) == x.blocks {
				st.Status = StatusVoted
			}
			x.queue = append(x.queue, Polled{a.Node, st})
		case Send:
			g := &paceGroup{Send: a}
			for b := range x.blocks {
				if a.Blocks.Has(uint64(b)) {
					g.list = append(g.list, b)
				}
			}
			if a.Part == 0 {
				x.groups = map[int]*paceGroup{}
			}
			x.groups[a.Part] = g
			if a.Part > 0 {
				x.apart[a.Epoch] = true
			}
			x.queue = append(x.queue, Flowing{a.Epoch, a.Part})
		case EndGroup:
			delete(x.groups, a.Part)
		case End:
			x.ended = true
		}
	}
}

// move lets blocks flow for a while.
func (x *paceSim) move(d time.Duration, elapsed time.Duration) {
	parts := make([]int, 0, len(x.groups))
	for i := range x.groups {
		parts = append(parts, i)
	}
	slices.Sort(parts)
	for _, i := range parts {
		g := x.groups[i]
		pace := paceLink / float64(len(parts))
		if x.share != nil {
			pace = paceLink * x.share(g.Members[0], len(parts))
		}
		for _, n := range g.Members {
			pace = min(pace, x.rates[n])
		}
		g.bytes += pace * x.load(elapsed) * d.Seconds()
		whole := min(int(g.bytes/BlockBytes), len(g.list))
		for _, n := range g.Members {
			for _, b := range g.list[g.moved:whole] {
				if !x.have[n].Has(uint64(b)) {
					x.have[n].Set(uint64(b))
				}
				x.sent[n]++
			}
			told := x.got(g, n)
			busy := elapsed + time.Hour // in all, with this member
			ev := Progressed{Node: n, Epoch: g.Epoch, Bytes: told / max(x.step, 1) * max(x.step, 1), Sending: busy}
			if x.slowDisk {
				ev.Sending, ev.Waiting = time.Hour+elapsed/10, elapsed*9/10
			}
			x.queue = append(x.queue, ev)
		}
		g.moved = whole
		if whole == len(g.list) {
			delete(x.groups, i)
			x.queue = append(x.queue, GroupDone{g.Epoch, g.Part})
		}
	}
}

// got is how many bytes a group has brought a member. A block that the member had counts for nothing.
func (x *paceSim) got(g *paceGroup, n id.Node) (bytes int64) {
	had := g.Have[slices.Index(g.Members, n)]
	for i, b := range g.list {
		if !had.Has(uint64(b)) {
			bytes += max(0, min(BlockBytes, int64(g.bytes)-int64(i)*BlockBytes))
		}
	}
	return bytes
}

func (x *paceSim) run(limit time.Duration) time.Duration {
	x.t.Helper()
	began := x.now
	x.perform(x.s.Start(x.now))
	x.perform(x.s.Step(x.now, Hashed{[32]byte{1}}))
	x.perform(x.s.Step(x.now, OwnCopy{}))
	for !x.ended {
		elapsed := x.now.Sub(began)
		if elapsed > limit {
			x.t.Fatalf("not over after %v", limit)
		}
		for _, ev := range slices.Clone(x.queue) {
			x.queue = x.queue[1:]
			x.perform(x.s.Step(x.now, ev))
		}
		x.now = x.now.Add(100 * time.Millisecond)
		if x.stop > 0 && elapsed >= x.stop {
			x.stop, x.now, began = 0, x.now.Add(30*time.Second), began.Add(30*time.Second)
		} else {
			x.move(100*time.Millisecond, elapsed)
		}
		x.perform(x.s.Step(x.now, Tick{}))
	}
	return x.now.Sub(began)
}

// wantOut fails the test unless exactly these members were left out.
func (x *paceSim) wantOut(want ...id.Node) {
	x.t.Helper()
	var out []id.Node
	for _, m := range x.s.members {
		if m.phase == MemberOut {
			out = append(out, m.node)
			x.t.Logf("node %d is out: %s", m.node, m.text)
		}
	}
	if !slices.Equal(out, want) {
		x.t.Errorf("left out: %v, want %v", out, want)
	}
}

// G6: a member at a twentieth of the others' pace is found and left out, with the evidence; the others lose no block.
func TestSlowMemberIsLeftOutWithEvidence(t *testing.T) {
	for i := range 12 {
		slow, step := i%4, []int64{1, 256 << 10, BlockBytes}[i/4]
		rates := []float64{1, 1, 1, 1}
		rates[slow] = 0.05
		x := newPaceSim(t, 1000, rates...)
		x.slowDisk = slow%2 == 1
		x.setStep(step)
		took := x.run(3 * time.Minute)
		x.wantOut(id.Node(slow + 2))
		m := x.s.members[slow]
		if cause := map[bool]string{false: "its link", true: "its disk"}[x.slowDisk]; !strings.Contains(m.text, cause) {
			t.Errorf("%q does not name %s", m.text, cause)
		}
		if m.reason != owed.Slow || !strings.Contains(m.text, "a second while the others had") {
			t.Errorf("reason %d, %q", m.reason, m.text)
		}
		if took > 115*time.Second { // 87 s at full pace, 10 s at the slow one, a trial
			t.Errorf("the session took %v", took)
		}
		for n, sent := range x.sent {
			if m := x.s.members.find(n); m.phase == MemberVoted && sent != x.blocks {
				t.Errorf("node %d was given %d blocks of %d", n, sent, x.blocks)
			}
		}
	}
}

// A loaded machine slows all members alike, for any time and as much as it likes: nobody is left out.
func TestNobodyIsLeftOutForLoad(t *testing.T) {
	for from := range 12 {
		for _, part := range []float64{0.5, 0.1, 0.02} {
			x := newPaceSim(t, 300, 1, 0.9, 0.8, 1)
			x.load = func(at time.Duration) float64 {
				if begin := time.Duration(from) * 3 * time.Second; at >= begin && at < begin+20*time.Second {
					return part
				}
				return 1
			}
			x.run(5 * time.Minute)
			x.wantOut()
		}
	}
}

// A member at a quarter of the pace is waited for, and one that is needed however slow it is.
func TestMemberThatIsOnlySlowerOrNeededIsWaitedFor(t *testing.T) {
	x := newPaceSim(t, 400, 1, 0.25, 1)
	x.run(5 * time.Minute)
	x.wantOut()
	x = newPaceSim(t, 400, 1, 0.05)
	x.s.need = 2
	x.run(20 * time.Minute)
	x.wantOut()
}

// A group that is fast enough, or about as fast as groups are known to be, is not taken apart.
func TestHealthyGroupIsNotTried(t *testing.T) {
	x := newPaceSim(t, 500, 1, 1, 1)
	x.run(5 * time.Minute)
	x.wantOut()
	if len(x.apart) != 0 || x.s.Pace() < paceLink/2 {
		t.Fatalf("%d trials, known pace %.0f", len(x.apart), x.s.Pace())
	}
	y := newPaceSim(t, 500, 1, 0.2, 1)
	y.s.judge = slow.NewJudge(DefaultLimits().Slow, x.s.Pace())
	y.run(5 * time.Minute)
	y.wantOut()
	if len(y.apart) != 0 {
		t.Errorf("%d trials of a group that is a fifth as fast as others were", len(y.apart))
	}
	slow := newPaceSim(t, 200, 0.1, 0.1, 0.1) // nothing is known, and it might be one of them
	slow.run(5 * time.Minute)
	slow.wantOut()
	if len(slow.apart) != 1 || slow.s.Pace() < paceLink/20 {
		t.Errorf("%d trials of slow links, known pace %.0f", len(slow.apart), slow.s.Pace())
	}
}

// The first transfer on slow links: nothing is known to compare its pace with, which may be that of the links.
func TestFirstTransferOnSlowLinksStaysTogether(t *testing.T) {
	for _, blocks := range []int{60, 90, 120} { // 13, 20 and 26 s
		x := newPaceSim(t, blocks, 0.4, 0.4, 0.4, 0.4)
		x.run(2 * time.Minute)
		x.wantOut()
		if len(x.apart) != 0 {
			t.Errorf("%d blocks: %d trials", blocks, len(x.apart))
		}
	}
}

// A member whose connection has a small share of the root's link by chance, in a trial and after it, is not slow:
// nobody goes faster without it.
func TestSmallShareOfTheRootsLinkIsNotSlow(t *testing.T) {
	x := newPaceSim(t, 400, 0.4, 0.4, 0.4, 0.4)
	x.share = func(n id.Node, groups int) float64 {
		switch {
		case groups == 1:
			return 1
		case n == 3:
			return 0.01
		}
		return 0.99 / float64(groups-1)
	}
	x.run(20 * time.Minute)
	x.wantOut()
}

// When the others are done soon after the slow one was set apart, nobody waits for it as long as it takes, nor for a
// comparison that can't be made.
func TestSlowMemberDoesNotHoldOthersThatAreDone(t *testing.T) {
	for i, blocks := range []int{22, 26, 30, 36, 45, 60, 90, 22, 26, 30, 36, 45, 60, 90} {
		x := newPaceSim(t, blocks, 1, 0.05, 1, 1)
		if i >= 7 {
			x.setStep(256 << 10)
		}
		took := x.run(5 * time.Minute)
		x.wantOut(3)
		if took > 40*time.Second { // 20 s together, a trial of 3 s, and the rest without the slow one, at most 12 s
			t.Errorf("%d blocks took %v", blocks, took)
		}
	}
}

// Links so slow that a block takes as long as a comparison, or longer: progress in whole blocks blames nobody.
func TestBlocksOnSlowLinksBlameNobody(t *testing.T) {
	for _, rate := range []float64{0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.012, 0.015, 0.02, 0.03, 0.05} {
		x := newPaceSim(t, 24, rate, 0.95*rate, rate, 0.98*rate)
		x.setStep(BlockBytes)
		x.run(3 * time.Hour)
		x.wantOut()
		if t.Failed() {
			t.Fatalf("at %.0f bytes a second", rate*paceLink)
		}
	}
}

// A root that was stopped has heard nothing meanwhile, and holds that against nobody.
func TestRootThatStoodStillBlamesNobody(t *testing.T) {
	for _, stop := range []time.Duration{500 * time.Millisecond, 5 * time.Second, 9900 * time.Millisecond,
		11 * time.Second} {
		x := newPaceSim(t, 300, 1, 0.9, 0.8, 1)
		x.stop = stop
		x.run(5 * time.Minute)
		x.wantOut()
		if x.s.epoch != 0 {
			t.Errorf("stopped after %v: %d epochs", stop, x.s.epoch)
		}
	}
}

// setStep makes progress be reported in blocks of so many bytes.
func (x *paceSim) setStep(bytes int64) {
	x.step, x.s.lim.Slow.Step = bytes, bytes
	x.s.judge = slow.NewJudge(x.s.lim.Slow, 0)
	x.s.lim.Stalled += time.Duration(bytes) * time.Second / (256 << 10) // as Tuning has it
}

// A session begins again with members of which each has blocks that others lack. While a group sends a member what it
// has, it gets nothing, and is not to blame.
func TestMembersThatLackDifferentBlocksAreNotBlamed(t *testing.T) {
	x := newPaceSim(t, 400, 1, 1, 1)
	for n, first := range map[id.Node]int{2: 0, 3: 100, 4: 50} {
		for b := range 100 {
			x.have[n].Set(uint64(first + b))
		}
	}
	x.run(5 * time.Minute)
	x.wantOut()
}
