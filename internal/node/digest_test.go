package node

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

// A node is wrong if most voters say so and have read all of their own states. One damaged node never puts out a
// healthy one.
func TestJudge(t *testing.T) {
	good, bad, other := [16]byte{1}, [16]byte{2}, [16]byte{3}
	three, five := []meta.NodeID{1, 2, 3}, []meta.NodeID{1, 2, 3, 4, 5}
	say := func(node meta.NodeID, digest [16]byte) digestAnswer {
		return answerOf(node, digest, true)
	}
	forked := func(node meta.NodeID, digest [16]byte) digestAnswer {
		a := say(node, digest)
		a.forked = true
		return a
	}
	for _, c := range []struct {
		name    string
		own     [16]byte
		answers []digestAnswer
		voters  []meta.NodeID
		want    verdict
	}{
		{"all agree", good, []digestAnswer{say(2, good), say(3, good)}, three, agrees},
		{"nobody answers", good, nil, three, agrees},
		{"one damaged voter", good, []digestAnswer{say(2, bad), say(3, good)}, three, differs},
		{"this voter is damaged", bad, []digestAnswer{say(2, good), say(3, good)}, three, outvoted},
		{"this leader is damaged, and one does not answer", bad, []digestAnswer{say(3, good)}, three, differs},
		{"this observer is damaged", bad, []digestAnswer{say(1, good), say(2, good), say(4, good)}, three, outvoted},
		{"many damaged observers", good, []digestAnswer{say(2, good), say(4, bad), say(5, bad), say(6, bad)}, three, differs},
		{"they have not read their states", bad, []digestAnswer{answerOf(2, good, false), answerOf(3, good, false)}, three,
			differs},
		{"they differ from each other", bad, []digestAnswer{say(2, good), say(3, other)}, three, differs},
		{"two of five", good, []digestAnswer{say(2, bad), say(3, bad), say(4, good), say(5, good)}, five, differs},
		{"three of five", bad, []digestAnswer{say(2, good), say(3, good), say(4, good), say(5, bad)}, five, outvoted},
		{"one voter", bad, []digestAnswer{say(1, good)}, []meta.NodeID{1}, split},
		{"one voter that has not read its state", bad, []digestAnswer{answerOf(1, good, false)}, []meta.NodeID{1}, differs},
		{"two of two voters", bad, []digestAnswer{say(1, good)}, []meta.NodeID{1, 2}, split},
		{"two of another history", bad, []digestAnswer{forked(2, good), forked(3, good)}, three, agrees},
		{"a sound one and one that has not read its state", bad, []digestAnswer{say(1, good), answerOf(3, other, false)},
			[]meta.NodeID{1}, split},
	} {
		if got, _ := judge(c.own, c.answers, c.voters); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func answerOf(node meta.NodeID, digest [16]byte, whole bool) digestAnswer {
	return digestAnswer{node: node, digest: digest, whole: whole}
}

func TestMarks(t *testing.T) {
	var m marks
	if _, ok := m.at(0); ok {
		t.Error("a mark of nothing")
	}
	for i := uint64(1); i <= marksKept+10; i++ {
		m.record(i, [16]byte{byte(i)}, entryName{})
	}
	if _, ok := m.at(10); ok {
		t.Error("a mark that was overwritten")
	}
	if got, ok := m.at(11); !ok || got.digest != [16]byte{11} {
		t.Error(got, ok)
	}
	m.forget()
	if _, ok := m.at(11); ok {
		t.Error("a mark of the state before")
	}
}

// A verdict counts for the state that it was found about, not for the one that has taken its place. Each state has
// its own.
func TestVerdictOfAnOldState(t *testing.T) {
	h := &stateHealth{db: meta.OpenMemory(), raft: &lateRaft{}, log: slog.New(slog.DiscardHandler)}
	whole, _, err := meta.OpenMemory().Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	state := h.db.State()
	h.distrust(state, errors.New("outvoted"))
	if h.db.Distrusted() == nil || !h.isRebuilding() {
		t.Fatal("the state is trusted")
	}
	h.rebuilt()
	if !h.isRebuilding() {
		t.Fatal("rebuilt without another state")
	}
	if err := h.db.Restore(whole); err != nil {
		t.Fatal(err)
	}
	h.distrust(state, errors.New("outvoted"))
	if h.rebuilt(); h.db.Distrusted() != nil || h.isRebuilding() {
		t.Fatalf("the new state is distrusted: %v", h.db.Distrusted())
	}
	h.distrust(h.db.State(), errors.New("this one too"))
	if h.rebuilt(); h.db.Distrusted() == nil || !h.isRebuilding() {
		t.Fatal("the new state is trusted")
	}
}

// Under steady writes the log goes on faster than a state is read. A node that differs comes to a verdict all the
// same: the same index is compared until both have read theirs.
func TestDifferenceIsDecidedUnderSteadyWrites(t *testing.T) {
	var r rounds
	var applied, whole, reading uint64
	left := 0 // rounds until the look that began at reading ends
	for range 50 {
		applied += 3000
		differs := r.due > 0
		if differs && whole >= r.due {
			return
		}
		if left--; left == 0 {
			whole = reading
		}
		if differs && left < 0 {
			reading, left = applied, 4
		}
		if r.due > 0 && applied-r.due >= marksKept {
			t.Fatal("the mark is gone")
		}
		r.done(differs, applied)
	}
	t.Fatal("no verdict")
}

// While nothing is applied and all agree, nodes are asked every half minute. Whatever changes is compared in the next
// round: another index, another state, a node that did not answer.
func TestIdleNodesCompareSeldom(t *testing.T) {
	var r rounds
	asked := 0
	round := func(all bool, state, applied uint64) {
		if !r.rest(state, applied) {
			asked++
			r.agreed(all, state)
			r.done(false, applied)
		}
	}
	for i, step := range []struct {
		all            bool
		state, applied uint64
		rounds, asked  int
	}{
		{true, 1, 7, 1, 1},   // of the index that was due before
		{true, 1, 7, 31, 3},  // of 7, and again after 14 rounds each
		{true, 1, 8, 1, 1},   // of 7, for 8 is new
		{true, 1, 8, 15, 1},  // of 8
		{false, 1, 9, 9, 9},  // somebody does not answer
		{true, 1, 9, 10, 1},  // all have answered
		{true, 2, 9, 1, 1},   // the state was replaced: at once
		{true, 2, 9, 9, 0},   // the new one agrees
		{true, 2, 10, 12, 2}, // of 9, then of 10
	} {
		asked = 0
		for range step.rounds {
			round(step.all, step.state, step.applied)
		}
		if asked != step.asked {
			t.Errorf("step %d: asked in %d rounds of %d, want %d", i, asked, step.rounds, step.asked)
		}
	}
}

// Every byte of the state is read again within ten minutes, unless the disk is too slow for that.
func TestStateIsReadEveryTenMinutes(t *testing.T) {
	for _, took := range []time.Duration{0, time.Second, 5 * time.Minute, 9 * time.Minute} {
		if next := took + nextVerify(took); next > 10*time.Minute {
			t.Errorf("a look of %v is followed by another after %v", took, next)
		}
	}
	if nextVerify(time.Hour) <= 0 {
		t.Error("no pause after a long look")
	}
}

// Both nodes that differ say the same: which one begins again, by which command. It is never the one that the others
// need. Of changes, each one says only what it does itself.
func TestDifferWords(t *testing.T) {
	for _, c := range []struct {
		a, b, leader, again meta.NodeID
		voters              []meta.NodeID
	}{
		{1, 2, 1, 2, []meta.NodeID{1}},
		{1, 2, 2, 1, []meta.NodeID{2}},
		{1, 2, 2, 1, []meta.NodeID{1, 2, 3}},
		{2, 5, 1, 5, []meta.NodeID{1, 2, 3}},
		{3, 4, 1, 3, []meta.NodeID{1, 2, 4}},
		{5, 6, 1, 6, []meta.NodeID{1, 2, 3}},
	} {
		held := len(c.voters) < 3
		text := differWords(c.a, c.b, c.leader, c.voters, 9, held)
		other := differWords(c.b, c.a, c.leader, c.voters, 9, held)
		if text != strings.ReplaceAll(other, fmt.Sprintf("node %d takes no", c.b), fmt.Sprintf("node %d takes no", c.a)) {
			t.Errorf("%+v: the two nodes say different things", c)
		}
		if strings.Contains(text, fmt.Sprintf("and node %d takes no changes", c.a)) != held {
			t.Errorf("%+v: three voters take changes: %s", c, text)
		}
		if !strings.Contains(text, fmt.Sprintf("then stop node %d, run 'rdmcfs evict'", c.again)) {
			t.Errorf("%+v: %s", c, text)
		}
	}
}

// Two sound states that differ hold changes back until the other node agrees or is evicted; its silence ends nothing.
func TestSplitHoldsChangesBack(t *testing.T) {
	own, other := [16]byte{1}, [16]byte{2}
	in, out := func(meta.NodeID) bool { return true }, func(meta.NodeID) bool { return false }
	for name, end := range map[string]func(s *splitState){
		"it agrees": func(s *splitState) {
			s.record(agrees, 0, own, []digestAnswer{answerOf(2, own, false)}, in)
		},
		"it is out":   func(s *splitState) { s.record(agrees, 0, own, nil, out) },
		"it is wrong": func(s *splitState) { s.record(agrees, 0, own, []digestAnswer{answerOf(2, own, true)}, in) },
	} {
		s := &splitState{}
		c := &cluster{db: meta.OpenMemory(), split: s}
		s.record(differs, 2, own, []digestAnswer{answerOf(2, other, false)}, in)
		if err := c.unsound(); err != nil {
			t.Errorf("%s: before both have read their states: %v", name, err)
		}
		s.record(split, 2, own, []digestAnswer{answerOf(2, other, true)}, in)
		s.record(agrees, 0, own, []digestAnswer{answerOf(3, own, true)}, in)
		if err := c.unsound(); !errors.Is(err, errSplit) {
			t.Errorf("%s: while they differ: %v", name, err)
		}
		if why := c.changesRefused(consensus.Status{}); why != errSplit.Error() && !strings.Contains(why, "differ") {
			t.Errorf("%s: status says of changes: %q", name, why)
		}
		if _, err := c.Propose(t.Context(), &meta.Create{}); !errors.Is(err, fs.ErrReadOnly) {
			t.Errorf("%s: a change while they differ: %v", name, err)
		}
		end(s)
		if err := c.unsound(); err != nil {
			t.Errorf("%s: afterwards: %v", name, err)
		}
	}
}
