package replicate

import (
	"context"
	"errors"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// Groups and registered memory. Groups that are kept for the next file hold their part of each member's budget. A
// member that has no budget for another group ends idle ones (rdmc.GroupConfig.Yields) and refuses; the root makes the
// group again until all members have room. If the set of members already has a group, a session queues behind the
// others on that group instead.

const (
	// memoryWait is how long a group waits for memory at its members. Members without memory after that are left out,
	// as slow.
	memoryWait = 10 * time.Second
	// memoryRetry is the first pause between two attempts, which get longer up to memoryRetryMax.
	memoryRetry    = 50 * time.Millisecond
	memoryRetryMax = 500 * time.Millisecond
	// yieldNotice is how long a root waits to hear that its group has yielded, when a member has refused a message of
	// it.
	yieldNotice = 250 * time.Millisecond
)

// errRefused is matched by the answer of a member that refuses: it lives.
var errRefused = errors.New("refused")

func outOfMemory(err error) bool { return errors.Is(err, rdmc.ErrMemory) }

// setUpInTime sets the group up, again and again while this node or members have no memory for it, unless the set has
// another group, or no session needs this one.
func (l *rootGroups) setUpInTime(ctx context.Context, rg *rootGroup) (Group, error) {
	began := l.now()
	for wait := memoryRetry; ; wait = min(2*wait, memoryRetryMax) {
		group, err := l.setUp(ctx, rg)
		if err == nil {
			return group, nil
		}
		l.tell(context.WithoutCancel(ctx), rg, true)
		waited := l.now().Sub(began)
		switch {
		case !outOfMemory(err):
			return nil, err
		case l.giveWay(rg):
			l.log.Info("no registered memory for a further group: going on with those there are", "members", rg.members, "err",
				err)
			return nil, err
		case rg.background:
			rg.again = true // a session that waits for it makes its own
			return nil, err
		case waited >= l.patience:
			l.log.Warn("no registered memory for a group", "members", rg.members, "waited", waited, "err", err)
			return nil, err
		}
		l.log.Debug("no registered memory for a group: waiting", "members", rg.members, "waited", waited, "err", err)
		if !after(ctx, wait) {
			return nil, err
		}
		l.mu.Lock()
		rg.number = l.numberLocked(rg.number) // members may not be rid of the last one yet
		l.mu.Unlock()
	}
}

// after waits for so long, or until ctx is done: false.
func after(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// giveWay takes a group out if its set has another one that is or will be of use, and stops the set from trying for
// another one for a while. Of two that are made at the same time one stays.
func (l *rootGroups) giveWay(rg *rootGroup) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, other := range l.sets[rg.key] {
		if other != rg && !other.spoiled() {
			l.scarce[rg.key] = l.now().Add(memoryWait)
			rg.again = true
			l.takeOutLocked(rg)
			return true
		}
	}
	return false
}

// scarceLocked reports whether a set had better try for no further group now.
func (l *rootGroups) scarceLocked(key string) bool {
	until, ok := l.scarce[key]
	if ok && !l.now().Before(until) {
		delete(l.scarce, key)
		return false
	}
	return ok
}

// watch drops a group that has failed, so that its memory is free as soon as nobody is on it.
func (l *rootGroups) watch(rg *rootGroup) {
	select {
	case <-rg.group.Failed():
		l.drop(rg)
	case <-rg.over:
	}
}

// yielded reports whether a group that was made has ended because another one needed its memory. The member that ended
// it refuses the message that was to come, perhaps before this node hears why.
func (rg *rootGroup) yielded() bool {
	if rg.group == nil {
		return false
	}
	timer := time.NewTimer(yieldNotice)
	defer timer.Stop()
	select {
	case <-rg.group.Failed():
	case <-timer.C:
		return false
	}
	var failure *rdmc.GroupError
	return errors.As(rg.group.Err(), &failure) && failure.Reason == rdmc.ReasonYielded
}
