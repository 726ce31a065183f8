package consensus

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
)

// nodeProgress is what is known of a node, and what of it was passed on.
type nodeProgress struct {
	Progress
	passed report // as last passed on towards the leader
	fresh  bool   // heard of since then
}

// barrier waits for nodes to make an index visible.
type barrier struct {
	index   uint64
	pending map[ID]struct{}
	done    chan struct{} // closed when nothing is pending
}

// reporter knows how far each node is. It takes reports of other nodes, passes them on towards the leader, and lets
// barriers wait for them.
type reporter struct {
	n            *Node
	urgent, news chan struct{} // buffered 1: pass reports on now, or gather them for a while

	// Protected by Node.mu.
	nodes    map[ID]*nodeProgress
	barriers map[*barrier]struct{}
	wanted   uint64 // progress up to here is reported at once
	lazy     bool   // reports are being gathered
}

func newReporter(n *Node) *reporter {
	return &reporter{
		n: n, urgent: make(chan struct{}, 1), news: make(chan struct{}, 1),
		nodes: map[ID]*nodeProgress{}, barriers: map[*barrier]struct{}{},
	}
}

// SetVisible says that all up to index is visible in the mounts of this node: kernel caches have been dropped.
func (n *Node) SetVisible(index uint64) {
	n.mu.Lock()
	changed := index > n.state.visible
	n.state.visible = max(n.state.visible, index)
	n.mu.Unlock()
	if changed {
		n.reporter.reportSelf(false)
	}
}

// reportSelf takes note of this node's own progress, and passes it on: at once if somebody waits for it.
func (rp *reporter) reportSelf(urgent bool) {
	rp.n.mu.Lock()
	s := &rp.n.state
	p := rp.nodes[rp.n.id]
	if p == nil {
		p = &nodeProgress{}
		rp.nodes[rp.n.id] = p
	}
	p.Progress = Progress{Applied: s.applied, Synced: s.synced, Visible: s.visible, ReadOnly: s.readOnly != nil,
		LastSeen: time.Now()}
	p.fresh = true
	rp.reachedLocked(rp.n.id, p.Visible)
	urgent = urgent || p.passed.visible < rp.wanted && p.Visible > p.passed.visible
	now := urgent && s.leader != rp.n.id
	if !now {
		rp.passOnLocked(false)
	}
	rp.n.mu.Unlock()
	if now {
		rp.passOn()
	}
}

// take takes the progress of other nodes, on its way to the leader.
func (rp *reporter) take(body []byte) error {
	list, err := decode[reportList](body)
	if err != nil {
		return err
	}
	now, urgent := time.Now(), false
	rp.n.mu.Lock()
	defer rp.n.mu.Unlock()
	for i := range list {
		r := &list[i]
		if r.id == rp.n.id || r.id == 0 {
			continue
		}
		p := rp.nodes[r.id]
		if p == nil {
			p = &nodeProgress{}
			rp.nodes[r.id] = p
		}
		seen := now.Add(-time.Duration(r.ageMillis) * time.Millisecond)
		if seen.Before(p.LastSeen) && r.applied < p.Applied {
			continue // older news that took a longer way
		}
		p.Progress = Progress{Applied: r.applied, Synced: r.synced, Visible: r.visible, ReadOnly: r.flags&reportReadOnly != 0,
			LastSeen: later(seen, p.LastSeen)}
		p.fresh = true
		rp.reachedLocked(r.id, r.visible)
		urgent = urgent || r.flags&reportUrgent != 0 || p.passed.visible < rp.wanted && r.visible > p.passed.visible
	}
	rp.passOnLocked(urgent)
	return nil
}

// later is the later of two times: what took a longer way does not make a node silent.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// heard takes a call of a node for a sign of its life.
func (rp *reporter) heard(id ID) {
	rp.n.mu.Lock()
	defer rp.n.mu.Unlock()
	p := rp.nodes[id]
	if p == nil {
		p = &nodeProgress{}
		rp.nodes[id] = p
	}
	p.LastSeen = time.Now()
}

// reachedLocked tells barriers how far a node is.
func (rp *reporter) reachedLocked(id ID, visible uint64) {
	for b := range rp.barriers {
		if _, ok := b.pending[id]; ok && visible >= b.index {
			delete(b.pending, id)
			if len(b.pending) == 0 {
				close(b.done)
				delete(rp.barriers, b)
			}
		}
	}
}

// passOnLocked makes the reports go to the leader: now, or gathered for a while.
func (rp *reporter) passOnLocked(urgent bool) {
	if rp.n.state.leader == rp.n.id {
		return
	}
	if urgent {
		signal(rp.urgent)
	} else if !rp.lazy {
		rp.lazy = true
		signal(rp.news)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// reportAll passes on everything again: the receiver is new.
func (rp *reporter) reportAll() {
	rp.n.mu.Lock()
	defer rp.n.mu.Unlock()
	for _, p := range rp.nodes {
		p.fresh, p.passed = true, report{}
	}
	rp.passOnLocked(true)
}

// run passes reports on: urgent ones at once, others gathered, and signs of life every second.
func (rp *reporter) run() {
	alive := time.NewTicker(time.Second)
	defer alive.Stop()
	gather := time.NewTimer(time.Hour)
	defer gather.Stop()
	for {
		select {
		case <-rp.n.ctx.Done():
			return
		case <-rp.news:
			gather.Reset(rp.n.tune.ReportInterval)
			continue
		case <-rp.urgent:
		case <-gather.C:
		case <-alive.C:
			rp.reportSelf(false)
			rp.reportDirect()
			rp.tellCommitted()
		}
		rp.passOn()
	}
}

// passOn sends what is new: an observer to the voter it follows, a raft member to the leader.
func (rp *reporter) passOn() {
	rp.n.mu.Lock()
	s := &rp.n.state
	rp.lazy = false
	var via interface {
		send(kind uint8, fill func([]byte) []byte) bool
	}
	switch {
	case s.leader == rp.n.id:
	case s.role == RoleObserver && s.follower != nil && s.follower.begun:
		via = s.follower.stream
	case s.role != RoleObserver && s.links[s.leader] != nil:
		via = s.links[s.leader]
	}
	if via == nil {
		rp.n.mu.Unlock()
		return
	}
	var list []report
	now := time.Now()
	for id, p := range rp.nodes {
		if !p.fresh || len(list) == maxReports {
			continue
		}
		p.fresh = false
		r := report{id: id, applied: p.Applied, synced: p.Synced, visible: p.Visible,
			ageMillis: uint32(max(0, now.Sub(p.LastSeen).Milliseconds()))}
		if p.ReadOnly {
			r.flags |= reportReadOnly
		}
		if p.passed.visible < rp.wanted && p.Visible > p.passed.visible {
			r.flags |= reportUrgent
		}
		p.passed = r
		list = append(list, r)
	}
	rp.n.mu.Unlock()
	if len(list) > 0 {
		via.send(frameReports, func(b []byte) []byte { return appendReports(b, list) })
	}
}

// reportDirect sends an observer's own progress to the leader itself, as a sign of life and if the leader asks for it:
// the voter that is followed may be reachable and still be unable to pass anything on.
func (rp *reporter) reportDirect() {
	rp.n.mu.Lock()
	s := &rp.n.state
	l := s.links[s.leader]
	if s.role != RoleObserver || l == nil {
		rp.n.mu.Unlock()
		return
	}
	r := report{id: rp.n.id, applied: s.applied, synced: s.synced, visible: s.visible}
	if s.readOnly != nil {
		r.flags |= reportReadOnly
	}
	rp.n.mu.Unlock()
	l.send(frameReports, func(b []byte) []byte { return appendReports(b, []report{r}) })
}

// want asks for progress up to index at once, here and from those who report to this node.
func (rp *reporter) want(index uint64) {
	rp.n.mu.Lock()
	defer rp.n.mu.Unlock()
	if index <= rp.wanted {
		return
	}
	rp.wanted = index
	for s := range rp.n.state.streams {
		s.send(frameWant, func(b []byte) []byte { return appendNumber(b, index) })
	}
	if f := rp.n.state.follower; f != nil {
		signal(f.wanted)
	}
	if p := rp.nodes[rp.n.id]; p != nil && p.Visible > p.passed.visible {
		rp.passOnLocked(true)
	}
}

// Barrier waits until the nodes that are up have made index visible. It returns the nodes that have not done
// so in time, as the present leader reports them. An error means that nobody knows: there is no leader, or none that
// answers. A patient caller waits for one for as long as a patient proposal.
func (n *Node) Barrier(ctx context.Context, index uint64, opts ProposeOptions) (behind []ID, err error) {
	timeout := n.tune.BarrierTimeout
	bound := timeout + time.Second
	if opts.Patient {
		bound += n.tune.LeaderAwaited
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	ask := barrierCall{index: index, timeoutMs: uint64(timeout.Milliseconds()), flags: barrierAllUp}
	if opts.Announced {
		ask.flags |= barrierAnnounced
	}
	body, err := n.askLeader(ctx, callBarrier, appendBody(nil, &ask), opts.Patient)
	if err == nil {
		behind, err = decode[idList](body)
	}
	if err != nil {
		return nil, fmt.Errorf("consensus: barrier at %d: %w", index, err)
	}
	return behind, nil
}

// answerBarrier is the leader's part of Barrier.
func (rp *reporter) answerBarrier(ctx context.Context, body []byte) ([]byte, error) {
	ask, err := decode[barrierCall](body)
	if err != nil {
		return nil, err
	}
	timeout := time.Duration(ask.timeoutMs) * time.Millisecond
	behind, err := rp.awaitVisible(ctx, ask.index, timeout, ask.flags, ask.nodes)
	if err != nil {
		return nil, err
	}
	if len(behind) > 0 {
		if _, err := rp.n.readIndex(ctx); err != nil { // this node may be cut off, and not they
			return nil, err
		}
	}
	return appendBody(nil, (*idList)(&behind)), nil
}

// awaitVisible waits for nodes to make an index visible, and returns the nodes that have not.
func (rp *reporter) awaitVisible(
	ctx context.Context, index uint64, timeout time.Duration, flags uint8, nodes []ID,
) ([]ID, error) {
	if flags&barrierAllUp != 0 && rp.n.cfg.Members != nil {
		// only after this does this node know which nodes are up at index
		if err := rp.waitAppliedFor(ctx, index, timeout); err != nil {
			return nil, err
		}
		for _, m := range rp.n.cfg.Members() {
			if m.Up {
				nodes = append(nodes, m.ID)
			}
		}
	}
	if flags&barrierAnnounced == 0 {
		rp.want(index)
		rp.n.box.event(func() { rp.n.loop.tellCommit(index) })
	}
	b, err := rp.beginBarrier(index, nodes)
	if err != nil {
		return nil, err
	}
	behind := rp.waitBarrier(ctx, b, min(timeout, time.Minute))
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return behind, nil
}

func (rp *reporter) waitAppliedFor(ctx context.Context, index uint64, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, min(timeout, time.Minute))
	defer cancel()
	return rp.n.WaitApplied(ctx, index)
}

func (rp *reporter) beginBarrier(index uint64, nodes []ID) (*barrier, error) {
	rp.n.mu.Lock()
	defer rp.n.mu.Unlock()
	if rp.n.state.leader != rp.n.id {
		return nil, ErrNotLeader
	}
	b := &barrier{index: index, pending: map[ID]struct{}{}, done: make(chan struct{})}
	for _, id := range nodes {
		if p := rp.nodes[id]; p == nil || p.Visible < index {
			b.pending[id] = struct{}{}
		}
	}
	if len(b.pending) == 0 {
		close(b.done)
	} else {
		rp.barriers[b] = struct{}{}
	}
	return b, nil
}

// waitBarrier returns the nodes that are behind at the end. Nodes that have not been heard of for a while end it early.
func (rp *reporter) waitBarrier(ctx context.Context, b *barrier, timeout time.Duration) []ID {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	check := time.NewTicker(100 * time.Millisecond)
	defer check.Stop()
	for waiting := !rp.allStale(b); waiting; {
		select {
		case <-b.done:
			return nil
		case <-ctx.Done():
			waiting = false
		case <-rp.n.ctx.Done():
			waiting = false
		case <-deadline.C:
			waiting = false
		case <-check.C:
			rp.remindBarrier(b)
			waiting = !rp.allStale(b)
		}
	}
	rp.n.mu.Lock()
	defer rp.n.mu.Unlock()
	delete(rp.barriers, b)
	return slices.Sorted(maps.Keys(b.pending))
}

// allStale reports whether all pending nodes have been silent for too long. A third of StaleAfter is enough for nodes
// whose connections are gone, as they are when a process dies. A live node reconnects sooner than that, except to a new
// leader: an observer hears of it only once it has left the old leader, or a voter that follows the old leader.
func (rp *reporter) allStale(b *barrier) bool {
	rp.n.mu.Lock()
	defer rp.n.mu.Unlock()
	voters, connected := map[ID]bool{}, map[ID]bool{}
	for _, id := range core.VotersOf(rp.n.state.conf) {
		voters[id] = true
	}
	for s := range rp.n.state.streams {
		connected[s.peer] = true
	}
	for id := range b.pending {
		limit := rp.n.tune.StaleAfter
		if !connected[id] && (voters[id] || time.Since(rp.n.state.ledSince) >= rp.n.tune.StaleAfter) {
			limit /= 3
		}
		seen := rp.n.state.ledSince
		if p := rp.nodes[id]; p != nil && p.LastSeen.After(seen) {
			seen = p.LastSeen
		}
		if time.Since(seen) < limit {
			return false
		}
	}
	return len(b.pending) > 0
}
