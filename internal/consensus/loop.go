package consensus

import (
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

const (
	mailboxMessages  = 4096
	mailboxProposals = 1 << 16
	loopBatch        = 512      // proposals appended at once
	persistHighBytes = 64 << 20 // beyond this, appends of a leader are dropped: it sends them again
)

// mailbox is what the loop is told by others.
type mailbox struct {
	mu        sync.Mutex // protects the lists
	messages  []*raftpb.Message
	proposals []arrival
	events    []func()
	wake      chan struct{} // buffered 1
}

// arrival is a proposal with the stream a refusal goes to; nil for this node's own.
type arrival struct {
	Proposal
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

// loopState belongs to the loop (and to Open before it starts).
type loopState struct {
	core *Core
	// hard is the last hard state while there is no core.
	hard       *raftpb.HardState
	ticks      uint64
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
}

type readAnswer struct {
	index uint64
	err   error
}

func (n *Node) newCore(s *raftlog.State) error {
	core, err := NewCore(CoreConfig{ID: n.id, State: s, ElectionTicks: n.tune.ElectionTicks, HeartbeatTicks: n.tune.HeartbeatTicks,
		Intn: rand.IntN, Logger: n.log})
	if err != nil {
		return err
	}
	n.loop.core = core
	n.clocks.seeTime(core.LastTime())
	n.loop.out = newOutgoing(n.id, s.LastIndex())
	n.loop.leaving = false
	n.loop.snapSent = map[ID]time.Time{}
	if voters := votersOf(s.Base.Conf); len(voters) == 1 && voters[0] == n.id {
		core.Campaign()
	}
	return nil
}

func (n *Node) runLoop() {
	n.loop.reads = map[string]chan readAnswer{}
	tick := time.NewTicker(n.tune.Tick)
	defer tick.Stop()
	n.loop.gather = time.NewTimer(time.Hour)
	defer n.loop.gather.Stop()
	n.pump()
	for {
		select {
		case <-n.ctx.Done():
			n.failReads(n.stopped())
			return
		case <-tick.C:
			n.tick()
		case <-n.loop.gather.C:
			n.releaseHeld()
		case <-n.box.wake:
		}
		messages, proposals, events := n.box.take()
		for _, f := range events {
			f()
		}
		for _, m := range messages {
			n.receive(m)
		}
		n.offer(proposals)
		n.pump()
	}
}

func (n *Node) tick() {
	l := &n.loop
	l.ticks++
	if l.core != nil {
		l.core.Tick()
		if l.ticks%10 == 0 {
			n.tendRaft()
		}
	}
	n.tendProposals(time.Now())
}

// receive takes a raft message of a peer.
func (n *Node) receive(m *raftpb.Message) {
	core := n.loop.core
	if core == nil {
		return
	}
	switch m.GetType() {
	case raftpb.MsgSnap:
		n.receiveSnapshot(m)
		return
	case raftpb.MsgApp:
		if n.persist.bytes() > persistHighBytes {
			return
		}
	}
	n.stepped(core.Step(m))
}

func (n *Node) stepped(err error) {
	switch {
	case err == nil:
	case errors.Is(err, ErrLogShort), errors.Is(err, ErrSafety):
		n.fail(err)
	case errors.Is(err, errMessage):
		n.log.Warn("raft message dropped", "error", err)
	}
}

// offer proposes what has arrived, or says why not.
func (n *Node) offer(list []arrival) {
	for len(list) > 0 {
		part := list[:min(len(list), loopBatch)]
		list = list[len(part):]
		reason, text := n.offerBatch(part)
		if reason == 0 {
			continue
		}
		for i := range part {
			refuse := nack{run: part[i].Run, seq: part[i].Seq, reason: reason, text: text}
			if part[i].from == nil {
				n.nacked(&refuse)
			} else {
				part[i].from.send(frameNack, refuse.append)
			}
		}
	}
}

func (n *Node) offerBatch(part []arrival) (reason uint8, text string) {
	core := n.loop.core
	if core == nil || core.Status().Role != RoleLeader {
		return nackNotLeader, ""
	}
	if err := n.readOnlyErr(); err != nil {
		return nackReadOnly, err.Error()
	}
	list := make([]Proposal, len(part))
	for i := range part {
		list[i] = part[i].Proposal
	}
	err := core.Propose(n.clocks.now().UnixNano(), list)
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
func (n *Node) pump() {
	core := n.loop.core
	if core == nil {
		return
	}
	for {
		out, ok := core.Ready()
		if !ok {
			break
		}
		n.sendRaft(out.Messages)
		if out.Append != nil {
			n.append(core, out.Append)
		}
		if len(out.Apply) > 0 {
			n.commitRaft(core, out.Apply)
		}
		for _, r := range out.Reads {
			if c := n.loop.reads[r.Request]; c != nil {
				delete(n.loop.reads, r.Request)
				c <- readAnswer{index: r.Index}
			}
		}
	}
	n.armGather()
	n.publish(core)
}

// append has an append persisted. One that only moves the commit index goes with the next and, with nothing before
// it, needs no wait.
func (n *Node) append(core *Core, a *Append) {
	n.loop.out.note(a.Entries)
	if n.loop.appends == 0 && core.onlyCommit(a) {
		core.Unpersisted(a)
		return
	}
	n.loop.appends++
	n.persist.add(persistJob{batch: a.Batch(), done: func() {
		n.loop.appends--
		if n.loop.core == core {
			core.Persisted(a)
		}
	}})
}

// armGather sees to it that what is held back goes out soon.
func (n *Node) armGather() {
	l := &n.loop
	due := len(l.out.held) > 0 || n.feed.quiet()
	switch {
	case due && !l.gathering:
		l.gather.Reset(commitGather)
	case !due && l.gathering:
		l.gather.Stop()
	}
	l.gathering = due
}

// tellCommit lets everyone hear of the commit of an index, for which somebody waits after all.
func (n *Node) tellCommit(index uint64) {
	if out := n.loop.out; out != nil && out.prompt < index {
		out.prompt = index
		n.releaseHeld()
	}
}

// releaseHeld sends what was held back.
func (n *Node) releaseHeld() {
	n.loop.gathering = false
	if n.loop.core != nil {
		n.deliver(n.loop.out.release())
	}
	n.feed.announce()
}

func (n *Node) commitRaft(core *Core, list []Committed) {
	if !n.feed.push(list, n.prompt(list)) {
		n.fail(errGap)
		return
	}
	for i := range list {
		if list[i].Conf != nil && !contains(raftMembersOf(list[i].Conf), n.id) {
			n.loop.leaving = true
		}
	}
	n.applyQ.add(applyJob{entries: list, core: core})
}

// prompt tells whether a follower may be waiting for one of the entries.
func (n *Node) prompt(list []Committed) bool {
	if n.loop.core.Status().Role != RoleLeader {
		return true
	}
	for i := range list {
		if all, origin := promptOf(list[i].Type, list[i].Raw); all || origin != 0 && origin != n.id {
			return true
		}
	}
	return false
}

var errGap = errors.New("consensus: committed entries have a gap")

// sendRaft sends raft's messages, but those that can wait.
func (n *Node) sendRaft(list []*raftpb.Message) {
	if len(list) == 0 {
		return
	}
	now, keep := time.Now(), list[:0]
	for _, m := range list {
		if m = n.loop.out.pass(now, m); m != nil {
			keep = append(keep, m)
		}
	}
	n.deliver(keep)
}

// deliver sends messages to peers; those without a connection are lost.
func (n *Node) deliver(list []*raftpb.Message) {
	for _, m := range list {
		l := n.link(m.GetTo())
		if l == nil || !l.send(frameRaft, marshalRaft(m)) {
			if m.GetType() == raftpb.MsgSnap {
				n.loop.core.SnapshotFailed(m.GetTo())
			} else if m.GetType() == raftpb.MsgApp {
				n.loop.core.Unreachable(m.GetTo())
			}
			continue
		}
		if m.GetType() == raftpb.MsgSnap {
			n.loop.snapSent[m.GetTo()] = time.Now()
		}
	}
}

// publish shows the core's state to the other goroutines.
func (n *Node) publish(core *Core) {
	st := core.Status()
	s := clusterState{leader: st.Leader, term: st.Term, commit: st.Commit, confIndex: core.ConfIndex(), conf: core.Conf()}
	n.learn(s, st.Role)
}

// tendRaft runs once a second in a raft member.
func (n *Node) tendRaft() {
	l := &n.loop
	st := l.core.Status()
	now := time.Now()
	for peer, at := range l.snapSent {
		if _, waiting := l.core.Match(peer); !waiting || st.Role != RoleLeader {
			delete(l.snapSent, peer)
		} else if now.Sub(at) > 10*time.Second && !n.servesSnapshot(peer) {
			delete(l.snapSent, peer)
			l.core.SnapshotFailed(peer)
		}
	}
	if st.Role == RoleLeader && (n.readOnlyErr() != nil || n.rebuilding() != nil) && now.Sub(l.transferAt) > 3*time.Second {
		l.transferAt = now
		if to := n.healthyVoter(); to != 0 {
			n.log.Warn("handing leadership over: the log can't be written, or the state is wrong", "to", to)
			l.core.TransferLeader(to)
		}
	}
	if st.Leader == 0 && !l.asking {
		n.askWhetherRemoved()
	}
}

// healthyVoter is another voter that can write its log and has applied the most.
func (n *Node) healthyVoter() ID {
	n.mu.Lock()
	defer n.mu.Unlock()
	var best ID
	for _, id := range n.state.conf.GetVoters() {
		p := n.state.progress[id]
		if id == n.id || p == nil || p.ReadOnly || time.Since(p.LastSeen) > n.tune.StaleAfter {
			continue
		}
		if best == 0 || p.Applied > n.state.progress[best].Applied {
			best = id
		}
	}
	return best
}

func (n *Node) failReads(err error) {
	for k, c := range n.loop.reads {
		delete(n.loop.reads, k)
		c <- readAnswer{err: err}
	}
}
