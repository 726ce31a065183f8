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
	// groupsPerSet bounds the groups of one member set, so that a big file does not hold small ones for long.
	groupsPerSet = 4
	// rootGroupsMax bounds all groups of which this node is the root.
	rootGroupsMax = 64
	// groupIdle is how long an unused group is kept.
	groupIdle = time.Minute
	// groupSetup bounds the making of a group.
	groupSetup = 5 * time.Second
)

// rootGroups keeps the groups that have this node as root, by member set, block size and algorithm. A group carries
// many sessions, first in first out; several groups of one set let a small file pass a big one.
type rootGroups struct {
	peers  Peers
	groups Groups
	log    *slog.Logger
	now    func() time.Time
	// patience is how long a group waits for memory.
	patience time.Duration

	mu     sync.Mutex
	count  uint32 // of groups made, for their numbers
	sets   map[string][]*rootGroup
	scarce map[string]time.Time // sets for which a further group could not be made: until when they try no more
	total  int
	closed bool
	ctx    context.Context // of groups that are made in the background; ends with close
	stop   context.CancelFunc
	wg     sync.WaitGroup // watchers, ends of failed groups, and groups that are made in the background
	pace   atomic.Int64   // bytes a second that groups without a slow member reached last; 0 is unknown
}

// rootGroup is one group at its root. The same group is a memberGroup at each of its members.
type rootGroup struct {
	key     string
	number  uint64
	members []meta.NodeID // root first
	form    groupForm
	made    chan struct{} // closed when group or err is set
	group   Group
	err     error
	again   bool          // with err: no fault of the members; a session that waits for it takes or makes another one
	over    chan struct{} // closed when the group was closed in good order
	// background says that no session needs it: it is made for small files to come.
	background bool

	// Guarded by rootGroups.mu.
	busy  int
	bytes int64 // of the sessions on it
	idle  time.Time
	ended bool // nobody new gets it; when it is not busy its group ends
}

func newRootGroups(peers Peers, groups Groups, log *slog.Logger, now func() time.Time) *rootGroups {
	l := &rootGroups{
		peers: peers, groups: groups, log: log, now: now, patience: memoryWait,
		sets: make(map[string][]*rootGroup), scarce: make(map[string]time.Time),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// groupKey is what sessions must have in common to share groups.
func groupKey(self meta.Lease, members []meta.NodeID, form groupForm) string {
	return fmt.Sprintf("%s/%d/%d/%d/%d/%d", setKey(members), self.Incarnation, form.BlockBytes, form.Algorithm,
		form.SendRate, form.Priority)
}

func setKey(members []meta.NodeID) string {
	c := fields{coder.Writer(make([]byte, 0, 4*len(members)), coder.Big)}
	for _, n := range members {
		c.node(&n)
	}
	return string(c.Written())
}

// acquire gives a connected group of the form, with this node as root and then the members. The error is a
// *groupFault where members are to blame. Each success is followed by one release.
func (l *rootGroups) acquire(
	ctx context.Context, self meta.Lease, members []meta.NodeID, bytes int64, form groupForm,
) (*rootGroup, error) {
	for {
		rg, make, err := l.choose(self, members, bytes, form)
		if err != nil {
			return nil, err
		}
		if make {
			l.make(ctx, rg)
		}
		select {
		case <-rg.made:
		case <-ctx.Done():
			l.release(rg, bytes)
			return nil, ctx.Err()
		}
		if rg.err == nil {
			return rg, nil
		}
		l.release(rg, bytes)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !rg.again {
			return nil, rg.err
		}
	}
}

// choose takes an idle group, or room for a new one, or the group with the least to do.
func (l *rootGroups) choose(
	self meta.Lease, members []meta.NodeID, bytes int64, form groupForm,
) (rg *rootGroup, make bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false, ErrClosed
	}
	key := groupKey(self, members, form)
	for _, c := range slices.Clone(l.sets[key]) {
		if c.spoiled() {
			l.dropLocked(c) // of an earlier incarnation of a member, perhaps
			continue
		}
		if rg == nil || c.bytes < rg.bytes {
			rg = c
		}
	}
	if rg == nil || rg.busy > 0 && l.roomLocked(key, form) {
		rg, make = l.addLocked(key, self, members, form), true
	}
	rg.busy++
	rg.bytes += bytes
	return rg, make, nil
}

// roomLocked reports whether a set may have a further group.
func (l *rootGroups) roomLocked(key string, form groupForm) bool {
	most := groupsPerSet
	if form.SendRate > 0 {
		most = 1 // the cap holds for all files of the policy together that go to these members
	}
	return len(l.sets[key]) < most && l.total < rootGroupsMax && !l.scarceLocked(key)
}

func (l *rootGroups) addLocked(key string, self meta.Lease, members []meta.NodeID, form groupForm) *rootGroup {
	number := l.numberLocked(uint64(self.Node)<<40 | uint64(self.Incarnation&0xffff)<<24)
	rg := &rootGroup{key: key, number: number, members: members, form: form, made: make(chan struct{}),
		over: make(chan struct{})}
	l.sets[key] = append(l.sets[key], rg)
	l.total++
	return rg
}

// numberLocked is the number of the next group that this incarnation makes. The lower bits of the one given do not
// count.
func (l *rootGroups) numberLocked(like uint64) uint64 {
	l.count++
	return like&^0xffffff | uint64(l.count&0xffffff)
}

// paceOf is what a group of the form can be expected to reach, in bytes a second; 0 is unknown.
func (l *rootGroups) paceOf(form groupForm) float64 {
	pace := float64(l.pace.Load())
	if form.SendRate > 0 {
		pace = min(pace, float64(form.SendRate))
	}
	return pace
}

// release gives a group back. A group that has failed is dropped.
func (l *rootGroups) release(rg *rootGroup, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rg.busy--
	rg.bytes -= bytes
	rg.idle = l.now()
	if rg.spoiled() {
		l.dropLocked(rg)
	}
	l.buryLocked(rg)
}

// spoiled reports whether the group could not be made or has failed.
func (rg *rootGroup) spoiled() bool {
	select {
	case <-rg.made:
		return rg.err != nil || groupFailed(rg.group)
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

// takeOutLocked takes the group out of its set; nobody new gets it. It reports whether it was there.
func (l *rootGroups) takeOutLocked(rg *rootGroup) bool {
	set := l.sets[rg.key]
	i := slices.Index(set, rg)
	if i < 0 {
		return false
	}
	l.total--
	if l.sets[rg.key] = slices.Delete(set, i, i+1); len(l.sets[rg.key]) == 0 {
		delete(l.sets, rg.key)
	}
	return true
}

// dropLocked takes the group out, and ends its group as soon as nobody is on it.
func (l *rootGroups) dropLocked(rg *rootGroup) {
	if l.takeOutLocked(rg) {
		rg.ended = true
		l.buryLocked(rg)
	}
}

// buryLocked ends the group of a dropped group that nobody is on: its memory and its workers are let go.
func (l *rootGroups) buryLocked(rg *rootGroup) {
	if !rg.ended || rg.busy > 0 || rg.err != nil {
		return
	}
	rg.ended = false
	l.wg.Go(rg.group.Abort)
}

// drop takes a failed group out at once, while others may still hold it.
func (l *rootGroups) drop(rg *rootGroup) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(rg)
}

// reap closes groups that were not used for a while, and drops failed ones.
func (l *rootGroups) reap(ctx context.Context) {
	now := l.now()
	l.mu.Lock()
	var idle []*rootGroup
	for _, set := range l.sets {
		for _, rg := range set {
			if rg.busy == 0 && (now.Sub(rg.idle) >= groupIdle || rg.group != nil && groupFailed(rg.group)) {
				idle = append(idle, rg)
			}
		}
	}
	for _, rg := range idle {
		l.takeOutLocked(rg)
	}
	for key := range l.scarce {
		l.scarceLocked(key)
	}
	l.mu.Unlock()
	for _, rg := range idle {
		l.closeGroup(ctx, rg)
	}
}

// closeGroup closes an unused group everywhere.
func (l *rootGroups) closeGroup(ctx context.Context, rg *rootGroup) {
	defer close(rg.over)
	ctx, cancel := context.WithTimeout(ctx, groupSetup)
	defer cancel()
	l.tell(ctx, rg, false)
	if err := rg.group.Close(ctx); err != nil {
		l.log.Debug("group closed with error", "group", rg.number, "err", err)
	}
}

// close ends all groups at once. No acquire may be under way.
func (l *rootGroups) close() {
	l.mu.Lock()
	l.closed = true
	var all []*rootGroup
	for _, set := range l.sets {
		all = append(all, set...)
	}
	l.sets = map[string][]*rootGroup{}
	l.mu.Unlock()
	l.stop()
	for _, rg := range all {
		<-rg.made
		if rg.group != nil {
			rg.group.Abort()
		}
	}
	l.wg.Wait()
}
