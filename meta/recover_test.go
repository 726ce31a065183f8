package meta_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// G4: a recovered cluster is another generation, in which one node votes and all are away until they boot. What was
// given out after the state that it goes on with is not given out again.
func TestRecover(t *testing.T) {
	c := metatest.New(t, 4)
	c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}})
	c.Do(1, &meta.Evict{Node: 4})
	f := newFile(c, "f")
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2, 3))
	c.Do(1, p)
	db := c.DB.(*meta.DB)
	before, last := map[meta.NodeID]meta.Node{}, db.Index()
	for id := meta.NodeID(1); id <= 4; id++ {
		before[id], _ = db.Node(id)
	}
	for why, err := range map[string]error{
		"at an index that was applied": db.Recover(last, 9, 2), "to the same generation": db.Recover(last+5, 1, 2),
		"with a node that was evicted": db.Recover(last+5, 9, 4), "with a node that never was": db.Recover(last+5, 9, 9),
	} {
		if err == nil || db.Index() != last || db.Generation() != meta.FirstGeneration {
			t.Errorf("recovered %s: %v", why, err)
		}
	}
	if err := db.Recover(last+5, 9, 2); err != nil {
		t.Fatal(err)
	}
	if db.Index() != last+5 || db.Generation() != 9 {
		t.Fatalf("at %d, generation %d", db.Index(), db.Generation())
	}
	for id := meta.NodeID(1); id <= 3; id++ {
		n, err := db.Node(id)
		if err != nil || n.State != meta.NodeDown || n.Voter != (id == 2) {
			t.Errorf("%+v, %v", n, err)
		}
		if n.Incarnation <= before[id].Incarnation+1000 || n.NextIno <= before[id].NextIno+1000 {
			t.Errorf("numbers go on: %+v, before %+v", n, before[id])
		}
	}
	if n, err := db.Node(4); err != nil || n.State != meta.NodeEvicted {
		t.Errorf("%+v, %v", n, err)
	}
	if hs, err := db.Holders(p.Session); err != nil || len(hs) != 3 {
		t.Errorf("holders %v, %v", hs, err)
	}
	afterRecovery(t, db, before[2].Store)
}

func afterRecovery(t *testing.T, db *meta.DB, store [16]byte) {
	t.Helper()
	apply := func(generation uint32, op meta.Op) meta.Result {
		res, _, err := db.Apply(db.Index()+1, 1, meta.EncodeEntry(meta.Entry{Generation: generation, Op: op}))
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	boot := &meta.Boot{Node: 2, Store: store, Nonce: 7}
	if res := apply(meta.FirstGeneration, boot); res.Errno != syscall.ESTALE {
		t.Errorf("an entry of the generation before: %+v", res)
	}
	if res := apply(9, boot); res.Errno != 0 {
		t.Errorf("boot: %+v", res)
	}
	if res := apply(9, &meta.Evict{Node: 2}); res.Errno != syscall.EAGAIN {
		t.Errorf("the only voter is evicted: %+v", res)
	}
	if res := apply(9, &meta.Evict{Node: 1}); res.Errno != 0 {
		t.Errorf("who was lost is not evicted: %+v", res)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.Recover(db.Index()+1, 10, 2); !errors.Is(err, meta.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
