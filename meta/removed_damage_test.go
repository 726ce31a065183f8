package meta

import (
	"fmt"
	"syscall"
	"testing"
)

// oneNode applies entries to a state of one node.
type oneNode struct {
	t          *testing.T
	db         *DB
	index, seq uint64
	now        int64
}

func newOneNode(t *testing.T) *oneNode {
	o := &oneNode{t: t, db: OpenMemory(), now: 1}
	o.apply(Entry{Op: &Join{Name: "n"}})
	o.apply(Entry{Node: 1, Op: &Boot{Node: 1, Store: [16]byte{1}}})
	return o
}

func (o *oneNode) apply(e Entry) Result {
	o.t.Helper()
	e.Generation = FirstGeneration
	o.index++
	res, _, err := o.db.Apply(o.index, o.now, EncodeEntry(e))
	if err != nil {
		o.t.Fatalf("%T: %v", e.Op, err)
	}
	return res
}

func (o *oneNode) propose(op Op) Result {
	o.t.Helper()
	o.seq++
	return o.apply(Entry{Node: 1, Incarnation: 1, Seq: o.seq, Acked: o.seq - 1, Op: op})
}

func (o *oneNode) do(op Op) Result {
	o.t.Helper()
	res := o.propose(op)
	if res.Errno != 0 {
		o.t.Fatalf("%T: %v", op, res.Errno)
	}
	return res
}

// damage deletes the row of a key.
func (o *oneNode) damage(key []byte) {
	o.t.Helper()
	o.index++
	if _, _, err := o.db.apply(o.index, o.now, 1, func(t *tx) Result { t.del(key); return Result{} }); err != nil {
		o.t.Fatal(err)
	}
}

// create makes a file of one byte and returns its content.
func (o *oneNode) create(n uint64) (name string, id ContentID) {
	o.t.Helper()
	name, id = fmt.Sprint(n), ContentID{Node: 1, Incarnation: 1, Seq: n + 1}
	f := o.do(&Create{Parent: RootIno, Name: name, Kind: KindFile}).Ino
	o.do(&Publish{Ino: f, Session: id, Size: 1, Inline: []byte("x")})
	return name, id
}

// remove makes a file of one byte and removes it.
func (o *oneNode) remove(n uint64) ContentID {
	o.t.Helper()
	name, id := o.create(n)
	o.do(&Unlink{Parent: RootIno, Name: name})
	return id
}

func (o *oneNode) kept() []RemovedFile {
	o.t.Helper()
	list, err := Removals{o.db}.Under("/", RemovedMax)
	if err != nil {
		o.t.Fatal(err)
	}
	return list
}

// Rows that are about nothing go when their time is over: otherwise something would be due for ever.
func TestRowsAboutNothingExpire(t *testing.T) {
	o := newOneNode(t)
	o.do(&SetPolicy{Policy: &Policy{KeepRemoved: 100}})
	o.remove(0)
	o.remove(1)
	o.damage(removedKey(o.kept()[0].Index))
	f := o.do(&Create{Parent: RootIno, Name: "f", Kind: KindFile}).Ino
	for n := range uint64(2) { // the second one has another base, so the first one loses
		o.do(&Publish{Ino: f, Session: ContentID{Node: 1, Incarnation: 1, Seq: n + 10}, Size: 1, Inline: []byte("x")})
	}
	o.damage(keyContent(tableContent, ContentID{Node: 1, Incarnation: 1, Seq: 10}))
	o.now += 1 + max(100, keepFor)
	for _, want := range []int{3, 0} {
		if res := o.do(&Expire{}); res.Retired != want {
			t.Errorf("%d rows went, want %d", res.Retired, want)
		}
	}
	if (Removals{o.db}).Due() {
		t.Error("something is still due")
	}
}

// A removed file whose content has no record any more can't come back, and can be dropped.
func TestRemovedFileWithoutContent(t *testing.T) {
	o := newOneNode(t)
	o.do(&SetPolicy{Policy: &Policy{KeepRemoved: 100}})
	o.damage(keyContent(tableContent, o.remove(0)))
	index := o.kept()[0].Index
	if res := o.propose(&Undelete{Removed: index, Parent: RootIno, Name: "again"}); res.Errno != syscall.EIO {
		t.Errorf("it comes back: %+v", res)
	}
	if _, err := o.db.Lookup(RootIno, "again", Lease{}); err != ErrNotFound || len(o.kept()) != 1 {
		t.Errorf("a refusal has an effect: %v", err)
	}
	o.do(&Undelete{Removed: index, Drop: true})
	name, id := o.create(1)
	o.damage(keyContent(tableContent, id))
	o.do(&Unlink{Parent: RootIno, Name: name})
	if list := o.kept(); len(list) != 0 {
		t.Errorf("kept: %+v", list)
	}
}
