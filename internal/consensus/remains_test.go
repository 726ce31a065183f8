package consensus

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

// What a log has beyond a state is read without starting the node, and a new log goes on after all of it.
func TestRemainsOfALog(t *testing.T) {
	c := newCluster(t, 1, nil)
	for _, command := range []string{"a", "b", "c"} {
		c.propose(1, command)
	}
	tn := c.nodes[1]
	c.stop(1)
	sm := tn.sm
	all, err := ReadRemains(c.config(tn), 0)
	if err != nil || all.Last != sm.Applied() || all.Term == 0 || uint64(len(all.Entries)) != all.Last ||
		len(all.Voters) != 1 {
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
}
