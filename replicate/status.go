package replicate

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// Phase is what a transfer is doing.
type Phase string

// Phases of a transfer.
const (
	PhaseAnnouncing Phase = "announcing" // asking the members
	PhaseSending    Phase = "sending"    // blocks flow
	PhaseVoting     Phase = "voting"     // all blocks are there; being checked and synced
	PhaseProposing  Phase = "proposing"  // the log decides
	PhaseVisible    Phase = "visible"    // waiting until every node shows it
	PhaseUnknown    Phase = "unknown"    // the log's answer has not come
)

// TransferStatus is one push or catch-up as it runs.
type TransferStatus struct {
	Content meta.ContentID
	Ino     meta.Ino
	Path    string
	Size    int64
	Stream  int64 // bytes that have to be sent: less than Size for deltas and files with holes
	CatchUp bool
	Phase   Phase
	Epoch   uint32
	Began   time.Time
	Members []MemberStatus
	Choice  schedule.Choice // how the last group of it was chosen to send; zero before the first
	Rate    float64         // bytes a second that the slowest member gets now
	Ended   time.Time
	Ending  Ending // "" while it runs
	Text    string // why it failed, or another session follows
}

// MemberStatus is one member of a transfer.
type MemberStatus struct {
	Node   meta.NodeID
	State  string // asked, receiving, checking, stored, out
	Bytes  int64  // of Stream, the most that it has had
	Reason meta.OwedReason
	Text   string  // why it is out
	Rate   float64 // bytes a second, over the last seconds
	Behind bool    // it had not shown the version when the close that published it returned
}

// transfers are the pushes and catch-ups that run, for status.
type transfers struct {
	mu   sync.Mutex
	all  map[*transfer]struct{}
	slow map[meta.NodeID]leftSlow // why a node was last left out as slow, by this node
	late map[meta.NodeID]lateShow // the last version that a close did not wait for any longer
	took map[Phase]time.Duration  // by pushes, since the start

	feeds []*TransferFeed
}

// leftSlow is the evidence by which a node was left out of the transfer of a content.
type leftSlow struct {
	content meta.ContentID
	text    string
}

type transfer struct {
	owner *transfers
	clock Clock
	st    TransferStatus               // guarded by owner.mu
	since time.Time                    // when its phase began; guarded by owner.mu
	seen  map[meta.NodeID]*memberTrack // of the session's goroutine
}

func newTransfers() *transfers {
	return &transfers{all: make(map[*transfer]struct{}), slow: make(map[meta.NodeID]leftSlow),
		late: make(map[meta.NodeID]lateShow), took: make(map[Phase]time.Duration)}
}

// leftOut logs the members that a session has left out, and remembers why one was too slow.
func (t *transfers) leftOut(log *slog.Logger, what string, id meta.ContentID, members []session.MemberView) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range members {
		if m.State != session.MemberOut {
			continue
		}
		log.Info(what, "content", id, "node", m.Node, "reason", m.Reason, "text", m.Text)
		if m.Reason == meta.OwedSlow {
			t.slow[m.Node] = leftSlow{id, m.Text}
		}
	}
}

// whySlow returns the evidence by which this node last left a node out as slow. It is "" if that never happened, or if
// it concerned another content than the one that is named.
func (t *transfers) whySlow(node meta.NodeID, content meta.ContentID) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.slow[node]
	if !content.IsZero() && content != last.content {
		return ""
	}
	return last.text
}

func (t *transfers) begin(clock Clock, st TransferStatus) *transfer {
	st.Began = clock.Now()
	tr := &transfer{owner: t, clock: clock, st: st, since: st.Began, seen: make(map[meta.NodeID]*memberTrack)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[tr] = struct{}{}
	return tr
}

// end is called once, with the outcome; every follower gets the last state.
func (t *transfer) end(how Ending, text string) {
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	last := t.st
	t.enterLocked("")
	delete(t.owner.all, t)
	last.Ended, last.Ending, last.Text, last.Rate = t.since, how, text, 0
	for i := range last.Members {
		last.Members[i].Rate = 0
	}
	t.owner.tellLocked(last)
}

func (t *transfer) chose(c schedule.Choice) {
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	t.st.Choice = c
}

func (t *transfer) phase(p Phase) {
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	t.enterLocked(p)
}

// enterLocked begins a phase, or none, and counts how long the one before took. owner.mu is held.
func (t *transfer) enterLocked(p Phase) {
	now := t.clock.Now()
	if !t.st.CatchUp {
		t.owner.took[t.st.Phase] += now.Sub(t.since)
	}
	t.st.Phase, t.since = p, now
}

// phaseTimes is what the phases of pushes took in all.
func (t *transfers) phaseTimes() map[Phase]time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.took)
}

// show copies what the session knows.
func (t *transfer) show(s *session.Root) {
	now := t.clock.Now()
	list := s.Members()
	members := make([]MemberStatus, len(list))
	slowest := -1.0
	for i, m := range list {
		bytes, rate := t.track(m.Node).look(now, s.Epoch(), m.State == session.MemberAsked, min(m.Bytes, t.st.Stream))
		if m.State == session.MemberVoted {
			bytes = t.st.Stream
		}
		if !m.Live() {
			rate = 0
		} else if slowest < 0 || rate < slowest {
			slowest = rate
		}
		members[i] = MemberStatus{Node: m.Node, State: m.State.String(), Bytes: bytes, Reason: m.Reason, Text: m.Text,
			Rate: rate}
	}
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	t.st.Members, t.st.Epoch = members, s.Epoch()
	if p := phaseOf(s.Phase()); p != t.st.Phase {
		t.enterLocked(p)
	}
	t.st.Rate = max(slowest, 0)
}

func (t *transfer) track(n meta.NodeID) *memberTrack {
	if t.seen[n] == nil {
		t.seen[n] = &memberTrack{asked: true}
	}
	return t.seen[n]
}

func phaseOf(p session.RootPhase) Phase {
	switch p {
	case session.RootAnnouncing:
		return PhaseAnnouncing
	case session.RootSending:
		return PhaseSending
	}
	return PhaseVoting
}

// list copies the status of all transfers, oldest first.
func (t *transfers) list() []TransferStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.listLocked()
}

func (t *transfers) listLocked() []TransferStatus {
	out := make([]TransferStatus, 0, len(t.all))
	for tr := range t.all {
		st := tr.st
		st.Members = slices.Clone(st.Members)
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b TransferStatus) int {
		return cmp.Or(a.Began.Compare(b.Began), compareIDs(a.Content, b.Content))
	})
	return out
}

// Counters are totals since the start of the process.
type Counters struct {
	Pushes         uint64 // Publish calls
	Published      uint64 // that ended in the log
	Failures       uint64 // that did not
	PublishedBytes uint64
	Epochs         uint64 // sessions continued without a failed member
	Ejected        uint64 // members that left a session before their vote
	CaughtUp       uint64 // contents that this node pushed to owed nodes
	CaughtUpBytes  uint64
	RemoteReads    uint64 // blocks fetched for readers here
	Damaged        uint64 // contents found damaged here
	Mended         uint64
}

type counters struct {
	pushes, published, failures, publishedBytes, epochs, ejected atomic.Uint64
	caughtUp, caughtUpBytes, remoteReads, damaged, mended        atomic.Uint64
}

func (c *counters) read() Counters {
	return Counters{
		Pushes: c.pushes.Load(), Published: c.published.Load(), Failures: c.failures.Load(),
		PublishedBytes: c.publishedBytes.Load(), Epochs: c.epochs.Load(), Ejected: c.ejected.Load(),
		CaughtUp: c.caughtUp.Load(), CaughtUpBytes: c.caughtUpBytes.Load(), RemoteReads: c.remoteReads.Load(),
		Damaged: c.damaged.Load(), Mended: c.mended.Load(),
	}
}
