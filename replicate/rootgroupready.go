package replicate

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Small contents and groups. A small content goes by a group only if that is connected and brings the bytes sooner than
// calls would. It waits for a group that is being made only where calls would cost far more, and not for long.

// awaitedFrom is how many bytes on the root's link a group must save for a small content to wait for it.
const awaitedFrom = 1 << 20

// keptGroup is a group that a session has been given before it begins.
type keptGroup struct {
	group  *rootGroup
	bytes  int64 // that it has been given for
	choice schedule.Choice
	used   atomic.Bool
}

// take gives the group to who sends on it and then releases it: once, and only to who wants a group of this key that
// has not failed since; else nil.
func (k *keptGroup) take(key string) *rootGroup {
	if k == nil || k.group.key != key || groupFailed(k.group.group) || k.used.Swap(true) {
		return nil
	}
	return k.group
}

// letGo gives back a group that nobody took.
func (l *rootGroups) letGo(k *keptGroup) {
	if k != nil && !k.used.Swap(true) {
		l.release(k.group, k.bytes)
	}
}

// ready gives the connected group of the form that has the least to do, if take accepts the bytes that are queued on
// it; else nil. It does not wait. If it gives none, and the set may have a further group, one is begun in the
// background, for those who come next. made is then closed when a group that is being made is connected, or has
// failed; it is nil if there is none. Each group that is given is released once.
func (l *rootGroups) ready(
	self meta.Lease, members []meta.NodeID, bytes int64, form groupForm, take func(queued int64) bool,
) (rg *rootGroup, made <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil
	}
	key := groupKey(self, members, form)
	for _, c := range slices.Clone(l.sets[key]) {
		switch {
		case c.spoiled():
			l.dropLocked(c)
		case !c.connected():
			made = c.made
		case rg == nil || c.bytes < rg.bytes:
			rg = c
		}
	}
	if rg != nil && take(rg.bytes) {
		rg.busy++
		rg.bytes += bytes
		return rg, nil
	}
	if made == nil && l.roomLocked(key, form) {
		made = l.beginLocked(key, self, members, form).made
	}
	return nil, made
}

// connected reports whether the making of the group has ended.
func (rg *rootGroup) connected() bool {
	select {
	case <-rg.made:
		return true
	default:
		return false
	}
}

// beginLocked makes a group in the background. If that fails the set has no further try for a while.
func (l *rootGroups) beginLocked(key string, self meta.Lease, members []meta.NodeID, form groupForm) *rootGroup {
	rg := l.addLocked(key, self, members, form)
	rg.busy++ // it is not idle while it is made
	rg.background = true
	l.wg.Go(func() {
		l.make(l.ctx, rg)
		l.release(rg, 0)
		if rg.err == nil {
			return
		}
		l.log.Debug("no group for small files yet", "group", rg.number, "members", members, "err", rg.err)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.scarce[key] = l.now().Add(memoryWait)
	})
	return rg
}

// chooseWay returns the group by which a stream of up to smallMax bytes goes to the other members; nil if it goes by
// calls. It waits for a group to be made where that pays, for [Tuning.GroupAwaited] at most. The caller lets the group
// go.
func (s *pushSession) chooseWay(ctx context.Context, stream int64) *keptGroup {
	if len(s.targets.others) == 0 || s.localFirst() {
		return nil
	}
	self := s.p.cfg.Self()
	members := append([]meta.NodeID{self.Node}, slices.Sorted(slices.Values(s.targets.others))...)
	facts, under, err := factsOf(s.p.cfg.Names, members, stream, s.targets.policy.ID)
	if err != nil {
		return nil // the log will say what is wrong
	}
	facts.CallBytes = smallMax
	choice, err := schedule.Choose(facts)
	switch {
	case err != nil:
		return nil
	case choice.Calls:
	case !s.targets.self:
		choice = byCalls("this node is to hold no copy, and a session of the group would store one")
	case under.SendRate > 0 || under.Priority != meta.PriorityNormal:
		choice = byCalls("the groups of a policy with a rate or a class can be full of large files for long")
	default:
		form := formOf(facts, choice, under)
		k := &keptGroup{bytes: (stream + form.BlockBytes - 1) / form.BlockBytes * form.BlockBytes}
		choice = byCalls("no group of these members is ready")
		ready := func() (*rootGroup, <-chan struct{}) {
			return s.p.rootGroups.ready(self, members, k.bytes, form, func(queued int64) bool {
				facts.Queued = uint64(queued)
				choice, err = schedule.Choose(facts)
				return err == nil && !choice.Calls
			})
		}
		var made <-chan struct{}
		if k.group, made = ready(); k.group == nil && facts.Saved() >= awaitedFrom {
			k.group = s.p.awaitGroup(ctx, made, ready)
		}
		if k.choice = choice; k.group != nil {
			return k
		}
	}
	s.status.chose(choice)
	return nil
}

// awaitGroup asks ready again whenever a group of the set was made, until that gives one, none is being made, or the
// time is over.
func (p *Pusher) awaitGroup(
	ctx context.Context, made <-chan struct{}, ready func() (*rootGroup, <-chan struct{}),
) (rg *rootGroup) {
	over, stop := p.cfg.Clock.After(p.cfg.Tuning.GroupAwaited)
	defer stop()
	for rg == nil && made != nil {
		select {
		case <-made:
			rg, made = ready()
		case <-over:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return rg
}

// byCalls is the choice of calls for a reason that schedule.Choose does not know.
func byCalls(why string) schedule.Choice {
	return schedule.Choice{Calls: true, Algorithm: schedule.Sequential, Reasons: []string{"calls: " + why}}
}
