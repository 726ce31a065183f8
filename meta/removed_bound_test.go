package meta

import (
	"encoding/hex"
	"fmt"
	"testing"
)

// Above the bound the oldest removed files go, some at once, with their contents.
func TestOldestRemovedFilesGoFirst(t *testing.T) {
	db, index, seq := OpenMemory(), uint64(0), uint64(0)
	apply := func(e Entry) Result {
		t.Helper()
		e.Generation = FirstGeneration
		index++
		res, _, err := db.Apply(index, 1, EncodeEntry(e))
		if err != nil || res.Errno != 0 {
			t.Fatalf("%T: %v, %v", e.Op, res.Errno, err)
		}
		return res
	}
	do := func(op Op) Result {
		t.Helper()
		seq++
		return apply(Entry{Node: 1, Incarnation: 1, Seq: seq, Acked: seq - 1, Op: op})
	}
	apply(Entry{Op: &Join{Name: "n"}})
	apply(Entry{Node: 1, Op: &Boot{Node: 1, Store: [16]byte{1}}})
	do(&SetPolicy{Policy: &Policy{KeepRemoved: 1 << 40}})
	remove := func(n int) {
		t.Helper()
		name := fmt.Sprint(n)
		f := do(&Create{Parent: RootIno, Name: name, Kind: KindFile}).Ino
		do(&Publish{Ino: f, Session: ContentID{1, 1, uint64(n + 1)}, Size: 1, Inline: []byte("x")})
		do(&Unlink{Parent: RootIno, Name: name})
	}
	for n := range removedBatch + 2 {
		remove(n)
	}
	full := *db.cur.Load()
	full.head.Removed = RemovedMax
	db.cur.Store(&full)
	remove(removedBatch + 2)
	left, err := Removals{db}.Under("/", RemovedMax)
	if err != nil || len(left) != 3 || left[2].Path != fmt.Sprintf("/%d", removedBatch) {
		t.Fatalf("%+v, %v", left, err)
	}
	if h := db.cur.Load().head; h.Removed != RemovedMax+1-removedBatch || h.Bytes != 3 {
		t.Fatalf("%d files of %d bytes", h.Removed, h.Bytes)
	}
	if _, err := db.Content(ContentID{1, 1, 1}); err != ErrNotFound {
		t.Fatal(err)
	}
}

// Logs and states from before removed files were kept have these bytes.
func TestBytesFromBeforeRemovedFilesWereKept(t *testing.T) {
	bytes := func(text string) []byte {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	e, err := DecodeEntry(bytes("0102030405060f0201050607020774657874203131077465787420313206746578742039077465787420" +
		"31300d010f"))
	if o, is := e.Op.(*SetPolicy); err != nil || !is || o.Policy.Retain != 15 || o.Policy.KeepRemoved != 0 {
		t.Errorf("%+v, %v", e.Op, err)
	}
	var p Policy
	err = decodeRecord(bytes("0102030402067465787420360674657874203706746578742038067465787420390a010c"), &p)
	if err != nil || p.Retain != 12 || p.KeepRemoved != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	var h head
	err = decodeRecord(bytes("01020000000000000003040506070801010b0c0e0f"), &h)
	if err != nil || h.Sum.lo != 15 || h.Removed != 0 {
		t.Errorf("%+v, %v", h, err)
	}
}
