package replicate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

const (
	// lanesPerSet bounds the groups of one member set, so that a big file does not hold small ones for long.
	lanesPerSet = 4
	// lanesMax bounds all groups of which this node is the root.
	lanesMax = 64
	// laneIdle is how long an unused group is kept.
	laneIdle = time.Minute
	// windowBytes is about what a group keeps in memory to relay from while messages are under way: enough that
	// blocks are seldom read back from the disk.
	windowBytes = 8 << 20
	// groupSetup bounds the making of a group.
	groupSetup = 5 * time.Second
)

// groupFault says which members spoiled a group.
type groupFault struct {
	suspects []suspect
	err      error
}

// Error tells the cause.
func (f *groupFault) Error() string { return fmt.Sprintf("group failed: %v", f.err) }

// Unwrap returns the cause.
func (f *groupFault) Unwrap() error { return f.err }

// lanes keeps the groups that have this node as root, by member set and block size. A group carries many sessions, first in
// first out; several groups of one set let a small file pass a big one.
type lanes struct {
	peers  Peers
	groups Groups
	log    *slog.Logger
	now    func() time.Time

	mu     sync.Mutex
	count  uint32 // of groups made, for their numbers
	sets   map[string][]*lane
	total  int
	closed bool
}

// lane is one group at its root.
type lane struct {
	key        string
	number     uint64
	members    []meta.NodeID // root first
	blockBytes int64
	made       chan struct{} // closed when group or err is set
	group      Group
	err        error

	// Guarded by lanes.mu.
	busy  int
	bytes int64 // of the sessions on it
	idle  time.Time
}

func newLanes(peers Peers, groups Groups, log *slog.Logger, now func() time.Time) *lanes {
	return &lanes{peers: peers, groups: groups, log: log, now: now, sets: make(map[string][]*lane)}
}

func laneKey(members []meta.NodeID) string {
	b := make([]byte, 0, 4*len(members))
	for _, n := range members {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	return string(b)
}

// acquire gives a connected group with this node as root and the members, in rising order. The error is a
// *groupFault where members are to blame. Each success is followed by one release.
func (l *lanes) acquire(ctx context.Context, self meta.Lease, members []meta.NodeID, bytes, groupBlock int64) (*lane, error) {
	sorted := slices.Clone(members)
	slices.Sort(sorted)
	ln, make, err := l.choose(self, append([]meta.NodeID{self.Node}, sorted...), bytes, groupBlock)
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
	if ln.err != nil {
		l.release(ln, bytes)
		return nil, ln.err
	}
	return ln, nil
}

// choose takes an idle lane, or room for a new one, or the lane with the least to do.
func (l *lanes) choose(self meta.Lease, members []meta.NodeID, bytes, groupBlock int64) (ln *lane, make bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false, ErrClosed
	}
	key := fmt.Sprintf("%s/%d/%d", laneKey(members), self.Incarnation, groupBlock)
	for _, c := range l.sets[key] {
		if ln == nil || c.bytes < ln.bytes {
			ln = c
		}
	}
	if ln == nil || ln.busy > 0 && len(l.sets[key]) < lanesPerSet && l.total < lanesMax {
		ln, make = l.addLocked(key, self, members, groupBlock), true
	}
	ln.busy++
	ln.bytes += bytes
	return ln, make, nil
}

func (l *lanes) addLocked(key string, self meta.Lease, members []meta.NodeID, groupBlock int64) *lane {
	l.count++
	number := uint64(self.Node)<<40 | uint64(self.Incarnation&0xffff)<<24 | uint64(l.count&0xffffff)
	ln := &lane{key: key, number: number, members: members, blockBytes: groupBlock, made: make(chan struct{})}
	l.sets[key] = append(l.sets[key], ln)
	l.total++
	return ln
}

// release gives a lane back. A lane whose group has failed is dropped.
func (l *lanes) release(ln *lane, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln.busy--
	ln.bytes -= bytes
	ln.idle = l.now()
	select {
	case <-ln.made:
		if ln.err != nil || groupFailed(ln.group) {
			l.dropLocked(ln)
		}
	default:
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

// dropLocked takes the lane out of its set; nobody new gets it.
func (l *lanes) dropLocked(ln *lane) {
	set := l.sets[ln.key]
	i := slices.Index(set, ln)
	if i < 0 {
		return
	}
	l.total--
	if l.sets[ln.key] = slices.Delete(set, i, i+1); len(l.sets[ln.key]) == 0 {
		delete(l.sets, ln.key)
	}
}

// drop takes a failed lane out at once, while others may still hold it.
func (l *lanes) drop(ln *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(ln)
}

// make sets up the group of a lane on all members and closes ln.made.
func (l *lanes) make(ctx context.Context, ln *lane) {
	ctx, cancel := context.WithTimeout(ctx, groupSetup)
	defer cancel()
	ln.group, ln.err = l.setUp(ctx, ln)
	if ln.err != nil {
		l.drop(ln)
		l.tell(context.WithoutCancel(ctx), ln, true)
	}
	close(ln.made)
}

func groupConfig(number uint64, members []meta.NodeID, rank int, blockBytes uint32, algorithm uint8) rdmc.GroupConfig {
	names := make([]string, len(members))
	for i, n := range members {
		names[i] = strconv.FormatUint(uint64(n), 10)
	}
	return rdmc.GroupConfig{
		Number: number, Epoch: 1, Members: names, Rank: rank,
		BlockSize: int(blockBytes), Algorithm: schedule.Algorithm(algorithm),
		Window: min(max(windowBytes/int(blockBytes), 16), 64),
	}
}

func (l *lanes) setUp(ctx context.Context, ln *lane) (Group, error) {
	group, err := l.groups.NewGroup(groupConfig(ln.number, ln.members, 0, uint32(ln.blockBytes), uint8(schedule.BinomialPipeline)))
	if err != nil {
		return nil, fmt.Errorf("replicate: group %x: %w", ln.number, err)
	}
	byRank, err := l.openEnds(ctx, ln)
	if err == nil {
		byRank[0] = group.Addresses()
		err = l.connectEnds(ctx, ln, group, byRank)
	}
	if err != nil {
		group.Abort()
		return nil, err
	}
	return group, nil
}

// openEnds asks each member to make its end, and gathers the addresses: [rank][neighbour].
func (l *lanes) openEnds(ctx context.Context, ln *lane) ([]map[int][]byte, error) {
	byRank := make([]map[int][]byte, len(ln.members))
	open := groupOpen{ln.number, ln.members, uint32(ln.blockBytes), uint8(schedule.BinomialPipeline)}
	request := open.encode()
	err := l.each(ln, func(rank int, node meta.NodeID) error {
		answer, err := l.peers.Call(ctx, node, KindGroup, request)
		if err != nil {
			return err
		}
		m, err := decodeGroupAddresses(answer)
		if err == nil && m.Refused != "" {
			err = fmt.Errorf("node %d refused: %s", node, m.Refused)
		}
		byRank[rank] = m.ByRank
		return err
	})
	return byRank, err
}

// connectEnds gives each end its neighbours' addresses and waits until all are connected.
func (l *lanes) connectEnds(ctx context.Context, ln *lane, group Group, byRank []map[int][]byte) error {
	own := make(chan error, 1)
	go func() { own <- group.Connect(ctx, addressesFor(0, byRank)) }()
	err := l.each(ln, func(rank int, node meta.NodeID) error {
		m := groupAddresses{Number: ln.number, ByRank: addressesFor(rank, byRank)}
		return askOutcome(ctx, l.peers, node, KindConnect, m.encode())
	})
	if err != nil {
		group.Fail(nil, err) // so that Connect ends
	}
	if ownErr := <-own; err == nil && ownErr != nil {
		err = faultOf(ln, ownErr)
	}
	return err
}

// addressesFor picks what the neighbours made for a rank.
func addressesFor(rank int, byRank []map[int][]byte) map[int][]byte {
	out := make(map[int][]byte)
	for neighbour, m := range byRank {
		if a, ok := m[rank]; ok {
			out[neighbour] = a
		}
	}
	return out
}

// askOutcome makes a call whose answer is no more than yes or a refusal, which becomes an error.
func askOutcome(ctx context.Context, peers Peers, node meta.NodeID, kind Kind, request []byte) error {
	answer, err := peers.Call(ctx, node, kind, request)
	if err != nil {
		return err
	}
	refused, err := decodeOutcome(answer)
	if err == nil && refused != "" {
		err = fmt.Errorf("node %d refused %v: %s", node, kind, refused)
	}
	return err
}

// each calls do for all members but the root at the same time, and makes a fault of those that failed.
func (l *lanes) each(ln *lane, do func(rank int, node meta.NodeID) error) error {
	errs := make([]error, len(ln.members))
	var wg sync.WaitGroup
	for rank := 1; rank < len(ln.members); rank++ {
		wg.Go(func() { errs[rank] = do(rank, ln.members[rank]) })
	}
	wg.Wait()
	var fault *groupFault
	for rank, err := range errs {
		if err == nil {
			continue
		}
		if fault == nil {
			fault = &groupFault{err: err}
		}
		fault.suspects = append(fault.suspects, suspect{ln.members[rank], meta.OwedUnreachable})
	}
	if fault == nil {
		return nil
	}
	return fault
}

// tell ends the members' ends, as far as they can be reached.
func (l *lanes) tell(ctx context.Context, ln *lane, abort bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request := (&groupEnd{ln.number, abort}).encode()
	if err := l.each(ln, func(_ int, node meta.NodeID) error {
		return askOutcome(ctx, l.peers, node, KindGroupEnd, request)
	}); err != nil {
		l.log.Debug("group end not told to all", "group", ln.number, "err", err)
	}
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
		l.dropLocked(ln)
	}
	l.mu.Unlock()
	for _, ln := range idle {
		l.end(ctx, ln)
	}
}

// end closes an unused group everywhere.
func (l *lanes) end(ctx context.Context, ln *lane) {
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
}

// faultOf turns a group's failure into suspects.
func faultOf(ln *lane, err error) error {
	fault := &groupFault{err: err}
	var ge *rdmc.GroupError
	if !errors.As(err, &ge) {
		return fault
	}
	for _, rank := range ge.Suspects {
		if rank > 0 && rank < len(ln.members) {
			fault.suspects = append(fault.suspects, suspect{ln.members[rank], reasonOf(ge.Reason)})
		}
	}
	return fault
}

func reasonOf(r rdmc.Reason) meta.OwedReason {
	switch r {
	case rdmc.ReasonSink, rdmc.ReasonCorrupt:
		return meta.OwedFailed
	}
	return meta.OwedUnreachable
}
