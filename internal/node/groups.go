package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// liveGroups makes multicast groups, and fails a group when the log says that one of its members is another incarnation
// now. Over TCP a dead process closes its connections. Over RDMA an idle queue pair learns nothing of its peer, and a
// group that was kept for the next file would be found useless only then.
type liveGroups struct {
	replicate.Groups
	book func() *book

	mu   sync.Mutex // protects open; before the locks of no group
	open map[*liveGroup]struct{}
}

// liveGroup is one end of a group, from its making to its Close or Abort.
type liveGroup struct {
	replicate.Group
	owner *liveGroups
	rank  int
	born  []born // by rank
}

// born is a member as it was when the group was made.
type born struct {
	node        meta.NodeID
	incarnation uint32
}

func newLiveGroups(groups replicate.Groups, book func() *book) *liveGroups {
	return &liveGroups{Groups: groups, book: book, open: make(map[*liveGroup]struct{})}
}

// NewGroup implements replicate.Groups. Members are named by their numbers.
func (l *liveGroups) NewGroup(cfg rdmc.GroupConfig) (replicate.Group, error) {
	g := &liveGroup{owner: l, rank: cfg.Rank}
	before := l.book()
	for _, name := range cfg.Members {
		id, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("node: member %q of a group: %w", name, err)
		}
		node := meta.NodeID(id)
		g.born = append(g.born, born{node, before.nodes[node].Incarnation})
	}
	var err error
	if g.Group, err = l.Groups.NewGroup(cfg); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.open[g] = struct{}{}
	l.mu.Unlock()
	if now := l.book(); now != before { // viewChanged may have come too early to see the group
		g.check(now.nodes)
	}
	return g, nil
}

// viewChanged fails the groups that the present book ends. It does not wait.
func (l *liveGroups) viewChanged() {
	nodes := l.book().nodes
	l.mu.Lock()
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, g := range open {
		g.check(nodes)
	}
}

// check fails the group if the nodes of the book end it.
func (g *liveGroup) check(nodes map[meta.NodeID]meta.Node) {
	if rank, ok := g.ended(nodes); ok {
		g.Fail([]int{rank}, fmt.Errorf("node: the log says that node %d has left or started again", g.born[rank].node))
	}
}

// ended finds a member that is another incarnation now, or the root if it is not up. A member that only counts as
// down is left to the group: the log's view of it is another matter.
func (g *liveGroup) ended(nodes map[meta.NodeID]meta.Node) (rank int, ok bool) {
	for rank, b := range g.born {
		now := nodes[b.node]
		if rank != g.rank && (now.Incarnation != b.incarnation || rank == 0 && now.State != meta.NodeUp) {
			return rank, true
		}
	}
	return 0, false
}

func (g *liveGroup) forget() {
	g.owner.mu.Lock()
	defer g.owner.mu.Unlock()
	delete(g.owner.open, g)
}

// Close ends the group as that of rdmc does.
func (g *liveGroup) Close(ctx context.Context) error {
	defer g.forget()
	return g.Group.Close(ctx)
}

// Abort ends the group as that of rdmc does.
func (g *liveGroup) Abort() {
	defer g.forget()
	g.Group.Abort()
}
