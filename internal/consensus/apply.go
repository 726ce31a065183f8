package consensus

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

const (
	applyBatchBytes = 4 << 20  // handed to the state machine at once
	applyHighBytes  = 32 << 20 // beyond this a follow stream waits
)

// applyJob is work for the state machine: entries, or a snapshot.
type applyJob struct {
	entries []core.Committed
	core    *core.Core // whose entries they are; nil for a follow stream's
	session uint64     // of the follow stream
	restore *restoreJob
	where   chan uint64   // buffered 1: gets the applied index when the job's turn comes
	state   *clusterState // news of a follow stream: this observer may be in the configuration already
}

type restoreJob struct {
	head    snapHead
	data    io.Reader
	replace bool       // also at the index that is applied
	done    chan error // buffered 1
}

func (j *applyJob) bytes() (n uint64) {
	for i := range j.entries {
		n += j.entries[i].Bytes()
	}
	return n
}

// applyQueue feeds the goroutine that calls the state machine.
type applyQueue struct {
	mu     sync.Mutex // protects jobs, queued
	jobs   []applyJob
	queued uint64
	wake   chan struct{} // buffered 1
	room   chan struct{} // buffered 1: sent on when there is room again
}

// add queues a job; full says that the queue is over its mark, and room will be signalled.
func (q *applyQueue) add(j applyJob) (full bool) {
	q.mu.Lock()
	q.jobs = append(q.jobs, j)
	q.queued += j.bytes()
	full = q.queued > applyHighBytes
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return full
}

func (q *applyQueue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued > applyHighBytes
}

// hold counts a job that was taken and waits.
func (q *applyQueue) hold(j *applyJob) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queued += j.bytes()
}

// unhold ends that.
func (q *applyQueue) unhold(j *applyJob) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queued -= j.bytes()
	select {
	case q.room <- struct{}{}:
	default:
	}
}

func (q *applyQueue) take() (applyJob, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.jobs) == 0 {
		q.jobs = nil
		return applyJob{}, false
	}
	j := q.jobs[0]
	q.jobs = q.jobs[1:]
	q.queued -= j.bytes()
	select {
	case q.room <- struct{}{}:
	default:
	}
	return j, true
}

// applier is the goroutine's own state.
type applier struct {
	n         *Node
	sm        StateMachine
	applied   uint64
	synced    uint64
	dirtyFrom time.Time // when the first unsynced entry was applied; zero if all is synced
	// promoted is the follow session in which this observer was asked to join raft: the rest of its entries is not
	// applied, raft will bring them.
	promoted uint64
	// held are the jobs that wait while the state is being replaced.
	held []applyJob
}

// runApply is the only caller of Apply, Sync and Restore.
func (n *Node) runApply() {
	a := &applier{n: n, sm: n.cfg.StateMachine, applied: n.cfg.StateMachine.Applied(), synced: n.cfg.StateMachine.Synced()}
	if a.synced < a.applied {
		a.dirtyFrom = time.Now()
	}
	due := time.NewTimer(n.tune.SyncInterval)
	defer due.Stop()
	for {
		if !a.dirtyFrom.IsZero() {
			due.Reset(max(0, n.tune.SyncInterval-time.Since(a.dirtyFrom)))
		}
		select {
		case <-n.ctx.Done():
			a.end()
			return
		case <-due.C:
			a.syncIfDue()
		case <-n.applyQ.wake:
		}
		for n.ctx.Err() == nil {
			j, ok := n.applyQ.take()
			if !ok {
				break
			}
			if err := a.take(j); err != nil {
				n.fail(err)
				break
			}
			a.syncIfDue()
		}
	}
}

// end leaves the state synced, and answers the restores that nobody will do.
func (a *applier) end() {
	for {
		j, ok := a.n.applyQ.take()
		if !ok {
			break
		}
		if j.restore != nil {
			j.restore.done <- a.n.stopped()
		}
	}
	if !a.dirtyFrom.IsZero() && a.n.Err() == nil {
		if err := a.sm.Sync(); err != nil {
			a.n.log.Error("sync of the state at close", "error", err)
		}
	}
}

// take does a job, or holds it while the state is being replaced.
func (a *applier) take(j applyJob) error {
	if a.n.replacer.why() != nil && j.restore == nil && j.where == nil {
		a.hold(len(a.held), j)
		return nil
	}
	err := a.doOrHold(j)
	for err == nil && len(a.held) > 0 && a.n.replacer.why() == nil && a.n.ctx.Err() == nil {
		next := a.held[0]
		a.held = a.held[1:]
		a.n.applyQ.unhold(&next)
		err = a.doOrHold(next)
	}
	return err
}

// hold inserts a job at a place among the waiting ones. They count as queued, so that a follow stream waits too.
func (a *applier) hold(place int, j applyJob) {
	a.held = slices.Insert(a.held, place, j)
	a.n.applyQ.hold(&j)
}

// doOrHold does a job. A job that shows that the state is wrong is held, ahead of the jobs that came after it.
func (a *applier) doOrHold(j applyJob) error {
	err := a.do(&j)
	if errors.Is(err, ErrStateWrong) {
		a.n.Rebuild(err)
		a.hold(0, j)
		return nil
	}
	return err
}

func (a *applier) do(j *applyJob) error {
	if j.restore != nil {
		j.restore.done <- a.restore(j.restore)
		return nil
	}
	if j.where != nil {
		j.where <- a.applied
		return nil
	}
	if j.state != nil {
		return a.checkPromotion(j.state, j.session)
	}
	last := j.entries[len(j.entries)-1].Index
	list := j.entries
	for len(list) > 0 && (j.core != nil || j.session != a.promoted) {
		part := cutBatch(list)
		if err := a.apply(part, j.core == nil, j.session); err != nil {
			return err
		}
		list = list[len(part):]
	}
	if c := j.core; c != nil {
		a.n.box.event(func() { a.n.loop.applied(c, last) })
	}
	return nil
}

func cutBatch(list []core.Committed) []core.Committed {
	size := uint64(0)
	for i := range list {
		if size += list[i].Bytes(); i > 0 && size > applyBatchBytes {
			return list[:i]
		}
	}
	return list
}

// apply hands entries to the state machine, and the results to those who wait. An observer stops at the entry that
// makes it a member of raft.
func (a *applier) apply(list []core.Committed, observer bool, session uint64) error {
	for len(list) > 0 && list[0].Index <= a.applied {
		list = list[1:]
	}
	if len(list) == 0 {
		return nil
	}
	if list[0].Index != a.applied+1 {
		return fmt.Errorf("%w: %d after %d", errGap, list[0].Index, a.applied)
	}
	var promotion *core.Committed
	entries, proposals := make([]Entry, 0, len(list)), make([]core.Proposal, 0, len(list))
	for i := range list {
		e, p, err := list[i].Entry()
		if err != nil {
			return fmt.Errorf("consensus: apply entry %d: %w", list[i].Index, err)
		}
		entries, proposals = append(entries, e), append(proposals, p)
		if observer && e.Conf && a.n.joinsWith(list[i].Index, list[i].Index, list[i].Conf) {
			promotion = &list[i]
			break
		}
	}
	results, err := a.sm.Apply(entries)
	if err != nil {
		return fmt.Errorf("consensus: apply entries %d to %d: %w", entries[0].Index, entries[len(entries)-1].Index, err)
	}
	if len(results) != len(entries) {
		return fmt.Errorf("consensus: apply: %d results for %d entries", len(results), len(entries))
	}
	a.applied = entries[len(entries)-1].Index
	if a.dirtyFrom.IsZero() {
		a.dirtyFrom = time.Now()
	}
	a.n.showApplied(entries, proposals, results)
	if observer {
		return a.observeConf(list[:len(entries)], promotion, session)
	}
	return nil
}

// observeConf keeps an observer's idea of the voters, also on disk, and begins its promotion.
func (a *applier) observeConf(list []core.Committed, promotion *core.Committed, session uint64) error {
	var last *core.Committed
	for i := range list {
		if list[i].Conf != nil {
			last = &list[i]
		}
	}
	if last == nil {
		return nil
	}
	if promotion == nil {
		base := outside(a.n.id, raftlog.Base{Index: a.synced, Conf: last.Conf})
		a.n.persist.add(persistJob{batch: &raftlog.Batch{Base: &base, Reset: true}, done: func() {}})
		a.n.learn(clusterState{confIndex: last.Index, conf: last.Conf}, "")
		return nil
	}
	base, ok := a.n.feed.at(promotion.Index)
	if !ok {
		return fmt.Errorf("%w: %d", errGap, promotion.Index)
	}
	return a.promote(base, promotion.Conf, session)
}

// checkPromotion joins raft if the configuration that holds this node was applied before, in an earlier life.
func (a *applier) checkPromotion(s *clusterState, session uint64) error {
	if session == a.promoted || s.confIndex > a.applied || !slices.Contains(core.MembersOf(s.conf), a.n.id) ||
		!a.n.joinsWith(a.applied, s.confIndex, s.conf) {
		return nil
	}
	base, ok := a.n.feed.at(a.applied)
	if !ok || base.Term == 0 {
		return nil
	}
	return a.promote(base, s.conf, session)
}

func (a *applier) promote(base raftlog.Base, conf *raftpb.ConfState, session uint64) error {
	if err := a.sync(); err != nil {
		return err
	}
	a.promoted = session
	base.Conf = conf
	a.n.box.event(func() { a.n.loop.join(base) })
	return nil
}

func (a *applier) restore(r *restoreJob) error {
	if r.head.index < a.applied || r.head.index == a.applied && !r.replace {
		return fmt.Errorf("consensus: snapshot at %d is not newer than %d", r.head.index, a.applied)
	}
	if err := a.sm.Restore(r.head.index, r.head.term, r.data); err != nil {
		return fmt.Errorf("consensus: restore snapshot at %d: %w", r.head.index, err)
	}
	a.applied, a.synced, a.dirtyFrom = r.head.index, r.head.index, time.Time{}
	if _, ok := a.n.feed.at(r.head.index); !ok {
		a.n.feed.reset(r.head.base())
	}
	a.n.replacer.done()
	if a.n.cfg.Wrong != nil {
		if err := a.n.cfg.Wrong(); err != nil { // the new state too: a call of Rebuild meanwhile had no effect
			a.n.Rebuild(fmt.Errorf("%w: %w", ErrStateWrong, err))
		}
	}
	a.n.showRestored(r.head.index)
	return nil
}

func (a *applier) syncIfDue() {
	if a.dirtyFrom.IsZero() {
		return
	}
	if a.applied-a.synced < a.n.tune.SyncEntries && time.Since(a.dirtyFrom) < a.n.tune.SyncInterval {
		return
	}
	if err := a.sync(); err != nil {
		a.n.fail(err)
	}
}

func (a *applier) sync() error {
	if err := a.sm.Sync(); err != nil {
		return fmt.Errorf("consensus: sync state at %d: %w", a.applied, err)
	}
	a.dirtyFrom = time.Time{}
	a.synced = a.sm.Synced()
	n := a.n
	n.mu.Lock()
	n.state.synced = a.synced
	n.mu.Unlock()
	n.reporter.reportSelf(false)
	begin := n.feed.trim(a.synced, n.tune.TailEntries, n.tune.TailBytes)
	n.box.event(func() { n.loop.compact(begin) })
	return nil
}

// compact drops the log up to index; it runs in the loop. The log on disk is moved in larger steps.
func (rl *raftLoop) compact(index uint64) {
	c := rl.core
	if c == nil || index < c.Status().First+rl.n.tune.TailEntries/8 {
		return
	}
	if base, moved := c.Compact(index); moved {
		rl.n.persist.add(persistJob{batch: &raftlog.Batch{Base: &base}, done: func() {}})
	}
}

// applied runs in the loop when the core's entries are applied.
func (rl *raftLoop) applied(c *core.Core, last uint64) {
	if rl.core != c {
		return
	}
	c.Applied(last)
	if rl.leaving && c.Removed() {
		rl.leave(c.Conf(), c.ConfIndex())
	}
}

// showApplied publishes the applied index and wakes those who wait for it, or for a result.
func (n *Node) showApplied(entries []Entry, proposals []core.Proposal, results []any) {
	last := entries[len(entries)-1].Index
	n.mu.Lock()
	for i := range entries {
		p := &proposals[i]
		if p.Flags&core.FlagAnnounce != 0 {
			n.reporter.wanted = max(n.reporter.wanted, entries[i].Index)
		}
		if p.Origin == n.id && p.Run == n.run {
			if w := n.proposals.waiting[p.Seq]; w != nil {
				w.finish(outcome{Proposed: Proposed{Index: entries[i].Index, Time: entries[i].Time, Result: results[i],
					Skipped: w.skipped}})
				delete(n.proposals.waiting, p.Seq)
			}
		}
	}
	n.setAppliedLocked(last)
	n.mu.Unlock()
	n.reporter.reportSelf(false)
}

func (n *Node) setAppliedLocked(index uint64) {
	n.state.applied = index
	n.state.commit = max(n.state.commit, index)
	keep := n.state.waits[:0]
	for _, w := range n.state.waits {
		if w.index <= index {
			close(w.done)
		} else {
			keep = append(keep, w)
		}
	}
	n.state.waits = keep
}

// showRestored publishes a restored snapshot. Results of proposals inside it are not known here: they are proposed
// again.
func (n *Node) showRestored(index uint64) {
	n.mu.Lock()
	n.setAppliedLocked(index)
	n.state.synced = index
	for _, w := range n.proposals.waiting {
		w.skipped = w.skipped || w.open > 0
	}
	n.mu.Unlock()
	n.reporter.reportSelf(false)
	n.proposals.dispatchAll()
}
