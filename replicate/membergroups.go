package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// groupsPerRoot bounds the groups that one root may make here.
const groupsPerRoot = 2 * rootGroupsMax

// joinWait is how long an end waits to be joined with its neighbours. Its root has given the group up by then.
const joinWait = 2 * groupSetup

var errNoGroup = errors.New("replicate: no such group here")

// memberGroups keeps this node's ends of the groups of other roots. Each end has a goroutine that drops it when the
// group has failed or was closed.
type memberGroups struct {
	groups Groups
	log    *slog.Logger
	// patience is how long an end waits to be joined with its neighbours.
	patience time.Duration

	mu      sync.Mutex
	byNum   map[uint64]*memberGroup
	perRoot map[meta.NodeID]int
	closed  bool
	quit    chan struct{}
	wg      sync.WaitGroup
}

// memberGroup is this node's end of one group.
type memberGroup struct {
	number     uint64
	root       meta.NodeID
	group      Group
	blockBytes int64
	unjoined   *time.Timer   // drops it, unless it is joined with its neighbours before
	dropped    chan struct{} // closed when it is to be dropped without failure
	once       sync.Once
}

func newMemberGroups(groups Groups, log *slog.Logger) *memberGroups {
	return &memberGroups{
		groups: groups, log: log, patience: joinWait, byNum: make(map[uint64]*memberGroup),
		perRoot: make(map[meta.NodeID]int), quit: make(chan struct{}),
	}
}

// open makes an end and returns its addresses.
func (e *memberGroups) open(self, from meta.NodeID, m groupOpen) (map[int][]byte, error) {
	rank := slices.Index(m.Members, self)
	if m.Members[0] != from || rank < 1 || m.Number>>40 != uint64(from) {
		return nil, fmt.Errorf("replicate: group %x of %v: not for this node from node %d", m.Number, m.Members, from)
	}
	if err := e.reserve(from, m.Number); err != nil {
		return nil, err
	}
	group, err := e.groups.NewGroup(groupConfig(m.Number, m.Members, rank, m.Form))
	end := &memberGroup{number: m.Number, root: from, group: group, blockBytes: m.Form.BlockBytes,
		dropped: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil || e.closed {
		e.forgetLocked(from, m.Number)
		if err == nil {
			e.wg.Go(group.Abort)
			err = ErrClosed
		}
		return nil, fmt.Errorf("replicate: group %x: %w", m.Number, err)
	}
	end.unjoined = time.AfterFunc(e.patience, end.drop)
	e.byNum[m.Number] = end
	e.wg.Go(func() { e.watch(end) })
	return group.Addresses(), nil
}

// reserve takes the number for a root, within its bound.
func (e *memberGroups) reserve(root meta.NodeID, number uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	if _, ok := e.byNum[number]; ok {
		return fmt.Errorf("replicate: group %x is here already", number)
	}
	if e.perRoot[root] >= groupsPerRoot {
		return fmt.Errorf("replicate: node %d has %d groups here already", root, groupsPerRoot)
	}
	e.perRoot[root]++
	e.byNum[number] = nil
	return nil
}

func (e *memberGroups) forgetLocked(root meta.NodeID, number uint64) {
	delete(e.byNum, number)
	if e.perRoot[root]--; e.perRoot[root] <= 0 {
		delete(e.perRoot, root)
	}
}

// watch owns an end until it is over.
func (e *memberGroups) watch(end *memberGroup) {
	select {
	case <-end.group.Failed():
	case <-end.dropped:
	case <-e.quit:
	}
	end.unjoined.Stop()
	e.mu.Lock()
	e.forgetLocked(end.root, end.number)
	e.mu.Unlock()
	end.group.Abort()
}

func (end *memberGroup) drop() { end.once.Do(func() { close(end.dropped) }) }

// find gives the end of a group of a root.
func (e *memberGroups) find(from meta.NodeID, number uint64) (*memberGroup, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	end := e.byNum[number]
	if end == nil || end.root != from {
		return nil, errNoGroup
	}
	return end, nil
}

// connect joins an end with its neighbours.
func (e *memberGroups) connect(ctx context.Context, from meta.NodeID, m groupAddresses) error {
	end, err := e.find(from, m.Number)
	if err != nil {
		return err
	}
	end.unjoined.Stop()
	ctx, cancel := context.WithTimeout(ctx, groupSetup)
	defer cancel()
	return end.group.Connect(ctx, m.ByRank)
}

// finish closes an end when its messages are through, in the background, or drops it at once.
func (e *memberGroups) finish(from meta.NodeID, m groupEnd) {
	end, err := e.find(from, m.Number)
	if err != nil {
		return // gone already
	}
	if m.Abort {
		end.drop()
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), groupSetup)
		defer cancel()
		if err := end.group.Close(ctx); err != nil {
			e.log.Debug("group closed with error", "group", end.number, "err", err)
		}
		end.drop()
	})
}

// rootGone drops all groups of a root that is down or has begun a new incarnation.
func (e *memberGroups) rootGone(root meta.NodeID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, end := range e.byNum {
		if end != nil && end.root == root {
			end.drop()
		}
	}
}

// close drops all ends and waits for them.
func (e *memberGroups) close() {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.quit)
	}
	e.mu.Unlock()
	e.wg.Wait()
}

// waitDone waits for a transfer's end within the time.
func waitDone(t Transfer, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-t.Done():
		return true
	case <-timer.C:
		return false
	}
}
