package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
)

const (
	maxWaiters     = 1 << 16
	proposeAgain   = 3 * time.Second        // without any answer
	proposeRefused = 100 * time.Millisecond // after a refusal
)

// waiter is a call of Propose; all fields are protected by the node's lock.
type waiter struct {
	p     core.Proposal
	done  chan outcome // buffered 1; gets exactly one
	over  bool
	again time.Time // when to propose again
	open  int       // how often it was sent to a leader that has not refused it: such a leader may have it
	born  time.Time
	// patient is for how long it waits for a leader when all others are refused at once; 0 if it is refused like them.
	patient time.Duration
	// skipped says that the state was replaced while a leader might have it.
	skipped bool
}

type outcome struct {
	Proposed
	err error
}

// finish answers the call, once.
func (w *waiter) finish(o outcome) {
	if !w.over {
		w.over = true
		w.done <- o
	}
}

// fail answers with an error, which is ErrUnknown too if a leader may have the proposal.
func (w *waiter) fail(err error) {
	if w.open > 0 && !errors.Is(err, ErrUnknown) {
		err = fmt.Errorf("%w: %w", err, ErrUnknown)
	}
	w.finish(outcome{err: err})
}

// proposals are the calls of Propose that wait: each is sent to the leader, and again until it is applied here.
type proposals struct {
	n *Node

	// Protected by Node.mu.
	next    uint64
	waiting map[uint64]*waiter
	hope    time.Time // until then proposals may wait for a leader, though none has been known for long
	line    time.Time // when a line of this machine last came up
}

// Propose orders data, waits until it is applied on this node, and returns what Apply returned for it. Data must not be
// changed before it returns.
//
// The same bytes may be appended to the log more than once (after a change of leader): the state machine must recognise
// them, and the result of the first of them to be applied here is returned. Errors: ErrNoQuorum (nothing can be changed
// now), ErrReadOnly, ErrTooLarge, ErrBusy, ErrClosed; with ErrUnknown among them the proposal may still be applied.
func (n *Node) Propose(ctx context.Context, data []byte, opts ProposeOptions) (Proposed, error) {
	if len(data) > n.tune.MaxProposalBytes || len(data) == 0 {
		return Proposed{}, fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, len(data), n.tune.MaxProposalBytes)
	}
	w, err := n.proposals.add(data, opts)
	if err != nil {
		return Proposed{}, err
	}
	deadline := time.NewTimer(n.tune.ProposeTimeout)
	defer deadline.Stop()
	n.proposals.dispatch(w)
	var out outcome
	select {
	case out = <-w.done:
	case <-ctx.Done():
		out.err = fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-deadline.C:
		out.err = fmt.Errorf("%w: no answer in %v", ErrUnknown, n.tune.ProposeTimeout)
	case <-n.ctx.Done():
		out.err = fmt.Errorf("%w: %w", n.stopped(), ErrUnknown)
	}
	if out.err != nil {
		n.proposals.drop(w)
		return Proposed{}, fmt.Errorf("consensus: propose: %w", out.err)
	}
	return out.Proposed, nil
}

func (ps *proposals) add(data []byte, opts ProposeOptions) (*waiter, error) {
	ps.n.mu.Lock()
	defer ps.n.mu.Unlock()
	switch {
	case ps.n.state.closed || ps.n.ctx.Err() != nil:
		return nil, ps.n.stopped()
	case ps.hopelessLocked(time.Now()) && !opts.Patient:
		return nil, fmt.Errorf("%w since %v", ErrNoQuorum, time.Since(ps.n.state.lostSince).Round(time.Second))
	case len(ps.waiting) >= maxWaiters:
		return nil, ErrBusy
	}
	ps.next++
	w := &waiter{p: core.Proposal{Origin: ps.n.id, Run: ps.n.run, Seq: ps.next, Data: data}, done: make(chan outcome, 1),
		born: time.Now()}
	if opts.Patient {
		w.patient = ps.n.tune.LeaderAwaited
	}
	if opts.Announce {
		w.p.Flags |= core.FlagAnnounce
	}
	ps.waiting[w.p.Seq] = w
	return w, nil
}

func (ps *proposals) drop(w *waiter) {
	ps.n.mu.Lock()
	defer ps.n.mu.Unlock()
	w.over = true
	delete(ps.waiting, w.p.Seq)
}

// dispatch sends a proposal to the leader, if one is known.
func (ps *proposals) dispatch(w *waiter) {
	ps.n.mu.Lock()
	leader := ps.n.state.leader
	l := ps.n.state.links[leader]
	if w.over {
		ps.n.mu.Unlock()
		return
	}
	w.again = time.Now().Add(proposeAgain)
	w.open++
	ps.n.mu.Unlock()
	sent := false
	switch {
	case leader == ps.n.id:
		sent = ps.n.box.propose(arrival{Proposal: w.p})
	case l != nil:
		sent = l.send(framePropose, func(b []byte) []byte { return appendForward(b, &w.p) })
	}
	if !sent {
		ps.n.mu.Lock()
		w.open--
		w.again = time.Now().Add(proposeRefused)
		ps.n.mu.Unlock()
		ps.hasten()
	}
}

// dispatchAll proposes all that waits again: to a new leader, or over a new connection.
func (ps *proposals) dispatchAll() {
	ps.n.mu.Lock()
	list := make([]*waiter, 0, len(ps.waiting))
	for _, w := range ps.waiting {
		list = append(list, w)
	}
	ps.n.mu.Unlock()
	for _, w := range list {
		ps.dispatch(w)
	}
}

// refused handles a leader's refusal.
func (ps *proposals) refused(refuse *nack) {
	ps.n.mu.Lock()
	defer ps.n.mu.Unlock()
	w := ps.waiting[refuse.seq]
	if w == nil || refuse.run != ps.n.run {
		return
	}
	w.open-- // refused before it was appended; but what an earlier leader took, or this one before, may still be applied
	if refuse.reason == nackReadOnly {
		w.fail(fmt.Errorf("%w: leader: %s", ErrReadOnly, refuse.text))
		delete(ps.waiting, refuse.seq)
		return
	}
	w.again = time.Now().Add(proposeRefused)
	ps.hasten()
}

// tend proposes again what has no answer, and gives up when there is no leader, at once or when the patience
// of a proposal has ended. The loop calls it when ticks have passed, and at each tick while it returns true.
func (ps *proposals) tend(now time.Time) (soon bool) {
	ps.n.mu.Lock()
	if ps.n.state.leader == 0 && !ps.n.state.noQuorum && ps.quorumLostLocked(now) {
		ps.n.state.noQuorum = true
		ps.n.log.Warn("no leader: changes fail at once until there is one")
	}
	var again []*waiter
	patience := time.Duration(0)
	if !ps.hopelessLocked(now) {
		patience = ps.n.tune.electionMax()
	}
	for seq, w := range ps.waiting {
		switch {
		case ps.n.state.noQuorum && now.Sub(w.born) >= max(w.patient, patience):
			w.fail(ErrNoQuorum)
			delete(ps.waiting, seq)
		case ps.n.state.leader != 0 && now.After(w.again):
			again = append(again, w)
		}
	}
	soon = len(ps.waiting) > 0 || ps.n.state.leader == 0
	ps.n.mu.Unlock()
	for _, w := range again {
		ps.dispatch(w)
	}
	return soon
}

// hasten makes the loop tend proposals at the next tick.
func (ps *proposals) hasten() {
	ps.n.box.event(func() { ps.n.loop.waits = true })
}

// quorumLostLocked decides that no leader will come. An election may take several rounds and is given time, but less
// when a caller has waited long already, most of it for a leader that had lost its quorum and did not know.
func (ps *proposals) quorumLostLocked(now time.Time) bool {
	lost := now.Sub(ps.n.state.lostSince)
	if lost >= ps.n.tune.LeaderLost {
		return true
	}
	for _, w := range ps.waiting {
		if w.patient == 0 && lost >= ps.n.tune.LeaderLost/2 &&
			now.Sub(w.born) >= ps.n.tune.LeaderLost+ps.n.tune.LeaderLost/16 {
			return true
		}
	}
	return false
}

// hopeAgain runs when a peer is reached that was not for a while. If a leader may be heard of now, proposals wait for
// it, as long as an election takes at most.
func (ps *proposals) hopeAgain() {
	ps.n.mu.Lock()
	defer ps.n.mu.Unlock()
	if ps.n.state.noQuorum && ps.reachesQuorumLocked() {
		ps.hopeLocked(time.Now(), "a majority of the voters is reached again: changes wait for a leader")
	}
}

func (ps *proposals) hopeLocked(now time.Time, why string) {
	ps.hope = now.Add(ps.n.tune.electionMax())
	ps.n.log.Info(why)
}

// LineUp says that a line of the node's machine is up again. If no leader is known, the node dials its peers, and
// proposals wait for a leader, as when peers are reached again: connections take up to a second to come up. A line that
// comes and goes counts once. It does not block.
func LineUp(n *Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ps, now := &n.proposals, time.Now()
	steady := now.Sub(ps.line) > n.tune.electionMax()
	ps.line = now
	if !n.state.noQuorum || !steady {
		return
	}
	ps.hopeLocked(now, "a line is up again: changes wait for a leader")
	for _, l := range n.state.links {
		signal(l.kick)
	}
}

// hopelessLocked reports whether proposals fail at once, unless they are patient.
func (ps *proposals) hopelessLocked(now time.Time) bool {
	return ps.n.state.noQuorum && !now.Before(ps.hope)
}

// reachesQuorumLocked reports whether this node is connected to a majority of the voters, itself included. An observer
// needs only the voter that it follows.
func (ps *proposals) reachesQuorumLocked() bool {
	st := &ps.n.state
	if st.role == RoleObserver {
		return st.follower != nil && slices.Contains(core.VotersOf(st.conf), st.follower.peer)
	}
	return ps.reachesMostLocked(st.conf.GetVoters()) && ps.reachesMostLocked(st.conf.GetVotersOutgoing())
}

// reachesMostLocked reports whether this node is connected to most of the voters given, or none is given.
func (ps *proposals) reachesMostLocked(voters []ID) bool {
	reached := 0
	for _, id := range voters {
		if l := ps.n.state.links[id]; id == ps.n.id || l != nil && l.isUp() {
			reached++
		}
	}
	return reached > len(voters)/2 || len(voters) == 0
}

// ReadBarrier returns when this node has applied all that was acknowledged anywhere before the call. The leader has
// seen this node at or after the begin of the call, then ([Progress].LastSeen).
func (n *Node) ReadBarrier(ctx context.Context) (index uint64, err error) {
	return n.AwaitBarrier(ctx, ProposeOptions{})
}

// AwaitBarrier is ReadBarrier for a caller that may be patient: then it waits for a leader as a proposal does.
func (n *Node) AwaitBarrier(ctx context.Context, opts ProposeOptions) (index uint64, err error) {
	limit := n.tune.ProposeTimeout
	if opts.Patient {
		limit = n.tune.LeaderAwaited
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	body, err := n.askLeader(ctx, callReadIndex, nil, opts.Patient)
	if err != nil {
		return 0, fmt.Errorf("consensus: read barrier: %w", err)
	}
	at, err := decode[number](body)
	if err != nil {
		return 0, fmt.Errorf("consensus: read barrier: %w", err)
	}
	return uint64(at), n.WaitApplied(ctx, uint64(at))
}

// readIndex asks raft, on the leader.
func (n *Node) readIndex(ctx context.Context) (uint64, error) {
	answer := make(chan readAnswer, 1)
	n.box.event(func() {
		l := &n.loop
		if l.core == nil {
			answer <- readAnswer{err: ErrNotLeader}
			return
		}
		l.nextRead++
		request := string(appendNumber(nil, l.nextRead))
		if err := l.core.ReadIndex(request); err != nil {
			answer <- readAnswer{err: err}
			return
		}
		l.reads[request] = answer
	})
	retry := time.NewTimer(time.Second) // raft drops requests before a leader's first commit, and with lost messages
	defer retry.Stop()
	select {
	case a := <-answer:
		return a.index, a.err
	case <-retry.C:
		n.box.event(func() { n.loop.forgetRead(answer) })
		return 0, ErrNotLeader // asked again by the caller
	case <-ctx.Done():
		n.box.event(func() { n.loop.forgetRead(answer) })
		return 0, ctx.Err()
	case <-n.ctx.Done():
		return 0, n.stopped()
	}
}

// forgetRead drops a request that nobody waits for.
func (l *raftLoop) forgetRead(answer chan readAnswer) {
	for k, c := range l.reads {
		if c == answer {
			delete(l.reads, k)
		}
	}
}

// WaitApplied waits until this node has applied index.
func (n *Node) WaitApplied(ctx context.Context, index uint64) error {
	n.mu.Lock()
	if n.state.applied >= index {
		n.mu.Unlock()
		return nil
	}
	w := indexWait{index: index, done: make(chan struct{})}
	n.state.waits = append(n.state.waits, w)
	n.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		n.forgetWait(w)
		return fmt.Errorf("consensus: wait for index %d: %w", index, ctx.Err())
	case <-n.ctx.Done():
		return n.stopped()
	}
}

func (n *Node) forgetWait(w indexWait) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.state.waits {
		if n.state.waits[i].done == w.done {
			n.state.waits = append(n.state.waits[:i], n.state.waits[i+1:]...)
			return
		}
	}
}

// appliedIndex is the last index that this node has applied.
func (n *Node) appliedIndex() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.applied
}
