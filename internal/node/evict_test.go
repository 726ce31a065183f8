package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// G4: before a voter is evicted the others have to be a quorum, and nothing is asked of one that is gone.
func TestVotersWithout(t *testing.T) {
	const self = 9
	for _, c := range []struct {
		why    string
		leaver meta.NodeID
		voters []meta.NodeID
		gone   []meta.NodeID
		old    []meta.NodeID // the store that votes was replaced
		want   leaveStep
	}{
		{why: "it does not vote", leaver: 4, voters: []meta.NodeID{1}, want: leaveStep{safe: true}},
		{why: "the only voter hands over", leaver: 1, voters: []meta.NodeID{1},
			want: leaveStep{change: true, add: []meta.NodeID{self}}},
		{why: "one of two agrees that the other remains", leaver: 1, voters: []meta.NodeID{1, 2},
			want: leaveStep{change: true}},
		{why: "one of two, and the other is gone", leaver: 1, voters: []meta.NodeID{1, 2}, gone: []meta.NodeID{2}},
		{why: "one of three", leaver: 1, voters: []meta.NodeID{1, 2, 3}, want: leaveStep{safe: true}},
		{why: "one of three, and another was evicted just now", leaver: 1, voters: []meta.NodeID{1, 2, 3},
			gone: []meta.NodeID{2}},
		{why: "one of three, and another was replaced and is up", leaver: 1, voters: []meta.NodeID{1, 2, 3},
			old: []meta.NodeID{2}},
		{why: "the one of three that was replaced", leaver: 2, voters: []meta.NodeID{1, 2, 3}, old: []meta.NodeID{2},
			want: leaveStep{safe: true}},
		{why: "one of five, and two were replaced", leaver: 5, voters: []meta.NodeID{1, 2, 3, 4, 5},
			old: []meta.NodeID{2, 3}},
		{why: "the one of three that is gone", leaver: 1, voters: []meta.NodeID{1, 2, 3}, gone: []meta.NodeID{1},
			want: leaveStep{safe: true}},
	} {
		b := &book{nodes: map[meta.NodeID]meta.Node{}, raft: map[meta.NodeID]consensus.ID{}}
		for _, id := range []meta.NodeID{1, 2, 3, 4, 5, self} {
			state := meta.NodeUp
			if slices.Contains(c.gone, id) {
				state = meta.NodeEvicted
			}
			b.add(meta.Node{ID: id, State: state, Store: [16]byte{byte(id)}})
		}
		var voters []consensus.ID
		for _, id := range c.voters {
			voters = append(voters, b.raft[id])
			if slices.Contains(c.old, id) {
				voters[len(voters)-1] = raftID(id, [16]byte{0xff})
			}
		}
		got := votersWithout(c.leaver, self, voters, b)
		if got.safe != c.want.safe || got.change != c.want.change || !slices.Equal(got.add, c.want.add) {
			t.Errorf("%s: %+v, want %+v", c.why, got, c.want)
		}
	}
}

// Somebody has to take files when a node has gone.
func TestOthersTake(t *testing.T) {
	up, draining, joined := meta.Node{State: meta.NodeUp}, meta.Node{State: meta.NodeUp, DrainIndex: 9},
		meta.Node{State: meta.NodeJoined}
	for _, c := range []struct {
		nodes map[meta.NodeID]meta.Node
		want  bool
	}{
		{map[meta.NodeID]meta.Node{1: up, 2: up}, true},
		{map[meta.NodeID]meta.Node{1: up, 2: draining}, false},
		{map[meta.NodeID]meta.Node{1: draining, 2: {State: meta.NodeDown}}, true},
		{map[meta.NodeID]meta.Node{1: up, 2: joined}, false},
	} {
		if got := othersTake(1, c.nodes); got != c.want {
			t.Errorf("%+v: %v, want %v", c.nodes, got, c.want)
		}
	}
}

// A node that was evicted while it was away learns so from the nodes that refuse it. Its start fails with that reason:
// it does not go on cut off.
func TestStartOfAnEvictedNodeSaysSo(t *testing.T) {
	db := meta.OpenMemory()
	defer db.Close()
	metatest.Over(t, db, 3)
	rec, err := db.Node(3)
	if err != nil {
		t.Fatal(err)
	}
	store, err := content.Open(t.TempDir(), content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	id := identity{Node: 3, Store: strings.Repeat("03", 16), Advertise: rec.Addr}
	m, err := newMembers(db, id, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	names := &paths{names: db}
	lost := &losses{self: id.Node, db: db, store: store, paths: names, strays: &strayFiles{store: store, paths: names}}
	raft := &lateRaft{}
	a := &admission{id: id, db: db, members: m, raft: raft, anonymous: anonymous{node: id.Node, log: raft},
		evicted: lost.ofEvicted, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	a.putOut.Store(true) // as said by a peer; no proposal comes through
	if err := a.boot(ctx); !errors.Is(err, ErrEvicted) || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}

// A node is not evicted by itself, nor if none that takes files would be left.
func TestEvictionsThatAreRefused(t *testing.T) {
	c := metatest.New(t, 3)
	c.Do(1, &meta.Drain{Node: 1})
	c.Do(1, &meta.Drain{Node: 3})
	e := &evictions{self: 1, db: c.DB.(*meta.DB), members: membersOf(t, c)}
	for code, node := range map[admin.Code]uint32{admin.CodeInvalid: 1, admin.CodeNeeded: 2} {
		if _, err := e.evict(t.Context(), admin.EvictRequest{Node: node}); admin.CodeOf(err) != code {
			t.Errorf("node %d: %v", node, err)
		}
	}
}
