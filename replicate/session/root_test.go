package session

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/meta/id"
	"github.com/rdmcfs/rdmcfs/meta/owed"
)

// rootSim drives a Root against members that behave well or badly, in virtual time. It has no network, disk
// or goroutine: what a run does is decided by its draws.
type rootSim struct {
	t       *rapid.T
	s       *Root
	now     time.Time
	queue   []simEvent
	members map[id.Node]*simMember
	blocks  int
	sends   map[uint32]Send
	ended   bool
	order   int
}

type simEvent struct {
	at    time.Time
	order int
	ev    RootEvent
}

type simMember struct {
	node     id.Node
	have     *blockset.Bitmap
	dies     time.Time // answers nothing from then on
	refuses  bool
	fails    bool // its check fails
	rootSeen bool
	voted    bool
}

func (m *simMember) dead(now time.Time) bool { return !m.dies.IsZero() && !now.Before(m.dies) }

func (x *rootSim) later(d time.Duration, ev RootEvent) {
	x.order++
	x.queue = append(x.queue, simEvent{x.now.Add(d), x.order, ev})
}

func (x *rootSim) delay() time.Duration {
	return time.Duration(rapid.IntRange(0, 50).Draw(x.t, "delay")) * time.Millisecond
}

func (x *rootSim) perform(acts []RootAction) {
	for _, act := range acts {
		switch a := act.(type) {
		case Announce:
			x.announce(a)
		case Poll:
			x.finish(a)
		case Send:
			x.send(a)
		case End:
			if x.ended {
				x.t.Fatal("ended twice")
			}
			x.ended = true
		}
	}
}

func (x *rootSim) announce(a Announce) {
	m := x.members[a.Node]
	if m.dead(x.now) {
		return // no answer
	}
	st := Standing{Epoch: a.Epoch, Status: StatusReady, Have: m.have.Clone()}
	switch {
	case m.refuses:
		st.Status, st.Reason = StatusRefused, owed.Full
	case m.voted:
		st.Status = StatusVoted
	}
	x.later(x.delay(), Answered{a.Node, st})
}

func (x *rootSim) finish(a Poll) {
	m := x.members[a.Node]
	if m.dead(x.now) {
		return
	}
	st := Standing{Epoch: a.Epoch, Status: StatusReceiving, Held: uint32(m.have.Count())}
	m.rootSeen = m.rootSeen || a.HasHash
	wait := x.delay()
	if int(m.have.Count()) == x.blocks {
		st.Status = StatusChecking
		if m.rootSeen {
			st.Status = StatusVoted
			m.voted = true
			if m.fails {
				st.Status, st.Reason, m.voted = StatusRefused, owed.Failed, false
			}
		}
	} else {
		wait += 100 * time.Millisecond
	}
	x.later(wait, Polled{a.Node, st})
}

func (x *rootSim) send(a Send) {
	if len(a.Members) == 0 {
		x.t.Fatal("a group without members")
	}
	for i, n := range a.Members {
		if x.s.members.find(n).phase != MemberReady {
			x.t.Fatalf("member %d is sent to in phase %v", n, x.s.members.find(n).phase)
		}
		for b := range x.blocks {
			if !a.Have[i].Has(uint64(b)) && !a.Blocks.Has(uint64(b)) {
				x.t.Fatalf("block %d is missing at %d and not sent", b, n)
			}
		}
	}
	for b := range x.blocks {
		lacks := func(h *blockset.Bitmap) bool { return !h.Has(uint64(b)) }
		if a.Blocks.Has(uint64(b)) && !slices.ContainsFunc(a.Have, lacks) {
			x.t.Fatalf("block %d is sent, and missing nowhere", b)
		}
	}
	x.sends[a.Epoch] = a
	x.later(x.delay(), Flowing{Epoch: a.Epoch})
	x.later(time.Duration(rapid.IntRange(10, 400).Draw(x.t, "transfer"))*time.Millisecond, GroupDone{Epoch: a.Epoch})
}

// settle gives the members what a group brought, when it comes to its end.
func (x *rootSim) settle(ev RootEvent) RootEvent {
	done, ok := ev.(GroupDone)
	if !ok {
		return ev
	}
	a := x.sends[done.Epoch]
	var dead []Suspect
	for _, n := range a.Members {
		m := x.members[n]
		if m.dead(x.now) {
			dead = append(dead, Suspect{n, owed.Unreachable})
			continue
		}
		part := rapid.IntRange(0, x.blocks).Draw(x.t, "part")
		for b := range x.blocks {
			if a.Blocks.Has(uint64(b)) && b < part {
				m.have.Set(uint64(b))
			}
		}
	}
	if dead != nil {
		if rapid.Bool().Draw(x.t, "blames nobody") {
			dead = nil
		}
		return GroupFailed{Epoch: done.Epoch, Suspects: dead}
	}
	for _, n := range a.Members {
		for b := range x.blocks {
			if a.Blocks.Has(uint64(b)) {
				x.members[n].have.Set(uint64(b))
			}
		}
	}
	return ev
}

func (x *rootSim) run(limit time.Duration) {
	end := x.now.Add(limit)
	for !x.ended && x.now.Before(end) {
		slices.SortFunc(x.queue, func(a, b simEvent) int {
			if c := a.at.Compare(b.at); c != 0 {
				return c
			}
			return a.order - b.order
		})
		next := x.queue[0]
		x.queue = x.queue[1:]
		x.now = next.at
		ev := x.settle(next.ev)
		if _, tick := ev.(Tick); tick {
			x.later(200*time.Millisecond, Tick{})
		}
		x.perform(x.s.Step(x.now, ev))
	}
}

func TestRootSessionEndsAndCountsOnlyTrueVotes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 9).Draw(t, "members")
		blocks := rapid.IntRange(1, 20).Draw(t, "blocks")
		x := &rootSim{
			t: t, now: time.Unix(1000, 0), members: make(map[id.Node]*simMember), blocks: blocks,
			sends: make(map[uint32]Send),
		}
		began := x.now
		var nodes []id.Node
		for i := range n {
			m := &simMember{node: id.Node(i + 2), have: blockset.NewBitmap(uint64(blocks))}
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				m.dies = x.now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "dies")) * time.Millisecond)
			case 1:
				m.refuses = true
			case 2:
				m.fails = true
			}
			nodes = append(nodes, m.node)
			x.members[m.node] = m
		}
		first := rapid.IntRange(0, len(nodes)).Draw(t, "first")
		x.s = NewRoot(RootConfig{Members: nodes[:first], Blocks: blocks, Limits: DefaultLimits()})
		x.later(0, Tick{})
		x.later(time.Duration(rapid.IntRange(0, 900).Draw(t, "join"))*time.Millisecond, Joined{nodes[first:]})
		x.later(time.Duration(rapid.IntRange(0, 500).Draw(t, "read"))*time.Millisecond, Hashed{[32]byte{1}})
		x.later(time.Second, OwnCopy{})
		x.perform(x.s.Start(x.now))
		x.run(2 * time.Minute)
		if !x.ended {
			t.Fatalf("did not end: %s", x.describe())
		}
		if took := x.now.Sub(began); took > 40*time.Second {
			t.Fatalf("took %v", took)
		}
		for _, m := range x.s.members {
			sim := x.members[m.node]
			if m.phase == MemberVoted && !sim.voted {
				t.Fatalf("member %d is counted without a vote", m.node)
			}
			healthy := sim.dies.IsZero() && !sim.refuses && !sim.fails
			if healthy && m.phase != MemberVoted {
				t.Fatalf("healthy member %d is out: %s", m.node, x.describe())
			}
			if m.phase == MemberOut && m.reason == 0 {
				t.Fatalf("member %d is out without a reason", m.node)
			}
		}
	})
}

func (x *rootSim) describe() string {
	out := fmt.Sprintf("phase %d epoch %d local %d root %v;", x.s.phase, x.s.epoch, x.s.own, x.s.hashKnown)
	for _, m := range x.s.members {
		out += fmt.Sprintf(" %d:%v held %d reason %d %q", m.node, m.phase, m.held, m.reason, m.text)
	}
	return out
}

func newTestSession(n, blocks int) (*Root, time.Time) {
	var nodes []id.Node
	for i := range n {
		nodes = append(nodes, id.Node(i+2))
	}
	s := NewRoot(RootConfig{Members: nodes, Blocks: blocks, Limits: DefaultLimits()})
	now := time.Unix(1000, 0)
	s.Start(now)
	return s, now
}

func ready(n id.Node, epoch uint32, blocks int) Answered {
	return Answered{n, Standing{Epoch: epoch, Status: StatusReady, Have: blockset.NewBitmap(uint64(blocks))}}
}

func TestSilentMemberIsNotEjectedWhileNobodyElseSpeaks(t *testing.T) {
	s, now := newTestSession(3, 4)
	for i := range 3 {
		s.Step(now, ready(id.Node(i+2), 0, 4))
	}
	now = now.Add(3 * time.Second) // this node was stopped, not the others
	s.Step(now, Tick{})
	if got := s.members.count(MemberOut); got != 0 {
		t.Errorf("%d members ejected by a node that heard nothing from anybody", got)
	}
}

func TestStalledMemberIsEjectedOnlyIfFurthestBehind(t *testing.T) {
	s, now := newTestSession(3, 10)
	for i := range 3 {
		s.Step(now, ready(id.Node(i+2), 0, 10))
	}
	s.Step(now, Flowing{Epoch: 0})
	s.Step(now, Hashed{})
	for i := 1; i <= 8; i++ {
		now = now.Add(400 * time.Millisecond)
		for _, n := range []id.Node{2, 3} {
			s.Step(now, Polled{n, Standing{Status: StatusReceiving, Held: uint32(i)}})
		}
		s.Step(now, Polled{4, Standing{Status: StatusReceiving, Held: 1}}) // it answers, but gets no further
		s.Step(now, Tick{})
	}
	if m := s.members.find(4); m.phase != MemberOut || m.reason != owed.Slow {
		t.Errorf("the stalled member is %v, reason %d", m.phase, m.reason)
	}
	if s.members.find(2).phase == MemberOut || s.members.find(3).phase == MemberOut {
		t.Error("a member that progressed was ejected")
	}
	if s.epoch != 1 {
		t.Errorf("epoch %d, want 1", s.epoch)
	}
}

// Until another member has got what one had before, the group sends that one nothing new. After that it may stand still
// as long as any other.
func TestMemberThatHadBlocksIsBlamedOnlyForWhatItLacks(t *testing.T) {
	for _, stalls := range []bool{false, true} {
		s, now := newTestSession(2, 20)
		s.Step(now, ready(2, 0, 20))
		had := ready(3, 0, 20)
		for b := range 10 {
			had.Have.Set(uint64(b))
		}
		s.Step(now, had)
		s.Step(now, Flowing{Epoch: 0})
		for i := 1; i < 16; i++ { // a block a second
			now = now.Add(time.Second)
			s.Step(now, Polled{2, Standing{Status: StatusReceiving, Held: uint32(i)}})
			s.Step(now, Polled{3, Standing{Status: StatusReceiving, Held: 10}})
			s.Step(now, Progressed{Node: 2, Bytes: int64(i) * BlockBytes})
			s.Step(now, Tick{}) // a block comes a little later to the member behind
			if got := i - 10; got > 0 && !stalls {
				s.Step(now, Progressed{Node: 3, Bytes: int64(got) * BlockBytes})
			}
			if out := s.members.find(3).phase == MemberOut; out && !stalls || i <= 10 && out {
				t.Fatalf("out after %d blocks: %s", i, s.members.find(3).text)
			}
		}
		if out := s.members.find(3).phase == MemberOut; out != stalls {
			t.Errorf("stalls: %v, out: %v", stalls, out)
		}
	}
}

// Relaying couples the members: a member that waits for blocks of one that was cut off is not taken for slow.
func TestMemberBehindASilentOneIsNotBlamed(t *testing.T) {
	s, now := newTestSession(2, 10)
	s.Step(now, ready(2, 0, 10))
	s.Step(now, ready(3, 0, 10))
	s.Step(now, Flowing{Epoch: 0})
	s.Step(now, Hashed{})
	s.Step(now, Polled{2, Standing{Status: StatusReceiving, Held: 3}})
	now = now.Add(400 * time.Millisecond)
	s.Step(now, Polled{3, Standing{Status: StatusReceiving, Held: 5}}) // its last word
	for s.epoch == 0 && now.Before(s.began.Add(10*time.Second)) {
		now = now.Add(100 * time.Millisecond)
		s.Step(now, Polled{2, Standing{Status: StatusReceiving, Held: 3}})
		s.Step(now, Tick{})
	}
	if m := s.members.find(3); m.phase != MemberOut || m.reason != owed.Unreachable {
		t.Errorf("the silent member is %v, reason %d", m.phase, m.reason)
	}
	if s.members.find(2).phase == MemberOut {
		t.Errorf("the member that answers was ejected: %s", s.members.find(2).text)
	}
}

func TestWaitingForOtherMessagesIsNotBlamed(t *testing.T) {
	s, now := newTestSession(2, 10)
	s.Step(now, ready(2, 0, 10))
	s.Step(now, ready(3, 0, 10))
	s.Step(now, Flowing{Epoch: 0})
	for range 100 { // for a minute another file goes first
		now = now.Add(600 * time.Millisecond)
		for _, n := range []id.Node{2, 3} {
			s.Step(now, Polled{n, Standing{Status: StatusReceiving}})
			s.Step(now, Ahead{n, 0})
		}
		s.Step(now, Tick{})
	}
	if got := s.members.count(MemberOut); got != 0 || s.phase != RootSending {
		t.Errorf("%d members out, phase %d", got, s.phase)
	}
}

// A member whose group flows again and again, and fails before a block has come, with nobody to blame that the root
// could leave out, is not waited for without end. One that gets a block each time is.
func TestGroupsThatFlowInVainEnd(t *testing.T) {
	for _, gets := range []bool{false, true} {
		s, now := newTestSession(1, 100)
		for i := 0; i < 50 && s.members.find(2).phase != MemberOut; i++ {
			s.Step(now, ready(2, s.epoch, 100))
			now = now.Add(100 * time.Millisecond)
			s.Step(now, Flowing{Epoch: s.epoch})
			if gets {
				s.Step(now, Progressed{Node: 2, Epoch: s.epoch, Bytes: BlockBytes})
			}
			now = now.Add(2 * time.Second)
			s.Step(now, GroupFailed{Epoch: s.epoch})
		}
		if m := s.members.find(2); (m.phase == MemberOut) == gets {
			t.Errorf("it gets blocks: %v; after %d epochs it is %v, %s", gets, s.epoch, m.phase, m.text)
		}
	}
}

func TestOldEpochsAreNotHeard(t *testing.T) {
	s, now := newTestSession(2, 4)
	s.Step(now, ready(2, 0, 4))
	s.Step(now, ready(3, 0, 4))
	s.Step(now, GroupFailed{Epoch: 0, Suspects: []Suspect{{3, owed.Unreachable}}})
	if s.epoch != 1 {
		t.Fatalf("epoch %d", s.epoch)
	}
	s.Step(now, GroupDone{Epoch: 0})
	s.Step(now, Polled{2, Standing{Epoch: 0, Status: StatusVoted}})
	if s.members.find(2).phase != MemberAsked {
		t.Errorf("an answer of epoch 0 counts in epoch 1: %v", s.members.find(2).phase)
	}
}

// A member that checks and syncs much longer than the others is owed the content; one that takes as long as they did
// is not.
func TestChecksAreComparedWithThoseOfTheOthers(t *testing.T) {
	for _, tc := range []struct{ others, most time.Duration }{{200 * time.Millisecond, 6 * time.Second},
		{8 * time.Second, 17 * time.Second}} {
		s, now := newTestSession(3, 1)
		s.need = 2
		for i := range 3 {
			s.Step(now, ready(id.Node(i+2), 0, 1))
		}
		s.Step(now, Flowing{Epoch: 0})
		s.Step(now, Hashed{})
		s.Step(now, OwnCopy{})
		s.Step(now, GroupDone{Epoch: 0})
		began := now
		for s.members.find(4).phase != MemberOut && now.Sub(began) < time.Minute {
			now = now.Add(100 * time.Millisecond)
			for _, n := range []id.Node{2, 3, 4} {
				st := Standing{Status: StatusChecking, Held: 1}
				if n != 4 && now.Sub(began) >= tc.others {
					st.Status = StatusVoted
				}
				s.Step(now, Polled{n, st})
			}
			s.Step(now, Tick{})
		}
		if took := now.Sub(began); took > tc.most || took < 2*tc.others || took < 3*time.Second ||
			s.members.count(MemberVoted) != 2 {
			t.Errorf("others took %v: the last one was left out after %v, %d have voted", tc.others, took,
				s.members.count(MemberVoted))
		}
	}
}

// A member that reads what an earlier session left says so each time it is asked, and is not taken for silent. One
// that stops saying so is.
func TestMemberThatPreparesIsWaitedFor(t *testing.T) {
	s, now := newTestSession(2, 4)
	s.Step(now, ready(2, 0, 4))
	for range 16 {
		now = now.Add(500 * time.Millisecond)
		acts := s.Step(now, Answered{3, Standing{Status: StatusPreparing}})
		if !slices.Contains(acts, RootAction(Announce{3, 0})) {
			t.Fatalf("a member that prepares is not asked again: %v", acts)
		}
		s.Step(now, Tick{})
	}
	if m := s.members.find(3); m.phase != MemberAsked || s.epoch != 0 {
		t.Fatalf("the member that prepares is %v in epoch %d: %s", m.phase, s.epoch, m.text)
	}
	for range 6 {
		now = now.Add(500 * time.Millisecond)
		s.Step(now, Tick{})
	}
	if m := s.members.find(3); m.phase != MemberOut || m.reason != owed.Unreachable {
		t.Errorf("a member that says nothing any more is %v, reason %d", m.phase, m.reason)
	}
}

// A node joins while blocks flow: the blocks that a member has are sent again only because the other one lacks them,
// and the member that has all blocks already is not sent anything.
func TestNodeJoinsWhileBlocksFlow(t *testing.T) {
	s, now := newTestSession(2, 4)
	s.Step(now, ready(2, 0, 4))
	s.Step(now, ready(3, 0, 4))
	acts := s.Step(now, Joined{[]id.Node{4}})
	want := []RootAction{EndGroup{0, 0, nil}, Announce{2, 1}, Announce{3, 1}, Announce{4, 1}}
	if !reflect.DeepEqual(acts, want) {
		t.Fatalf("joining does %v, want %v", acts, want)
	}
	half, whole := blockset.NewBitmap(4), blockset.NewBitmap(4)
	for b := range uint64(4) {
		whole.Set(b)
		if b < 2 {
			half.Set(b)
		}
	}
	s.Step(now, Answered{2, Standing{Epoch: 1, Status: StatusReady, Have: half}})
	s.Step(now, Answered{3, Standing{Epoch: 1, Status: StatusReady, Have: whole}})
	acts = s.Step(now, ready(4, 1, 4))
	i := slices.IndexFunc(acts, func(a RootAction) bool { _, ok := a.(Send); return ok })
	if i < 0 {
		t.Fatalf("nothing is sent: %v", acts)
	}
	if send := acts[i].(Send); !slices.Equal(send.Members, []id.Node{2, 4}) || send.Blocks.Count() != 4 {
		t.Errorf("%d blocks are sent to %v", send.Blocks.Count(), send.Members)
	}
}

// A member answered the announcement of an epoch that is over: it is not in the present one yet.
func TestAnswerOfAnOlderEpochIsNotHeard(t *testing.T) {
	s, now := newTestSession(2, 4)
	s.Step(now, ready(2, 0, 4))
	s.Step(now, ready(3, 0, 4))
	s.Step(now, GroupFailed{Epoch: 0, Suspects: []Suspect{{3, owed.Unreachable}}})
	for _, st := range []Status{StatusReady, StatusVoted, StatusRefused} {
		s.Step(now, Answered{2, Standing{Epoch: 0, Status: st, Have: blockset.NewBitmap(4)}})
		if m := s.members.find(2); s.epoch != 1 || m.phase != MemberAsked {
			t.Fatalf("an answer of epoch 0, status %d, counts in epoch %d: %v", st, s.epoch, m.phase)
		}
	}
}

// A member voted and restarted: apply takes no vote of its former incarnation. It is asked again, as too few have voted
// without it, and its new vote counts.
func TestVoteOfAMemberThatRestartedDoesNotCount(t *testing.T) {
	s, now := newTestSession(2, 1)
	view := func(incarnation uint32) View {
		return View{Need: 2, Nodes: []NodeView{{2, true, 1}, {3, true, incarnation}}}
	}
	s.Step(now, view(1))
	s.Step(now, Answered{2, Standing{Status: StatusVoted}})
	s.Step(now, Answered{3, Standing{Status: StatusVoted}})
	s.Step(now, Hashed{})
	s.Step(now, view(2))
	if m := s.members.find(3); m.phase != MemberOut || s.members.count(MemberVoted) != 1 {
		t.Fatalf("%d votes count, the member that restarted is %v", s.members.count(MemberVoted), m.phase)
	}
	s.Step(now, OwnCopy{})
	if s.phase == RootEnded {
		t.Fatal("ended without the votes that it needs")
	}
	now = now.Add(s.lim.Again)
	s.Step(now, Tick{})
	s.Step(now, Answered{3, Standing{Epoch: s.epoch, Status: StatusVoted}})
	if s.phase != RootEnded || s.members.count(MemberVoted) != 2 {
		t.Errorf("phase %d, %d votes", s.phase, s.members.count(MemberVoted))
	}
}

// A member that was stopped in mid-transfer is owed the file as unreachable: it is not slow.
func TestStoppedMemberIsNotCalledSlow(t *testing.T) {
	for _, answers := range []bool{true, false} {
		now := time.Unix(1000, 0)
		s := NewRoot(RootConfig{Members: []id.Node{2, 3}, Blocks: 8, Limits: DefaultLimits()})
		s.hashKnown = true
		s.Start(now)
		for _, n := range []id.Node{2, 3} {
			s.Step(now, Answered{n, Standing{Epoch: s.epoch, Status: StatusReady, Have: blockset.NewBitmap(8)}})
		}
		s.Step(now, Flowing{s.epoch, 0})
		for i := 1; s.members.find(3).phase != MemberOut && i < 100; i++ {
			now = now.Add(100 * time.Millisecond)
			s.Step(now, Polled{2, Standing{Epoch: s.epoch, Status: StatusReceiving, Held: 1}})
			s.Step(now, Progressed{Node: 2, Epoch: s.epoch, Bytes: int64(i) << 16})
			if answers {
				s.Step(now, Polled{3, Standing{Epoch: s.epoch, Status: StatusReceiving}})
			}
			s.Step(now, Tick{})
		}
		want := owed.Unreachable
		if answers {
			want = owed.Slow
		}
		if m := s.members.find(3); m.phase != MemberOut || m.reason != want {
			t.Errorf("answers %v: phase %v, %v (%s), want %v", answers, m.phase, m.reason, m.text, want)
		}
	}
}

// A member that takes long to prepare holds the others for a while only, if they are enough. With a voter less it is
// waited for.
func TestMemberThatPreparesForLongHoldsNobody(t *testing.T) {
	for need, held := range map[int]bool{2: false, 3: true} {
		s, now := newTestSession(3, 4)
		s.need = need
		began := now
		s.Step(now, ready(2, 0, 4))
		s.Step(now, ready(4, 0, 4))
		for now.Sub(began) < 24*time.Second && s.phase == RootAnnouncing {
			now = now.Add(500 * time.Millisecond)
			s.Step(now, Answered{3, Standing{Status: StatusPreparing}})
			s.Step(now, Tick{})
		}
		m := s.members.find(3)
		if out := m.phase == MemberOut; out == held || out && m.reason != owed.Slow {
			t.Errorf("%d needed: the member is %v after %v, reason %d: %s", need, m.phase, now.Sub(began), m.reason, m.text)
		}
		if took := now.Sub(began); !held && (s.phase != RootSending || took < 10*time.Second || took > 20*time.Second) {
			t.Errorf("the others receive after %v: phase %d", took, s.phase)
		}
	}
}

// A session names a member to others that share its group only if it may be gone: one that its disk or its link fails
// may be well for them.
func TestOnlyWhoMayBeGoneIsSuspectedByOthers(t *testing.T) {
	for reason, suspects := range map[owed.Reason][]id.Node{
		owed.Full: nil, owed.Failed: nil, owed.Slow: nil, owed.Joined: nil,
		owed.Unreachable: {3}, owed.Down: {3},
	} {
		s, now := newTestSession(3, 4)
		for i := range 3 {
			s.Step(now, ready(id.Node(i+2), 0, 4))
		}
		acts := s.Step(now, Polled{3, Standing{Status: StatusRefused, Reason: reason}})
		i := slices.IndexFunc(acts, func(a RootAction) bool { _, ok := a.(EndGroup); return ok })
		if i < 0 || !slices.Equal(acts[i].(EndGroup).Suspects, suspects) {
			t.Errorf("reason %v: %+v, want suspects %v", reason, acts, suspects)
		}
	}
}

// A member that checks has every block: it is sent nothing, whatever ends the epoch before its vote.
func TestMemberThatChecksIsSentNothing(t *testing.T) {
	s, now := newTestSession(2, 4)
	s.Step(now, ready(2, 0, 4))
	s.Step(now, ready(3, 0, 4))
	s.Step(now, Joined{[]id.Node{4}})
	s.Step(now, Answered{2, Standing{Epoch: 1, Status: StatusChecking, Held: 4}})
	s.Step(now, ready(3, 1, 4))
	acts := s.Step(now, ready(4, 1, 4))
	i := slices.IndexFunc(acts, func(a RootAction) bool { _, ok := a.(Send); return ok })
	if i < 0 || !slices.Equal(acts[i].(Send).Members, []id.Node{3, 4}) {
		t.Fatalf("%v", acts)
	}
	if m := s.members.find(2); m.phase != MemberChecking || m.held != 4 {
		t.Errorf("it is in phase %d with %d blocks", m.phase, m.held)
	}
}
