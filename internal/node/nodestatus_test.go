package node

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
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
	r := &nodeReport{self: 1, db: db, peers: peers, clock: &clock{wall: time.Now, raft: raft}}
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
