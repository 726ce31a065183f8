package node

import (
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// The report of the nodes has one line each: whether it is connected, what it is owed and why, and whether it drains.
func TestNodeReport(t *testing.T) {
	c := metatest.New(t, 3)
	ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile}).Ino
	p := &meta.Publish{Ino: ino, Session: c.Session(1), Size: 1 << 20, Root: [32]byte{1},
		Votes: meta.Votes{View: c.DB.View()}, Missing: []meta.Missed{{Node: 3, Reason: meta.OwedFull}}}
	p.Votes.Add(1)
	p.Votes.Add(2)
	c.Do(1, p)
	c.Do(1, &meta.Drain{Node: 2})
	raft, db := &lateRaft{}, c.DB.(*meta.DB)
	m := membersOf(t, c)
	peers := control.NewPeers(control.PeersConfig{Resolve: m.address})
	defer peers.Close()
	r := &nodeReport{self: 1, db: db, peers: peers, clock: &clock{wall: time.Now, raft: raft}, room: hasRoom}
	log := consensus.Status{ID: m.book().raft[1]}
	lines, err := r.list(log)
	if err != nil || len(lines) != 3 {
		t.Fatalf("%+v, %v", lines, err)
	}
	for i, want := range []admin.Node{
		{ID: 1, Connected: true}, {ID: 2, Draining: true},
		{ID: 3, OwedCount: 1, OwedBytes: 1 << 20, OwedReason: meta.OwedFull.String()},
	} {
		got := lines[i]
		if got.ID != want.ID || got.Connected != want.Connected || got.Draining != want.Draining ||
			got.OwedCount != want.OwedCount || got.OwedReason != want.OwedReason || got.State != "up" || !got.Unheard {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// hasRoom knows of no node that has no room.
func hasRoom(meta.NodeID) (replicate.NoRoom, bool) { return replicate.NoRoom{}, false }

// G10: status and drain name a node that has refused a content for lack of space, and say what it refused.
func TestNodesWithoutRoomAreNamed(t *testing.T) {
	c := metatest.New(t, 4)
	ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile}).Ino
	p := &meta.Publish{Ino: ino, Session: c.Session(1), Size: 1 << 20, Root: [32]byte{1},
		Votes: meta.Votes{View: c.DB.View()}, Missing: []meta.Missed{{Node: 3, Reason: meta.OwedFull}}}
	p.Votes.Add(1)
	p.Votes.Add(2)
	c.Do(1, p)
	c.Do(1, &meta.Drain{Node: 4})
	m, raft, db := membersOf(t, c), &lateRaft{}, c.DB.(*meta.DB)
	peers := control.NewPeers(control.PeersConfig{Resolve: m.address})
	defer peers.Close()
	full := func(id meta.NodeID) (replicate.NoRoom, bool) {
		return replicate.NoRoom{FreeBytes: 5 << 20, NeedBytes: 1 << 30}, id >= 3
	}
	r := &nodeReport{self: 1, db: db, peers: peers, clock: &clock{wall: time.Now, raft: raft}, room: full}
	lines, err := r.list(consensus.Status{ID: m.book().raft[1]})
	const why = "it refused a content of 1.00 GiB for lack of space, and takes 5.00 MiB at most"
	if err != nil || lines[1].NoRoom != "" || lines[2].NoRoom != why || lines[2].OwedReason != "disk full: "+why {
		t.Errorf("%+v, %v", lines, err)
	}
	const says = "node3 has no room: " + why + ": make room on its disk"
	texts, err := (&drains{db: db, nodes: r}).noRoom() // one that drains itself is to take nothing
	if err != nil || !slices.Equal(texts, []string{says}) {
		t.Errorf("a drain names %q, %v", texts, err)
	}
	w := &warnings{db: db, members: m, raft: raft, health: &stateHealth{}, digests: &digests{}, lost: &lostLooks{},
		clock: &clock{wall: time.Now, raft: raft}, paths: &paths{names: db}}
	list, err := w.list(admin.Status{Nodes: lines, Space: admin.Space{State: "ok"}})
	if err != nil || !slices.Contains(list, says) {
		t.Errorf("status warns %q, %v", list, err)
	}
}
