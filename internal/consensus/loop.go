package consensus

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

const (
	mailboxMessages  = 4096
	mailboxProposals = 1 << 16
	loopBatch        = 512      // proposals appended at once
	persistHighBytes = 64 << 20 // beyond this, appends of a leader are dropped: it sends them again
)

// mailbox is what other goroutines leave for the loop.
type mailbox struct {
	mu        sync.Mutex // protects the lists
	messages  []*raftpb.Message
	proposals []arrival
	events    []func()
	wake      chan struct{} // buffered 1
}

// arrival is a proposal with the stream a refusal goes to; nil for this node's own.
type arrival struct {
	core.Proposal
	from *stream
}

func (b *mailbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// message hands over a peer's message; it is dropped when too many wait.
func (b *mailbox) message(m *raftpb.Message) {
	b.mu.Lock()
	if len(b.messages) < mailboxMessages {
		b.messages = append(b.messages, m)
	}
	b.mu.Unlock()
	b.signal()
}

func (b *mailbox) propose(a arrival) bool {
	b.mu.Lock()
	ok := len(b.proposals) < mailboxProposals
	if ok {
		b.proposals = append(b.proposals, a)
	}
	b.mu.Unlock()
	b.signal()
	return ok
}

// event runs f in the loop.
func (b *mailbox) event(f func()) {
	b.mu.Lock()
	b.events = append(b.events, f)
	b.mu.Unlock()
	b.signal()
}

func (b *mailbox) take() (messages []*raftpb.Message, proposals []arrival, events []func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages, proposals, events = b.messages, b.proposals, b.events
	b.messages, b.proposals, b.events = nil, nil, nil
	return messages, proposals, events
}

// raftLoop runs raft: it hands the core what arrives, and carries out what the core wants. All of it belongs to one
// goroutine (and to Open before that starts): its methods run there only.
type raftLoop struct {
	n    *Node
	core *core.Core
	// hard is the last hard state while there is no core.
	hard       *raftpb.HardState
	ticks      uint64
	pace       pace
	waits      bool                      // a proposal without an answer, or a leader, is waited for: each tick counts
	turned     atomic.Pointer[time.Time] // the last tick; others read it
	reads      map[string]chan readAnswer
	nextRead   uint64
	fetching   bool
	restored   *raftlog.Base // last snapshot taken in
	snapSent   map[ID]time.Time
	leaving    bool // removed from the configuration: the core ends when that is applied
	asking     bool // peers are being asked whether this node was removed
	transferAt time.Time
	appends    int // handed out to be persisted, and not yet
	out        *outgoing
	gather     *time.Timer // runs while something is held back
	gathering  bool
	holding    bool      // proposals wait, so that all that was proposed before them gets applied
	held       []arrival // the proposals that wait
}

type readAnswer struct {
	index uint64
	err   error
}

// raftLog writes the lines of raft itself.
func raftLog(to *slog.Logger) func(core.Level, string) {
	return func(level core.Level, line string) {
		switch level {
		case core.Debug:
			to.Debug(line)
		case core.Warning:
			to.Warn(line)
		case core.Fault:
			to.Error(line)
		}
	}
}

func (rl *raftLoop) newCore(s *raftlog.State) error {
	c, err := core.New(core.Config{ID: rl.n.id, State: s, ElectionTicks: rl.n.tune.ElectionTicks,
		HeartbeatTicks: rl.n.tune.HeartbeatTicks,
		Intn:           rand.IntN, Log: raftLog(rl.n.log)})
	if err != nil {
		return err
	}
	rl.core = c
	rl.n.clocks.seeTime(c.LastTime())
	rl.out = newOutgoing(rl.n.id, s.LastIndex())
	rl.leaving = false
	rl.snapSent = map[ID]time.Time{}
	if voters := core.VotersOf(s.Base.Conf); len(voters) == 1 && voters[0] == rl.n.id {
		c.Campaign()
	}
	return nil
}

func (rl *raftLoop) run() {
	rl.reads = map[string]chan readAnswer{}
	rl.pace = newPace(rl.n.tune.Tick, rl.n.tune.HeartbeatTicks)
	defer rl.pace.timer.Stop()
	rl.gather = time.NewTimer(time.Hour)
	defer rl.gather.Stop()
	rl.noteTurn(time.Now())
	rl.pump()
	for {
		select {
		case <-rl.n.ctx.Done():
			rl.failReads(rl.n.stopped())
			return
		case <-rl.pace.timer.C:
			rl.pace.armed = time.Time{}
		case <-rl.gather.C:
			rl.releaseHeld()
		case <-rl.n.box.wake:
		}
		rl.tick(rl.pace.passed(time.Now()))
		messages, proposals, events := rl.n.box.take()
		for _, f := range events {
			f()
		}
		for _, m := range messages {
			rl.receive(m)
		}
		rl.offer(proposals)
		rl.pump()
		rl.pace.plan(rl.quiet(), time.Now())
	}
}

// pace is the clock of the loop. It wakes the loop when something is due, and counts the ticks that have passed by
// then, or until something else wakes it. A loop that stood still does not make up for it.
type pace struct {
	tick    time.Duration
	still   int       // ticks that count at most when the loop stood still
	counted time.Time // up to here all ticks are counted, or lost
	planned int       // ticks that may pass before the loop must turn
	armed   time.Time // when the timer fires, zero if it does not
	timer   *time.Timer
}

func newPace(tick time.Duration, still int) pace {
	now := time.Now()
	return pace{tick: tick, still: still, counted: now, planned: 1, armed: now.Add(tick), timer: time.NewTimer(tick)}
}

// passed is how many ticks have passed since it was called last. If they are more than were planned, the loop stood
// still, and the messages that came meanwhile may not be here yet: few of the ticks count.
func (p *pace) passed(now time.Time) int {
	n := int(now.Sub(p.counted) / p.tick)
	if n > p.planned {
		n = min(p.planned, p.still)
	}
	p.counted = p.counted.Add(time.Duration(n) * p.tick)
	if now.Sub(p.counted) >= p.tick {
		p.counted = now
	}
	return n
}

// plan makes the loop turn when so many ticks will have passed since the last that was counted.
func (p *pace) plan(ticks int, now time.Time) {
	p.planned = ticks
	if at := p.counted.Add(time.Duration(ticks) * p.tick); !at.Equal(p.armed) {
		p.armed = at
		p.timer.Reset(at.Sub(now))
	}
}

// quiet is how many ticks may pass before the loop must turn.
func (rl *raftLoop) quiet() int {
	switch {
	case rl.waits:
		return 1
	case rl.core == nil:
		return rl.n.tune.ElectionTicks - 1
	}
	return rl.core.Quiet()
}

func (rl *raftLoop) noteTurn(now time.Time) { rl.turned.Store(&now) }

// LastTurn is when the loop of a node last counted a tick, zero before it runs. A loop that waits for something for
// ever does not hear of it.
func LastTurn(n *Node) time.Time {
	if at := n.loop.turned.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// tick lets ticks pass.
func (rl *raftLoop) tick(count int) {
	if count == 0 {
		return
	}
	rl.noteTurn(time.Now())
	for range count {
		rl.ticks++
		if rl.core == nil {
			continue
		}
		rl.core.Tick()
		if rl.ticks%10 == 0 {
			rl.tend()
		}
	}
	rl.waits = rl.n.proposals.tend(time.Now())
}

// receive takes a raft message of a peer.
func (rl *raftLoop) receive(m *raftpb.Message) {
	c := rl.core
	if c == nil {
		return
	}
	switch m.GetType() {
	case raftpb.MsgSnap:
		rl.receiveSnapshot(m)
		return
	case raftpb.MsgApp:
		if rl.n.persist.bytes() > persistHighBytes {
			return
		}
	}
	before := c.Status().Commit
	err := c.Step(m)
	rl.stepped(err)
	agrees := m.GetType() == raftpb.MsgApp && c.Status().Commit > before ||
		m.GetType() == raftpb.MsgAppResp && !m.GetReject()
	if err == nil && agrees {
		rl.n.histories.note(m.GetFrom(), "")
	}
}

func (rl *raftLoop) stepped(err error) {
	var diverged *core.DivergedError
	switch {
	case err == nil:
	case errors.As(err, &diverged):
		rl.diverged(diverged)
	case errors.Is(err, ErrLogShort), errors.Is(err, ErrSafety):
		rl.n.fail(err)
	case errors.Is(err, core.ErrMessage):
		rl.n.log.Warn("raft message dropped", "error", err)
	}
}

// diverged makes known here and at a member that the two have different histories.
func (rl *raftLoop) diverged(d *core.DivergedError) {
	if why := rl.n.histories.ofVoter(d); why != "" {
		if l := rl.n.link(d.Peer); l != nil {
			l.send(frameDiverged, func(b []byte) []byte { return append(b, why...) })
		}
	}
}

// tellMarks tells members how far each is known to be, once a second; the leader tells all of them everything.
func (rl *raftLoop) tellMarks() {
	list, term := rl.core.NoteMarks()
	for _, id := range core.MembersOf(rl.core.Conf()) {
		if len(list) > 0 && id != rl.n.id {
			rl.sendMarks(id, markList{term, list})
		}
	}
	if unsaved := rl.core.SaveMarks(); unsaved != nil {
		rl.n.persist.add(persistJob{batch: &raftlog.Batch{Marks: unsaved}, done: func() {}})
	}
}

func (rl *raftLoop) sendMarks(to ID, marks markList) {
	if l := rl.n.link(to); l != nil {
		l.send(frameMarks, marks.append)
	}
}

// hold makes proposals wait until it is called with false, while this node leads.
func (rl *raftLoop) hold(on bool) { rl.holding = on }

// offer proposes what has arrived, or says why not.
func (rl *raftLoop) offer(list []arrival) {
	list = append(rl.held, list...)
	rl.held = nil
	if rl.holding && len(list) <= mailboxProposals && rl.core != nil && rl.core.Status().Role == RoleLeader {
		rl.held = list
		return
	}
	for len(list) > 0 {
		part := list[:min(len(list), loopBatch)]
		list = list[len(part):]
		reason, text := rl.offerBatch(part)
		if reason == 0 {
			continue
		}
		for i := range part {
			refuse := nack{run: part[i].Run, seq: part[i].Seq, reason: reason, text: text}
			if part[i].from == nil {
				rl.n.proposals.refused(&refuse)
			} else {
				part[i].from.send(frameNack, refuse.append)
			}
		}
	}
}

func (rl *raftLoop) offerBatch(part []arrival) (reason uint8, text string) {
	c := rl.core
	if c == nil || c.Status().Role != RoleLeader {
		return nackNotLeader, ""
	}
	if err := rl.n.readOnlyErr(); err != nil {
		return nackReadOnly, err.Error()
	}
	list := make([]core.Proposal, len(part))
	for i := range part {
		list[i] = part[i].Proposal
	}
	err := c.Propose(rl.n.clocks.now().UnixNano(), list)
	switch {
	case err == nil:
		return 0, ""
	case errors.Is(err, ErrNotLeader):
		return nackNotLeader, ""
	default:
		return nackDropped, err.Error()
	}
}

// pump carries out what the core wants until it wants nothing more.
func (rl *raftLoop) pump() {
	c := rl.core
	if c == nil {
		return
	}
	for {
		out, ok := c.Ready()
		if !ok {
			break
		}
		rl.send(out.Messages)
		for _, k := range out.Short {
			rl.sendMarks(k.ID, markList{c.Status().Term, []raftlog.Mark{k}})
		}
		if out.Append != nil {
			rl.append(c, out.Append)
		}
		if len(out.Apply) > 0 {
			rl.commit(c, out.Apply)
		}
		for _, r := range out.Reads {
			if asked := rl.reads[r.Request]; asked != nil {
				delete(rl.reads, r.Request)
				asked <- readAnswer{index: r.Index}
			}
		}
	}
	rl.armGather()
	rl.publish(c)
}

// append queues an append to be persisted. An append that only moves the commit index goes with the next one and, if
// nothing is queued before it, needs no wait.
func (rl *raftLoop) append(c *core.Core, a *core.Append) {
	rl.out.note(a.Entries)
	if rl.appends == 0 && c.OnlyCommit(a) {
		c.Unpersisted(a)
		return
	}
	rl.appends++
	rl.n.persist.add(persistJob{batch: a.Batch(), done: func() {
		rl.appends--
		if rl.core == c {
			c.Persisted(a)
		}
	}})
}

// armGather makes sure that what is held back goes out soon.
func (rl *raftLoop) armGather() {
	due := len(rl.out.held) > 0 || rl.n.feed.quiet()
	switch {
	case due && !rl.gathering:
		rl.gather.Reset(commitGather)
	case !due && rl.gathering:
		rl.gather.Stop()
	}
	rl.gathering = due
}

// tellCommit lets everyone hear of the commit of an index, because somebody waits for it after all.
func (rl *raftLoop) tellCommit(index uint64) {
	if out := rl.out; out != nil && out.prompt < index {
		out.prompt = index
		rl.releaseHeld()
	}
}

// releaseHeld sends what was held back.
func (rl *raftLoop) releaseHeld() {
	rl.gathering = false
	if rl.core != nil {
		rl.deliver(rl.out.release())
	}
	rl.n.feed.announce()
}

func (rl *raftLoop) commit(c *core.Core, list []core.Committed) {
	if !rl.n.feed.push(list, rl.prompt(list)) {
		rl.n.fail(errGap)
		return
	}
	for i := range list {
		if list[i].Conf != nil {
			rl.leaving = !slices.Contains(core.MembersOf(list[i].Conf), rl.n.id)
		}
	}
	rl.n.applyQ.add(applyJob{entries: list, core: c})
}

// prompt reports whether a follower may be waiting for one of the entries.
func (rl *raftLoop) prompt(list []core.Committed) bool {
	if rl.core.Status().Role != RoleLeader {
		return true
	}
	for i := range list {
		if all, origin := promptOf(list[i].Type, list[i].Raw); all || origin != 0 && origin != rl.n.id {
			return true
		}
	}
	return false
}

var errGap = errors.New("consensus: committed entries have a gap")

// send sends raft's messages, except those that can wait.
func (rl *raftLoop) send(list []*raftpb.Message) {
	if len(list) == 0 {
		return
	}
	now, keep := time.Now(), list[:0]
	for _, m := range list {
		if m = rl.out.pass(now, m); m != nil {
			keep = append(keep, m)
		}
	}
	rl.deliver(keep)
}

// deliver sends messages to peers; those without a connection are lost.
func (rl *raftLoop) deliver(list []*raftpb.Message) {
	for _, m := range list {
		l := rl.n.link(m.GetTo())
		if l == nil || !l.send(frameRaft, marshalRaft(m)) {
			if m.GetType() == raftpb.MsgSnap {
				rl.core.SnapshotFailed(m.GetTo())
			} else if m.GetType() == raftpb.MsgApp {
				rl.core.Unreachable(m.GetTo())
			}
			continue
		}
		if m.GetType() == raftpb.MsgSnap {
			rl.snapSent[m.GetTo()] = time.Now()
		}
	}
}

// publish shows the core's state to the other goroutines.
func (rl *raftLoop) publish(c *core.Core) {
	st := c.Status()
	s := clusterState{leader: st.Leader, term: st.Term, commit: st.Commit, confIndex: c.ConfIndex(), conf: c.Conf()}
	rl.n.learn(s, st.Role)
}

// tend runs once a second in a raft member.
func (rl *raftLoop) tend() {
	st := rl.core.Status()
	now := time.Now()
	rl.tellMarks()
	for peer, at := range rl.snapSent {
		if _, waiting := rl.core.Match(peer); !waiting || st.Role != RoleLeader {
			delete(rl.snapSent, peer)
		} else if now.Sub(at) > 10*time.Second && !rl.n.snapshots.serves(peer) {
			delete(rl.snapSent, peer)
			rl.core.SnapshotFailed(peer)
		}
	}
	if st.Role == RoleLeader && (rl.n.readOnlyErr() != nil || rl.n.replacer.why() != nil || rl.n.resigned.Load()) {
		rl.handOver(now)
	}
	left := rl.leaving && !rl.core.Applying() // and a change in the log, which may be lost, keeps it
	if (st.Leader == 0 || left) && !rl.asking {
		rl.askWhetherRemoved()
	}
}

// handOver gives leadership to another voter that is well. It waits for the end of an attempt before the next one.
func (rl *raftLoop) handOver(now time.Time) {
	if now.Sub(rl.transferAt) <= 3*time.Second {
		return
	}
	if to := rl.healthyVoter(); to != 0 {
		rl.transferAt = now
		rl.n.log.Info("leadership is handed over", "to", to)
		rl.core.TransferLeader(to)
	}
}

// healthyVoter is another voter that can write its log and has applied the most. This node has a connection to it, by
// which it hears that it is to lead.
func (rl *raftLoop) healthyVoter() ID {
	n := rl.n
	n.mu.Lock()
	defer n.mu.Unlock()
	var best ID
	for _, id := range n.state.conf.GetVoters() {
		p := n.reporter.nodes[id]
		l := n.state.links[id]
		if id == n.id || p == nil || p.ReadOnly || time.Since(p.LastSeen) > n.tune.StaleAfter || l == nil || !l.isUp() {
			continue
		}
		if best == 0 || p.Applied > n.reporter.nodes[best].Applied {
			best = id
		}
	}
	return best
}

func (rl *raftLoop) failReads(err error) {
	for k, c := range rl.reads {
		delete(rl.reads, k)
		c <- readAnswer{err: err}
	}
}
