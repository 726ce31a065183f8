package node

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// TestPeersOfTheJoinAreNewerThanAnEarlyState: a new node applies the log from its beginning, where another node still
// has the store and the address it had before it was replaced. Killed there, it must find the others again.
func TestPeersOfTheJoinAreNewerThanAnEarlyState(t *testing.T) {
	c := metatest.New(t, 2)
	moved, own := [16]byte{7, 7}, [16]byte{8, 8}
	three := c.Join("n3")
	id := identity{Node: three, Store: hex.EncodeToString(own[:]),
		Peers: map[meta.NodeID]peerAddr{2: {Addr: "there:1", Store: hex.EncodeToString(moved[:])}}}
	m, err := newMembers(c.DB, id, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	knows := func(want consensus.ID) {
		t.Helper()
		found := false
		for _, peer := range m.known(three) {
			found = found || peer == want
		}
		authentic := m.authentic(2, want, func(consensus.ID) bool { return false })
		if !found || !authentic {
			t.Fatalf("peers %x, want %x among them, authentic %t", m.known(three), want, authentic)
		}
	}
	knows(raftID(2, moved))
	if addr, ok := m.address(2); addr != "there:1" || !ok {
		t.Fatalf("node 2 is at %q, %t", addr, ok)
	}
	c.Do(three, &meta.Boot{Node: three, Store: own, Addr: "here:1", Nonce: 5})
	if err := m.refresh(); err != nil {
		t.Fatal(err)
	}
	rec, err := c.DB.Node(2)
	if err != nil {
		t.Fatal(err)
	}
	knows(raftID(2, rec.Store)) // the log is newer from here on
}

// A node that was evicted is nobody's peer any more, though the peers file still names it.
func TestEvictedPeerIsForgotten(t *testing.T) {
	c := metatest.New(t, 2)
	one, two := meta.NodeID(1), meta.NodeID(2)
	rec, err := c.DB.Node(two)
	if err != nil {
		t.Fatal(err)
	}
	self, err := c.DB.Node(one)
	if err != nil {
		t.Fatal(err)
	}
	id := identity{Node: one, Store: hex.EncodeToString(self.Store[:]),
		Peers: map[meta.NodeID]peerAddr{two: {Addr: "there:1", Store: hex.EncodeToString(rec.Store[:])}}}
	m, err := newMembers(c.DB, id, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.known(one); len(got) != 1 {
		t.Fatalf("peers %x", got)
	}
	c.Do(one, &meta.Evict{Node: two})
	if err := m.refresh(); err != nil {
		t.Fatal(err)
	}
	if got := m.known(one); len(got) != 0 {
		t.Fatalf("an evicted node is still a peer: %x", got)
	}
}

// A node that others knew when they joined is replaced. The log has no store of it then until it boots: the new
// machine must be able to connect for that.
func TestReplacedPeerCanConnect(t *testing.T) {
	c := metatest.New(t, 2)
	one, two := meta.NodeID(1), meta.NodeID(2)
	of := func(node meta.NodeID) meta.Node {
		rec, err := c.DB.Node(node)
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	own, old := of(two).Store, of(one).Store
	id := identity{Node: two, Store: hex.EncodeToString(own[:]),
		Peers: map[meta.NodeID]peerAddr{one: {Addr: "there:1", Store: hex.EncodeToString(old[:])}}}
	m, err := newMembers(c.DB, id, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	anyOne, nobody := raftID(one, [16]byte{9}), func(consensus.ID) bool { return false }
	if m.authentic(1, anyOne, nobody) {
		t.Error("any store is taken for that of node 1")
	}
	inRaft := func(id consensus.ID) bool { return id == anyOne }
	if !m.authentic(1, anyOne, inRaft) || m.authentic(2, anyOne, inRaft) {
		t.Error("a member of raft is refused, or another node speaks for it")
	}
	token := [32]byte{5}
	c.Do(two, &meta.AddToken{Hash: token, Expires: 1 << 62, Replace: true})
	c.Do(two, &meta.Join{Name: of(one).Name, Addr: "new:1", TokenHash: token, Replace: true})
	if err := m.refresh(); err != nil {
		t.Fatal(err)
	}
	if !m.authentic(1, anyOne, nobody) {
		t.Error("the machine that replaces node 1 is refused")
	}
}

// Where a node has said that it listens counts until the log names another address of it, or another machine in its
// place, and not again when the log names the first address once more.
func TestReportedAddressIsForgotten(t *testing.T) {
	c := metatest.New(t, 2)
	one, two := meta.NodeID(1), meta.NodeID(2)
	rec, err := c.DB.Node(two)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMembers(c.DB, identity{Node: one}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	at := func(when, want string) {
		t.Helper()
		if err := m.refresh(); err != nil {
			t.Fatal(err)
		}
		if addr, ok := m.address(uint32(two)); addr != want || !ok {
			t.Errorf("%s: it is looked for at %q, want %q", when, addr, want)
		}
	}
	boots := func(addr string) { c.Do(one, &meta.Boot{Node: two, Store: rec.Store, Addr: addr}) }
	m.noteAddress(two, rec.Store, "there:1")
	at("it has moved, and the log does not know", "there:1")
	boots("there:1")
	at("the log knows", "there:1")
	boots(rec.Addr)
	at("it is back where it was", rec.Addr)
	m.noteAddress(two, rec.Store, "there:1")
	at("it has moved again", "there:1")
	token := [32]byte{5}
	c.Do(one, &meta.AddToken{Hash: token, Expires: 1 << 62, Replace: true})
	c.Do(one, &meta.Join{Name: rec.Name, Addr: rec.Addr, TokenHash: token, Replace: true})
	at("another machine takes its place and its first address", rec.Addr)
}
