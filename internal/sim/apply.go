package sim

import (
	"bytes"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/meta"
)

// applier calls the state machine.
type applier struct {
	applied, synced uint64
	visible         uint64
	jobs            []applyJob
	busy            bool
	session         uint64 // of following; entries of one that promoted this node are not applied
	promoted        uint64
}

// applyJob is entries, or a snapshot, or news of the configuration.
type applyJob struct {
	entries []consensus.Committed
	core    *consensus.Core
	session uint64
	restore *snapshot
	state   *stateNews
	done    func(error)
}

func (a *applier) pendingOf(core *consensus.Core) bool {
	for _, j := range a.jobs {
		if j.core == core {
			return true
		}
	}
	return false
}

func (l *life) enqueue(j applyJob) {
	l.apply.jobs = append(l.apply.jobs, j)
	l.beginApply()
}

func (l *life) beginApply() {
	a := &l.apply
	if a.busy || len(a.jobs) == 0 {
		return
	}
	a.busy = true
	wait := l.w.between(20*time.Microsecond, 2*time.Millisecond)
	if l.w.flaky && l.w.chance(200) {
		wait = l.w.between(10*time.Millisecond, time.Second) // a slow node
	}
	l.w.after(wait, l, func() {
		j := a.jobs[0]
		a.jobs = a.jobs[1:]
		a.busy = false
		l.do(j)
		l.beginApply()
	})
}

func (l *life) do(j applyJob) {
	a := &l.apply
	switch {
	case j.restore != nil:
		j.done(l.restore(j.restore))
	case j.state != nil:
		l.checkPromotion(j.state, j.session)
	case j.core != nil || j.session != a.promoted:
		last := j.entries[len(j.entries)-1].Index
		l.applyEntries(j.entries, j.core == nil, j.session)
		if j.core != nil {
			l.w.after(0, l, func() { l.appliedRaft(j.core, last) })
		}
	}
}

// applyEntries hands entries to the state machine, one after the other, and the results to those who wait. An observer stops at the
// entry that makes it a member of raft.
func (l *life) applyEntries(list []consensus.Committed, observer bool, session uint64) {
	a := &l.apply
	for len(list) > 0 && list[0].Index <= a.applied {
		list = list[1:]
	}
	if len(list) == 0 {
		return
	}
	if list[0].Index != a.applied+1 {
		l.w.fail("%s: entry %d to be applied after %d", l.m.name, list[0].Index, a.applied)
		return
	}
	var events []meta.Event
	var promotion, conf *consensus.Committed
	for i := range list {
		events = append(events, l.applyOne(&list[i])...)
		if list[i].Conf == nil || !observer {
			continue
		}
		conf = &list[i]
		if l.joinsWith(conf.Index, conf.Conf) {
			promotion = conf
			break
		}
	}
	l.changed(events)
	switch {
	case promotion != nil:
		if base, ok := l.feed.at(promotion.Index); ok {
			l.promote(base, promotion, session)
		}
	case conf != nil:
		base := raftlog.Base{Index: a.synced, Conf: conf.Conf}
		l.persist(&raftlog.Batch{Base: &base, Reset: true}, func() {})
		l.learn(l.know.leader, l.know.term, l.know.commit, conf.Conf, conf.Index)
	}
}

func (l *life) applyOne(c *consensus.Committed) []meta.Event {
	a := &l.apply
	e, p, err := c.Entry()
	if err != nil {
		l.w.fail("%s: entry %d: %v", l.m.name, c.Index, err)
		return nil
	}
	l.point("apply")
	res, events, err := l.db.Apply(e.Index, e.Time, e.Data)
	if err != nil {
		l.w.fail("%s applies entry %d: %v", l.m.name, c.Index, err)
		return nil
	}
	a.applied = e.Index
	l.w.oracle.applied(l, &e, &res, events)
	l.wrote("state")
	if w := l.proposer.waiters[p.Seq]; w != nil && p.Origin == l.id && p.Run == l.run {
		w.finish(res, nil)
	}
	return events
}

// changed tells everybody in the process what entries have changed. When it returns, mounts show it.
func (l *life) changed(events []meta.Event) {
	for _, e := range events {
		switch e.Kind {
		case meta.EventNode:
			l.viewChanged()
		case meta.EventDecided, meta.EventFenced, meta.EventRetired:
			l.decisions = append(l.decisions, e)
		}
		if e.Kind == meta.EventNode || e.Kind == meta.EventOwed {
			l.nudge()
		}
	}
	l.apply.visible = l.apply.applied
	l.carryOut()
	l.checkBarriers()
	if d := &l.duty; !d.reporting {
		d.reporting = true
		l.w.after(l.w.between(time.Millisecond, 20*time.Millisecond), l, func() {
			d.reporting = false
			l.report()
		})
	}
}

func (l *life) viewChanged() {
	l.readBook()
	for _, r := range slices.Clone(l.roots) {
		r.viewChanged()
	}
	for _, p := range slices.Clone(l.proposer.puts) {
		p.viewChanged()
	}
}

// carryOut acts on the log's decisions, behind apply and in order.
func (l *life) carryOut() {
	if l.deciding || len(l.decisions) == 0 {
		return
	}
	l.deciding = true
	l.w.after(l.diskTime(), l, func() {
		e := l.decisions[0]
		l.decisions = l.decisions[1:]
		l.deciding = false
		l.rep.CarryOut(e)
		l.carryOut()
	})
}

func (l *life) promote(base raftlog.Base, c *consensus.Committed, session uint64) {
	l.sync()
	l.apply.promoted = session
	base.Conf = c.Conf
	l.w.after(0, l, func() { l.joinRaft(base) })
}

// checkPromotion joins raft if the configuration that holds this node was applied in an earlier life.
func (l *life) checkPromotion(s *stateNews, session uint64) {
	a := &l.apply
	if session == a.promoted || s.confIndex > a.applied || !contains(consensus.Members(s.conf), l.id) || !l.joinsWith(s.confIndex, s.conf) {
		return
	}
	base, ok := l.feed.at(a.applied)
	if !ok || base.Term == 0 {
		return
	}
	l.promote(base, &consensus.Committed{Conf: s.conf}, session)
}

func (l *life) restore(s *snapshot) error {
	a := &l.apply
	if s.base.Index <= a.applied {
		return errRefused
	}
	if err := l.db.Restore(bytes.NewReader(s.data)); err != nil {
		l.w.fail("%s restores a snapshot at %d: %v", l.m.name, s.base.Index, err)
		return err
	}
	a.applied, a.synced, a.visible = s.base.Index, s.base.Index, s.base.Index
	l.w.stats.Snapshots++
	l.w.tell("%s restores a snapshot at %d", l.m.name, s.base.Index)
	l.w.oracle.restored(l)
	l.wrote("state")
	if _, ok := l.feed.at(s.base.Index); !ok {
		l.feed.reset(s.base)
	}
	l.viewChanged()
	l.rep.Restored()
	l.redispatch()
	return nil
}

func (l *life) syncIfDue() {
	if l.apply.applied > l.apply.synced {
		l.sync()
	}
}

// sync makes the state durable and lets go of the log before it.
func (l *life) sync() {
	index, err := l.db.Sync()
	if err != nil {
		l.w.fail("%s syncs its state: %v", l.m.name, err)
		return
	}
	l.apply.synced = index
	l.wrote("state")
	begin := l.feed.trim(index, l.w.tail)
	core := l.raft.core
	if core == nil || begin < core.Status().First+l.w.tail/8 {
		return
	}
	if base, moved := core.Compact(begin); moved {
		l.persist(&raftlog.Batch{Base: &base}, func() {})
	}
}
