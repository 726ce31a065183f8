package meta_test

import (
	"errors"
	"fmt"
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

// A node was killed before its state had synced what it had applied, and it has no log of that: the cluster goes on
// without it. Nothing of it shows through in what the new generation puts in its place.
func TestRecoverAfterACrash(t *testing.T) {
	dir := t.TempDir()
	db := openSmall(t, dir)
	c := metatest.Over(t, db, 2)
	mkdir := func(name string) {
		c.Do(1, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindDir, Mode: 0o755})
	}
	mkdir("kept")
	if _, err := db.Sync(); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		mkdir(fmt.Sprint("lost", i))
	}
	crashed := openSmall(t, copyDir(t, dir))
	if crashed.Index() != db.Synced() {
		t.Fatalf("begins at %d, synced %d", crashed.Index(), db.Synced())
	}
	if err := crashed.Recover(crashed.Index()+1, 9, 1); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		if _, _, err := crashed.Apply(crashed.Index()+1, 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := crashed.Lookup(meta.RootIno, "kept", meta.Lease{}); err != nil {
		t.Error(err)
	}
	for i := range 20 {
		if got, err := crashed.Lookup(meta.RootIno, fmt.Sprint("lost", i), meta.Lease{}); !errors.Is(err, meta.ErrNotFound) {
			t.Errorf("lost%d shows through: %+v, %v", i, got, err)
		}
	}
	r, _, err := crashed.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(meta.OpenMemory().Restore(r), r.Close(), crashed.Close(), db.Close()); err != nil {
		t.Error("nobody can take this state: ", err)
	}
}

// Numbers of nodes that are not known here, or not known to have booted, are not given to others: contents that they
// wrote are on the nodes that follow.
func TestRecoverSkipsNumbersOfNodesUnknown(t *testing.T) {
	c := metatest.New(t, 2)
	joined := c.Join("joined")
	db := c.DB.(*meta.DB)
	if err := db.Recover(db.Index()+1, 9, 1); err != nil {
		t.Fatal(err)
	}
	n, err := db.Node(joined)
	if err != nil || n.State != meta.NodeJoined || n.Incarnation < 1<<16 || n.NextIno < 1<<20 {
		t.Errorf("%+v, %v", n, err)
	}
	hash := [32]byte{1}
	for _, op := range []meta.Op{&meta.AddToken{Hash: hash, Expires: 1 << 62},
		&meta.Join{Name: "later", Addr: "later:7400", TokenHash: hash}} {
		res, _, err := db.Apply(db.Index()+1, 1, meta.EncodeEntry(meta.Entry{Generation: 9, Op: op}))
		if err != nil || res.Errno != 0 {
			t.Fatalf("%T: %+v, %v", op, res, err)
		}
		if res.Node != 0 && res.Node <= joined+8 {
			t.Errorf("node %d may be one that was lost", res.Node)
		}
	}
}

// A recovery ends what all nodes had reserved, also of nodes that never come back.
func TestRecoverFreesWhatWasReserved(t *testing.T) {
	c := metatest.New(t, 3)
	kept := newFile(c, "kept")
	c.Inline(1, kept, []byte("bytes"))
	for i := range 5 {
		c.Do(3, &meta.Create{Parent: meta.RootIno, Name: fmt.Sprint("f", i), Kind: meta.KindFile})
	}
	db := c.DB.(*meta.DB)
	if err := db.Recover(db.Index()+1, 9, 1); err != nil {
		t.Fatal(err)
	}
	if inodes, _ := db.StatFS(); inodes != 2 || db.Freeing() {
		t.Errorf("%d inodes, freeing %v: want the root and the file that was published", inodes, db.Freeing())
	}
}

// Two generations that were begun by mistake give out different numbers.
func TestRecoverTwice(t *testing.T) {
	c := metatest.New(t, 2)
	one := c.DB.(*meta.DB)
	other := one.Clone()
	if err := errors.Join(one.Recover(one.Index()+1, 900, 1), other.Recover(other.Index()+1, 5000, 2)); err != nil {
		t.Fatal(err)
	}
	a, err := one.Node(1)
	b, err2 := other.Node(1)
	if err = errors.Join(err, err2); err != nil || a.Incarnation+1000 > b.Incarnation || a.NextIno+1000 > b.NextIno {
		t.Errorf("%+v, %+v, %v", a, b, err)
	}
}
