package consensus

import (
	"slices"
	"testing"
	"testing/synctest"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

// What a log has beyond a state is read without starting the node, and a new log goes on after all of it.
func TestRemainsOfALog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		for _, command := range []string{"a", "b", "c"} {
			c.propose(1, command)
		}
		tn := c.nodes[1]
		c.stop(1)
		sm := tn.sm
		all, err := ReadRemains(c.config(tn), 0)
		if err != nil || all.Last != sm.Applied() || all.Term == 0 || uint64(len(all.Entries)) != all.Last ||
			!all.Member {
			t.Fatalf("%+v, %v; applied %d", all, err, sm.Applied())
		}
		replayed := newToy()
		if _, err := replayed.Apply(all.Entries); err != nil || replayed.state().Digest != sm.state().Digest {
			t.Errorf("the entries are others: %v", err)
		}
		some, err := ReadRemains(c.config(tn), all.Last-1)
		if err != nil || len(some.Entries) != 1 || some.Entries[0].Index != all.Last || some.Term != all.Term {
			t.Errorf("%+v, %v", some, err)
		}

		sm.now.Index++ // of the recovery itself
		sm.synced = sm.now.clone()
		tn.disk = simfs.New()
		cfg := c.config(tn)
		if err := Create(cfg, CreateOptions{Voters: []ID{1}, Index: sm.now.Index, Time: sm.now.Time}); err != nil {
			t.Fatal(err)
		}
		c.start(1)
		c.propose(1, "d")
		if st := sm.state(); st.Count != 4 || st.Index <= all.Last+1 {
			t.Errorf("%+v", st)
		}
	})
}

// A crash came after a snapshot had taken the place of the state, and before the log began there: what the log has
// belongs to another history, and does not follow.
func TestRemainsAfterASnapshot(t *testing.T) {
	for _, at := range []uint64{1, 2, 5} {
		cfg := Config{Dir: "raft", FS: simfs.New(), Identity: Identity{ID: 1}}
		if err := Create(cfg, CreateOptions{Voters: []ID{1, 2, 3}}); err != nil {
			t.Fatal(err)
		}
		disk, _, err := raftlog.Open(cfg.logOptions())
		if err != nil {
			t.Fatal(err)
		}
		var tail []*raftpb.Entry
		for i := range uint64(3) {
			tail = append(tail, &raftpb.Entry{Index: new(i + 1), Term: new(uint64(1 + i/2))})
		}
		for _, b := range []*raftlog.Batch{{Entries: tail, Hard: &raftpb.HardState{Term: new(uint64(2))}},
			{Intent: &raftlog.Base{Index: at, Term: 4, Conf: &raftpb.ConfState{Voters: []ID{1, 2, 3}}}}} {
			if err := disk.Append(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
		if r, err := ReadRemains(cfg, at); err != nil || r.Last != at || r.Term != 4 || len(r.Entries) > 0 {
			t.Errorf("at %d: %+v, %v", at, r, err)
		}
		if r, err := ReadRemains(cfg, 0); err != nil || r.Last != 3 || r.Term != 2 || len(r.Entries) != 3 {
			t.Errorf("the snapshot at %d was not taken: %+v, %v", at, r, err)
		}
	}
}

// A voter's log begins where the node joined raft, not yet as a voter. Its terms count all the same, and those of an
// observer do not.
func TestRemainsOfAVoterThatJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, nil)
		leader := c.waitVoters(3)
		c.propose(leader, "a")
		voters := c.nodes[leader].node.Status().Voters
		c.converge()
		for _, id := range c.ids() {
			c.stop(id)
		}
		for _, id := range c.ids() {
			r, err := ReadRemains(c.config(c.nodes[id]), c.nodes[id].sm.Applied())
			if err != nil || r.Member != slices.Contains(voters, id) {
				t.Errorf("node %d of the voters %v: %+v, %v", id, voters, r, err)
			}
		}
	})
}
