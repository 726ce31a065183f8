package meta_test

import (
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// copies makes a cluster whose files lie on k nodes, and one file with a version that its members hold.
func copies(
	t *testing.T, nodes int, k uint32,
) (c *metatest.Cluster, f meta.Ino, p *meta.Publish, members []meta.NodeID) {
	t.Helper()
	c = metatest.New(t, nodes)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: k}})
	f = newFile(c, "f")
	members, _ = c.DB.Members(mustInode(t, c.DB, f).Policy, f)
	p = push(c, 1, f, meta.ContentID{}, votes(c, members...))
	c.Do(1, p)
	return c, f, p, members
}

// checked is an eviction as its proposer makes it, of a node that nothing depended on when it looked, or of one that
// it did.
func checked(t *testing.T, c *metatest.Cluster, n meta.NodeID) (*meta.EvictSpare, meta.Depending) {
	t.Helper()
	d, err := c.DB.(*meta.DB).OnlyOn(n, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	return &meta.EvictSpare{Node: n, View: d.View, Checked: d.Checked}, d
}

func refusedWith(t *testing.T, c *metatest.Cluster, op meta.Op, want syscall.Errno) {
	t.Helper()
	if res := c.Propose(1, op); res.Errno != want {
		t.Fatalf("%T: %v, want %v", op, res.Errno, want)
	}
}

// G4: a node that has the only copy of something is not evicted, unless that is asked for.
func TestEvictRefusesTheOnlyCopy(t *testing.T) {
	c, _, p, members := copies(t, 3, 1)
	only := members[0]
	op, d := checked(t, c, only)
	if d.Contents != 1 || d.List[0].ID != p.Session {
		t.Fatalf("%+v", d)
	}
	op.Checked-- // as if it had been looked for before the file came
	refusedWith(t, c, op, syscall.EBUSY)
	if hs, _ := c.DB.Holders(p.Session); len(hs) != 1 {
		t.Fatalf("holders %v after an eviction that was refused", hs)
	}
	c.Do(only%3+1, &meta.Evict{Node: only})
	if n, err := c.DB.Node(only); err != nil || n.State != meta.NodeEvicted {
		t.Fatal(n, err)
	}
}

// G4: voters that are evicted at the same time, by operators who do not know of each other, must leave a quorum. An
// evicted voter ends at once, and raft counts on it until the leader has changed the voters.
func TestEvictionsAtOnceLeaveAQuorum(t *testing.T) {
	c := metatest.New(t, 4)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}})
	spare, _ := checked(t, c, 3)
	c.Do(1, &meta.Evict{Node: 2})
	refusedWith(t, c, spare, syscall.EAGAIN)
	again, _ := checked(t, c, 3)
	refusedWith(t, c, again, syscall.EAGAIN)
	refusedWith(t, c, &meta.Evict{Node: 3}, syscall.EAGAIN)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}}) // it is said again, and is as true as before
	refusedWith(t, c, &meta.Evict{Node: 3}, syscall.EAGAIN)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 3, 4}})
	c.Do(1, &meta.Evict{Node: 3})
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1}})
	c.Do(1, &meta.Evict{Node: 4})
	refusedWith(t, c, &meta.Evict{Node: 1}, syscall.EAGAIN)

	c = metatest.New(t, 6)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3, 4, 5}})
	c.Do(1, &meta.Evict{Node: 2})
	c.Do(1, &meta.Evict{Node: 3})
	refusedWith(t, c, &meta.Evict{Node: 4}, syscall.EAGAIN) // 1 and 5 are no quorum of five
}

// G4: during a joint change of the voters each of the two sets keeps a majority. An eviction that one of them can't do
// without would stop raft for good, also when the other one can.
func TestEvictionsDuringAChangeLeaveTwoQuorums(t *testing.T) {
	c := metatest.New(t, 7)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}, Outgoing: []meta.NodeID{1}})
	c.Do(1, &meta.Evict{Node: 2})
	refusedWith(t, c, &meta.Evict{Node: 3}, syscall.EAGAIN) // of the new ones
	refusedWith(t, c, &meta.Evict{Node: 1}, syscall.EAGAIN)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 3, 4, 5, 6}, Outgoing: []meta.NodeID{1, 2, 3}})
	refusedWith(t, c, &meta.Evict{Node: 3}, syscall.EAGAIN) // of the ones before
	c.Do(1, &meta.Evict{Node: 4})
	c.Do(1, &meta.Evict{Node: 7}) // it has no vote
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 3, 4, 5, 6}})
	c.Do(1, &meta.Evict{Node: 3})
}

// G4: the node that began the cluster votes alone until the voters change for the first time.
func TestFirstNodeVotes(t *testing.T) {
	c := metatest.Resume(t, meta.OpenMemory(), 0)
	for _, name := range []string{"first", "second"} {
		c.Boot(c.Join(name))
	}
	refusedWith(t, c, &meta.Evict{Node: 1}, syscall.EAGAIN)
	for id, votes := range map[meta.NodeID]bool{1: true, 2: false} {
		if rec, err := c.DB.Node(id); err != nil || rec.Voter != votes {
			t.Errorf("%+v, %v", rec, err)
		}
	}
	c.Do(1, &meta.Evict{Node: 2})
	c.Do(1, &meta.SetVoters{})
	c.Do(1, &meta.Evict{Node: 1})
}

// G4: the node that a voter was replaced by is up, and has no vote before the voters are changed.
func TestReplacedVoterHasNoVote(t *testing.T) {
	c := metatest.New(t, 3)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}})
	rec, err := c.DB.Node(2)
	if err != nil {
		t.Fatal(err)
	}
	token := [32]byte{7}
	c.Do(1, &meta.AddToken{Hash: token, Expires: 1 << 62, Replace: true, Uses: 1})
	c.Do(1, &meta.Join{Name: rec.Name, Addr: "new:1", TokenHash: token, Replace: true})
	c.Do(1, &meta.Boot{Node: 2, Store: [16]byte{9}})
	refusedWith(t, c, &meta.Evict{Node: 3}, syscall.EAGAIN)
	if rec, err = c.DB.Node(2); err != nil || rec.Voter || rec.State != meta.NodeUp {
		t.Fatalf("%+v, %v", rec, err)
	}
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}, Outgoing: []meta.NodeID{0, 1, 3}})
	refusedWith(t, c, &meta.Evict{Node: 3}, syscall.EAGAIN)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}})
	c.Do(1, &meta.Evict{Node: 3})
}

// G4: voters that are replaced at the same time must leave a quorum too: the store that votes ends with the entry.
func TestReplacementsAtOnceLeaveAQuorum(t *testing.T) {
	c := metatest.New(t, 4)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}})
	name := func(id meta.NodeID) string {
		n, err := c.DB.Node(id)
		if err != nil {
			t.Fatal(err)
		}
		return n.Name
	}
	replace := func(id meta.NodeID) *meta.Join {
		token := [32]byte{7, byte(id)}
		c.Do(1, &meta.AddToken{Hash: token, Expires: 1 << 62, Replace: true, Uses: 1})
		return &meta.Join{Name: name(id), Addr: "new:1", TokenHash: token, Replace: true}
	}
	c.Do(1, replace(2))
	third := replace(3)
	refusedWith(t, c, third, syscall.EAGAIN)
	refusedWith(t, c, &meta.Evict{Node: 3}, syscall.EAGAIN)
	c.Do(1, replace(4)) // it has no vote
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{3}})
	refusedWith(t, c, third, syscall.EAGAIN)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1}})
	c.Do(1, third) // the token has not been used
}

// G4: what happens between the proposer's look and the entry counts.
func TestEvictSeesWhatCameSinceTheCheck(t *testing.T) {
	t.Run("a file for that node alone", func(t *testing.T) {
		c, f, _, members := copies(t, 3, 1)
		only := members[0]
		c.Do(only, &meta.Unlink{Parent: meta.RootIno, Name: "f", Ino: f})
		op, d := checked(t, c, only)
		if d.Contents != 0 {
			t.Fatalf("%+v", d)
		}
		for i := 0; ; i++ {
			name := string(rune('a' + i))
			g := newFile(c, name)
			at, _ := c.DB.Members(mustInode(t, c.DB, g).Policy, g)
			c.Do(1, push(c, 1, g, meta.ContentID{}, votes(c, at...)))
			if at[0] == only {
				break
			}
		}
		refusedWith(t, c, op, syscall.EBUSY)
	})
	t.Run("the other copy is lost", func(t *testing.T) {
		c, _, p, members := copies(t, 3, 2)
		op, d := checked(t, c, members[0])
		if d.Contents != 0 {
			t.Fatalf("%+v", d)
		}
		c.Do(members[1], &meta.Unheld{Node: members[1], Contents: []meta.ContentID{p.Session}, Reason: meta.OwedLost})
		refusedWith(t, c, op, syscall.EAGAIN)
		if _, d = checked(t, c, members[0]); d.Contents != 1 {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("the other holder goes down", func(t *testing.T) {
		c, _, _, members := copies(t, 3, 2)
		op, _ := checked(t, c, members[0])
		c.Do(1, &meta.Down{Node: members[1], Incarnation: 1})
		if res := c.ProposeAs(c.Lease(members[0]), op); res.Errno != syscall.EAGAIN {
			t.Fatal(res.Errno)
		}
		if _, d := checked(t, c, members[0]); d.Contents != 1 {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		c, _, _, members := copies(t, 3, 2)
		op, _ := checked(t, c, members[0])
		c.Do(members[1], op)
	})
}

func dependOn(t *testing.T, c *metatest.Cluster, n meta.NodeID) meta.Depending {
	t.Helper()
	d, err := c.DB.(*meta.DB).DependOn(n, 10)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A drain makes the next node of the order fetch what the draining one holds; then nothing depends on it, and it may
// let go.
func TestDrainMovesCopies(t *testing.T) {
	c, f, p, members := copies(t, 3, 1)
	leaver := members[0]
	c.Do(1, &meta.Drain{Node: leaver})
	if d := dependOn(t, c, leaver); d.Contents != 1 || d.Bytes != p.Size || d.Stuck != 0 {
		t.Fatalf("%+v", d)
	}
	now, _ := c.DB.Members(mustInode(t, c.DB, f).Policy, f)
	if len(now) != 1 || now[0] == leaver {
		t.Fatalf("members %v while %d drains", now, leaver)
	}
	if l := owed(t, c, now[0]); len(l) != 1 || l[0].Content != p.Session || !holds(t, c, leaver, p.Session) {
		t.Fatalf("%+v", l)
	}
	c.Do(now[0], &meta.Held{Node: now[0], Contents: []meta.ContentID{p.Session}})
	if d := dependOn(t, c, leaver); d.Contents != 0 {
		t.Fatalf("%+v", d)
	}
	c.Do(leaver, &meta.Release{Node: leaver, Contents: []meta.ContentID{p.Session}})
	op, _ := checked(t, c, leaver)
	c.Do(now[0], op)
	if hs, _ := c.DB.Holders(p.Session); len(hs) != 1 || hs[0] != now[0] {
		t.Fatal(hs)
	}
}

// A node that drains gets nothing new and is owed nothing; when the drain is undone it is owed what came meanwhile.
func TestDrainTakesNothingNew(t *testing.T) {
	c := metatest.New(t, 3)
	f, g := newFile(c, "f"), newFile(c, "g")
	old := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2, 3))
	c.Do(1, old)
	c.Do(1, &meta.Drain{Node: 3})
	p := push(c, 1, g, meta.ContentID{}, votes(c, 1, 2, 3))
	if res := c.Do(1, p); len(res.Owed) != 0 || holds(t, c, 3, p.Session) || len(owed(t, c, 3)) != 0 {
		t.Fatalf("%+v", res)
	}
	if !holds(t, c, 3, old.Session) || dependOn(t, c, 3).Contents != 0 {
		t.Fatal("what it held counts no more, or it is needed though all have it")
	}
	c.Boot(3)
	if n, _ := c.DB.Node(3); n.DrainIndex == 0 {
		t.Fatal("a restart ended the drain")
	}
	if res := c.Do(1, &meta.Drain{Node: 3}); !res.Existed {
		t.Fatal("it is drained twice")
	}
	c.Do(1, &meta.Drain{Node: 3, Undo: true})
	if l := owed(t, c, 3); len(l) != 1 || l[0].Content != p.Session || holds(t, c, 3, p.Session) ||
		!holds(t, c, 3, old.Session) {
		t.Fatalf("%+v", l)
	}
	c.Do(3, &meta.Held{Node: 3, UpTo: c.DB.Index()})
	if !holds(t, c, 3, p.Session) {
		t.Fatal("not held")
	}
}

// A draining node sees nothing that is owed to it: what it reports of its backlog then settles nothing.
func TestDrainSettlesNoBacklog(t *testing.T) {
	c := metatest.New(t, 2)
	f := newFile(c, "f")
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))
	c.Do(1, p)
	c.Boot(c.Join("three"))
	if holds(t, c, 3, p.Session) {
		t.Fatal("a node that has just joined is believed to hold")
	}
	c.Do(1, &meta.Drain{Node: 3})
	c.Do(3, &meta.Held{Node: 3, UpTo: c.DB.Index(), View: c.DB.View()})
	c.Do(1, &meta.Drain{Node: 3, Undo: true})
	if l := owed(t, c, 3); holds(t, c, 3, p.Session) || len(l) != 1 || l[0].Content != p.Session {
		t.Fatalf("a content that never came is believed held: owed %+v", l)
	}
}

// What a member that is up lacks depends on the node that drains, also where another node has it.
func TestDrainWaitsForTheMembers(t *testing.T) {
	c := metatest.New(t, 4)
	f := newFile(c, "f")
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 4))
	c.Do(1, p)
	c.Do(1, &meta.Drain{Node: 4})
	if d := dependOn(t, c, 4); d.Contents != 1 {
		t.Fatalf("%+v", d)
	}
	c.Do(2, &meta.Held{Node: 2, Contents: []meta.ContentID{p.Session}})
	c.Do(1, &meta.Down{Node: 3, Incarnation: 1})
	if d := dependOn(t, c, 4); d.Contents != 0 {
		t.Fatalf("%+v", d)
	}
}

// A drain that begins while a file is on its way takes no vote from it: what the draining node stored counts until
// the members have it.
func TestDrainInMidTransfer(t *testing.T) {
	c, f, p, members := copies(t, 4, 2)
	next := push(c, 1, f, p.Session, votes(c, members...))
	c.Do(1, &meta.Drain{Node: members[0]})
	res := c.Do(1, next)
	if hs, _ := c.DB.Holders(next.Session); len(hs) != 2 || len(res.Owed) != 1 {
		t.Fatalf("holders %v, owed %v", hs, res.Owed)
	}
	if d := dependOn(t, c, members[0]); d.Contents != 1 {
		t.Fatalf("%+v", d)
	}
}

// Somebody must go on to take contents, and a file that may be nowhere else is said to be stuck.
func TestDrainThatCannotEnd(t *testing.T) {
	c := metatest.New(t, 2)
	c.Do(1, &meta.Drain{Node: 1})
	refusedWith(t, c, &meta.Drain{Node: 2}, syscall.EBUSY)
	refusedWith(t, c, &meta.Drain{Node: 9}, syscall.ENOENT)
	c.Do(1, &meta.Drain{Node: 1, Undo: true})

	labelled := c.JoinWith("node3", map[string]string{"disk": "big"})
	c.Boot(labelled)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceLabels,
		Labels: map[string]string{"disk": "big"}}})
	f := newFile(c, "f")
	c.Do(1, push(c, 1, f, meta.ContentID{}, votes(c, labelled)))
	c.Do(1, &meta.Drain{Node: labelled})
	if d := dependOn(t, c, labelled); d.Contents != 1 || d.Stuck != 1 {
		t.Fatalf("%+v", d)
	}
}
