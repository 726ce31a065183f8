package replicate

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	// lanesPerSet bounds the groups of one member set, so that a big file does not hold small ones for long.
	lanesPerSet = 4
	// lanesMax bounds all groups of which this node is the root.
	lanesMax = 64
	// laneIdle is how long an unused group is kept.
	laneIdle = time.Minute
	// groupSetup bounds the making of a group.
	groupSetup = 5 * time.Second
)

// lanes keeps the groups that have this node as root, by member set, block size and algorithm. A group carries many
// sessions, first in first out; several groups of one set let a small file pass a big one.
type lanes struct {
	peers  Peers
	groups Groups
	log    *slog.Logger
	now    func() time.Time
	// patience is how long a group waits for memory.
	patience time.Duration

	mu     sync.Mutex
	count  uint32 // of groups made, for their numbers
	sets   map[string][]*lane
	scarce map[string]time.Time // sets that have a lane and found no memory for another one: until when they try no more
	total  int
	closed bool
	wg     sync.WaitGroup // watchers, and ends of failed groups
	pace   atomic.Int64   // bytes a second that groups without a slow member reached last; 0 is unknown
}

// lane is one group at its root.
type lane struct {
	key     string
	number  uint64
	members []meta.NodeID // root first
	form    groupForm
	made    chan struct{} // closed when group or err is set
	group   Group
	err     error
	gaveWay bool          // with err: no memory, but the set has another lane
	over    chan struct{} // closed when the group was closed in good order

	// Guarded by lanes.mu.
	busy  int
	bytes int64 // of the sessions on it
	idle  time.Time
	ended bool // nobody new gets it; when it is not busy its group ends
}

func newLanes(peers Peers, groups Groups, log *slog.Logger, now func() time.Time) *lanes {
	return &lanes{
		peers: peers, groups: groups, log: log, now: now, patience: memoryWait,
		sets: make(map[string][]*lane), scarce: make(map[string]time.Time),
	}
}

func laneKey(members []meta.NodeID) string {
	c := fields{coder.Writer(make([]byte, 0, 4*len(members)), coder.Big)}
	for _, n := range members {
		c.node(&n)
	}
	return string(c.Written())
}

// acquire gives a connected group of the form, with this node as root and then the members. The error is a
// *groupFault where members are to blame. Each success is followed by one release.
func (l *lanes) acquire(ctx context.Context, self meta.Lease, members []meta.NodeID, bytes int64, form groupForm) (*lane, error) {
	for {
		ln, make, err := l.choose(self, members, bytes, form)
		if err != nil {
			return nil, err
		}
		if make {
			l.make(ctx, ln)
		}
		select {
		case <-ln.made:
		case <-ctx.Done():
			l.release(ln, bytes)
			return nil, ctx.Err()
		}
		if ln.err == nil {
			return ln, nil
		}
		l.release(ln, bytes)
		if !ln.gaveWay {
			return nil, ln.err
		}
	}
}

// choose takes an idle lane, or room for a new one, or the lane with the least to do.
func (l *lanes) choose(self meta.Lease, members []meta.NodeID, bytes int64, form groupForm) (ln *lane, make bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false, ErrClosed
	}
	key := fmt.Sprintf("%s/%d/%d/%d", laneKey(members), self.Incarnation, form.BlockBytes, form.Algorithm)
	for _, c := range slices.Clone(l.sets[key]) {
		if c.spoiled() {
			l.dropLocked(c) // of an earlier incarnation of a member, perhaps
			continue
		}
		if ln == nil || c.bytes < ln.bytes {
			ln = c
		}
	}
	if ln == nil || ln.busy > 0 && len(l.sets[key]) < lanesPerSet && l.total < lanesMax && !l.scarceLocked(key) {
		ln, make = l.addLocked(key, self, members, form), true
	}
	ln.busy++
	ln.bytes += bytes
	return ln, make, nil
}

func (l *lanes) addLocked(key string, self meta.Lease, members []meta.NodeID, form groupForm) *lane {
	number := l.numberLocked(uint64(self.Node)<<40 | uint64(self.Incarnation&0xffff)<<24)
	ln := &lane{key: key, number: number, members: members, form: form, made: make(chan struct{}), over: make(chan struct{})}
	l.sets[key] = append(l.sets[key], ln)
	l.total++
	return ln
}

// numberLocked is the number of the next group that this incarnation makes. The lower bits of the one given do not
// count.
func (l *lanes) numberLocked(like uint64) uint64 {
	l.count++
	return like&^0xffffff | uint64(l.count&0xffffff)
}

// release gives a lane back. A lane whose group has failed is dropped.
func (l *lanes) release(ln *lane, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln.busy--
	ln.bytes -= bytes
	ln.idle = l.now()
	if ln.spoiled() {
		l.dropLocked(ln)
	}
	l.buryLocked(ln)
}

// spoiled reports whether the group could not be made or has failed.
func (ln *lane) spoiled() bool {
	select {
	case <-ln.made:
		return ln.err != nil || groupFailed(ln.group)
	default:
		return false
	}
}

func groupFailed(g Group) bool {
	select {
	case <-g.Failed():
		return true
	default:
		return false
	}
}

// takeOutLocked takes the lane out of its set; nobody new gets it. It reports whether it was there.
func (l *lanes) takeOutLocked(ln *lane) bool {
	set := l.sets[ln.key]
	i := slices.Index(set, ln)
	if i < 0 {
		return false
	}
	l.total--
	if l.sets[ln.key] = slices.Delete(set, i, i+1); len(l.sets[ln.key]) == 0 {
		delete(l.sets, ln.key)
	}
	return true
}

// dropLocked takes the lane out, and ends its group as soon as nobody is on it.
func (l *lanes) dropLocked(ln *lane) {
	if l.takeOutLocked(ln) {
		ln.ended = true
		l.buryLocked(ln)
	}
}

// buryLocked ends the group of a dropped lane that nobody is on: its memory and its workers are let go.
func (l *lanes) buryLocked(ln *lane) {
	if !ln.ended || ln.busy > 0 || ln.err != nil {
		return
	}
	ln.ended = false
	l.wg.Go(ln.group.Abort)
}

// drop takes a failed lane out at once, while others may still hold it.
func (l *lanes) drop(ln *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(ln)
}

// reap closes groups that were not used for a while, and drops failed ones.
func (l *lanes) reap(ctx context.Context) {
	now := l.now()
	l.mu.Lock()
	var idle []*lane
	for _, set := range l.sets {
		for _, ln := range set {
			if ln.busy == 0 && (now.Sub(ln.idle) >= laneIdle || ln.group != nil && groupFailed(ln.group)) {
				idle = append(idle, ln)
			}
		}
	}
	for _, ln := range idle {
		l.takeOutLocked(ln)
	}
	for key := range l.scarce {
		l.scarceLocked(key)
	}
	l.mu.Unlock()
	for _, ln := range idle {
		l.end(ctx, ln)
	}
}

// end closes an unused group everywhere.
func (l *lanes) end(ctx context.Context, ln *lane) {
	defer close(ln.over)
	ctx, cancel := context.WithTimeout(ctx, groupSetup)
	defer cancel()
	l.tell(ctx, ln, false)
	if err := ln.group.Close(ctx); err != nil {
		l.log.Debug("group closed with error", "group", ln.number, "err", err)
	}
}

// close ends all groups at once. No acquire may be under way.
func (l *lanes) close() {
	l.mu.Lock()
	l.closed = true
	var all []*lane
	for _, set := range l.sets {
		all = append(all, set...)
	}
	l.sets = map[string][]*lane{}
	l.mu.Unlock()
	for _, ln := range all {
		<-ln.made
		if ln.group != nil {
			ln.group.Abort()
		}
	}
	l.wg.Wait()
}
