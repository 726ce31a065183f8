package node

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// drains begin and end the drains of nodes, and look how far they are.
type drains struct {
	db        *meta.DB
	members   *members
	anonymous anonymous
	strays    *strayFiles
	paths     *paths
	nodes     *nodeReport
}

// drain begins or ends the drain of a node, or looks how far it is. It keeps nothing here: the drain is in the log,
// and what depends on the node is found by looking at what the log says.
func (ds *drains) drain(ctx context.Context, req admin.DrainRequest) (admin.DrainState, error) {
	id := meta.NodeID(req.Node)
	if !req.Look {
		res, err := ds.anonymous.propose(ctx, &meta.Drain{Node: id, Undo: req.Undo})
		switch {
		case err != nil:
			return admin.DrainState{}, adminError("drain", err)
		case res.Errno == syscall.EBUSY:
			return admin.DrainState{}, admin.Errorf(admin.CodeNeeded,
				"no other node takes new files: join one first, or end the drain of another with --undo")
		case res.Errno == syscall.ENOENT || res.Errno == syscall.EPERM:
			return admin.DrainState{}, admin.Errorf(admin.CodeNotFound, "there is no node %d", req.Node)
		case res.Errno != 0:
			return admin.DrainState{}, fmt.Errorf("drain node %d: %w", req.Node, res.Errno)
		}
	}
	return ds.state(ctx, id)
}

// state is how far a drain is. The node is asked for unpublished files only when the log has nothing left to move.
func (ds *drains) state(ctx context.Context, id meta.NodeID) (admin.DrainState, error) {
	rec, err := ds.db.Node(id)
	if err != nil || rec.State == meta.NodeEvicted {
		return admin.DrainState{}, admin.Errorf(admin.CodeNotFound, "there is no node %d", id)
	}
	out := admin.DrainState{Node: uint32(id), Name: rec.Name, Draining: rec.DrainIndex != 0}
	if !out.Draining {
		return out, nil
	}
	d, err := ds.db.DependOn(id, lossesListed)
	if err != nil {
		return out, err
	}
	out.NeededCount, out.NeededBytes, out.StuckCount = d.Contents, d.Bytes, d.Stuck
	for _, c := range d.List {
		out.Needed = append(out.Needed, ds.paths.ofContent(c))
	}
	if d.Contents > d.Stuck {
		out.NoRoom, err = ds.noRoom()
		return out, err
	}
	if out.Unmet, err = unmetPolicies(ds.db, ds.members); err != nil {
		return out, err
	}
	l, err := atRest(ctx, func() (l loss, _ error) {
		l.strays, l.unread = ds.strays.of(ctx, id)
		return l, nil
	})
	if l.unread != nil {
		out.Unasked = l.unread.Error()
	}
	out.UnpublishedCount, out.OpenCount, out.Unpublished = l.strays.Count, l.strays.Open, l.strays.First
	return out, err
}

// noRoom names the nodes that are to take what depends on others, and have no room for it.
func (ds *drains) noRoom() (out []string, err error) {
	nodes, err := ds.db.Nodes()
	for _, rec := range nodes {
		if why := ds.nodes.noRoom(rec.ID); why != "" && rec.DrainIndex == 0 {
			out = append(out, noRoomText(rec.Name, why))
		}
	}
	return out, err
}

// noRoomText says that a node has no room, and what to do about it.
func noRoomText(name, why string) string {
	return name + " has no room: " + why + ": make room on its disk"
}

// drainLookShare is the part of the time that status spends at most on what depends on a node that is draining: one
// look is good for this many times as long as it took.
const drainLookShare = 10

// drainLooks remembers for status what depended on the nodes that are draining.
type drainLooks struct {
	mu    sync.Mutex
	looks map[meta.NodeID]drainLook
}

type drainLook struct {
	meta.Depending
	next time.Time
}

// of returns what depends on a node, now or shortly before.
func (l *drainLooks) of(db *meta.DB, id meta.NodeID) (meta.Depending, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	began := time.Now()
	if look, ok := l.looks[id]; ok && began.Before(look.next) {
		return look.Depending, nil
	}
	d, err := db.DependOn(id, 0)
	if err != nil {
		return d, err
	}
	if l.looks == nil {
		l.looks = map[meta.NodeID]drainLook{}
	}
	now := time.Now()
	l.looks[id] = drainLook{d, now.Add(drainLookShare * now.Sub(began))}
	return d, nil
}
