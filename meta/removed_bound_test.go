package meta

import (
	"encoding/hex"
	"fmt"
	"testing"
)

// Above the bound the removed files that expire first go, some at once, with their contents.
func TestRemovedFilesThatExpireFirstGoFirst(t *testing.T) {
	o := newOneNode(t)
	keepFor := func(time uint64) { t.Helper(); o.do(&SetPolicy{Policy: &Policy{KeepRemoved: time}}) }
	keepFor(1 << 50)
	for n := range uint64(3) {
		o.remove(n)
	}
	keepFor(1 << 40)
	for n := range uint64(removedBatch) {
		o.remove(n + 3)
	}
	keepFor(1 << 50)
	full := *o.db.cur.Load()
	full.head.Removed = RemovedMax
	o.db.cur.Store(&full)
	o.remove(removedBatch + 3)
	left := o.kept()
	if len(left) != 4 || left[0].Path != fmt.Sprintf("/%d", removedBatch+3) || left[3].Path != "/0" {
		t.Fatalf("%+v", left)
	}
	bytes, err := Removals{o.db}.Bytes()
	if n := (Removals{o.db}).Count(); n != RemovedMax+1-removedBatch || bytes != 4 || err != nil ||
		o.db.cur.Load().head.Bytes != 4 {
		t.Fatalf("%d files of %d bytes, %v", n, bytes, err)
	}
	if _, err := o.db.Content(ContentID{Node: 1, Incarnation: 1, Seq: 4}); err != ErrNotFound {
		t.Fatal(err)
	}
	keepFor(1) // this one goes at once
	full = *o.db.cur.Load()
	full.head.Removed = RemovedMax
	o.db.cur.Store(&full)
	id := o.remove(removedBatch + 4)
	if _, err := o.db.Content(id); err != ErrNotFound || len(o.kept()) != 0 || o.db.cur.Load().head.Bytes != 0 {
		t.Fatalf("%v, %+v", err, o.kept())
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
