package replicate

import (
	"context"
	"errors"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// Groups and registered memory. Groups that are kept for the next file hold their part of each member's budget. A
// member that has none for another group has idle ones end (rdmc.GroupConfig.Yields) and refuses; the root makes the
// group anew until all have room. Where the set has a lane already, a session goes behind the others on that one
// instead.

const (
	// memoryWait is how long a group waits for memory at its members. Those that have none then are left out, as slow.
	memoryWait = 10 * time.Second
	// memoryRetry is the first pause between two attempts, which get longer up to memoryRetryMax.
	memoryRetry    = 50 * time.Millisecond
	memoryRetryMax = 500 * time.Millisecond
	// yieldNotice is how long a root waits to hear that its group has yielded, when a member has refused a message of
	// it.
	yieldNotice = 250 * time.Millisecond
)

// errRefused is matched by the answer of a member that says no: it lives.
var errRefused = errors.New("refused")

func outOfMemory(err error) bool { return errors.Is(err, rdmc.ErrMemory) }

// setUpInTime sets the group up, again and again while this node or members have no memory for it, unless the set has
// another lane.
func (l *lanes) setUpInTime(ctx context.Context, ln *lane) (Group, error) {
	began := l.now()
	for wait := memoryRetry; ; wait = min(2*wait, memoryRetryMax) {
		group, err := l.setUp(ctx, ln)
		if err == nil {
			return group, nil
		}
		l.tell(context.WithoutCancel(ctx), ln, true)
		waited := l.now().Sub(began)
		switch {
		case !outOfMemory(err):
			return nil, err
		case l.giveWay(ln):
			l.log.Info("no registered memory for a further group: going on with those there are", "members", ln.members, "err", err)
			return nil, err
		case waited >= l.patience:
			l.log.Warn("no registered memory for a group", "members", ln.members, "waited", waited, "err", err)
			return nil, err
		}
		l.log.Debug("no registered memory for a group: waiting", "members", ln.members, "waited", waited, "err", err)
		if !after(ctx, wait) {
			return nil, err
		}
		l.mu.Lock()
		ln.number = l.numberLocked(ln.number) // members may not be rid of the last one yet
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

// giveWay takes a lane out if its set has another one that is or will be of use, and has the set try for no further
// one for a while. Of two that are made at the same time one stays.
func (l *lanes) giveWay(ln *lane) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, other := range l.sets[ln.key] {
		if other != ln && !other.spoiled() {
			l.scarce[ln.key] = l.now().Add(memoryWait)
			ln.gaveWay = true
			l.takeOutLocked(ln)
			return true
		}
	}
	return false
}

// scarceLocked reports whether a set had better try for no further lane now.
func (l *lanes) scarceLocked(key string) bool {
	until, ok := l.scarce[key]
	if ok && !l.now().Before(until) {
		delete(l.scarce, key)
		return false
	}
	return ok
}

// watch drops a lane whose group has failed, so that its memory is free as soon as nobody is on it.
func (l *lanes) watch(ln *lane) {
	select {
	case <-ln.group.Failed():
		l.drop(ln)
	case <-ln.over:
	}
}

// yielded reports whether the group of a made lane has ended for another's want of memory. A member that has seen to
// that refuses the message that was to come, perhaps before this node hears why.
func (ln *lane) yielded() bool {
	if ln.group == nil {
		return false
	}
	timer := time.NewTimer(yieldNotice)
	defer timer.Stop()
	select {
	case <-ln.group.Failed():
	case <-timer.C:
		return false
	}
	var failure *rdmc.GroupError
	return errors.As(ln.group.Err(), &failure) && failure.Reason == rdmc.ReasonYielded
}
