package meta

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/internal/format"
)

// anyOp draws an operation of any kind with any field values.
func anyOp() *rapid.Generator[Op] {
	return rapid.OneOf(
		opOf[Create](), opOf[Link](), opOf[Unlink](), opOf[Rmdir](), opOf[Rename](), opOf[SetAttr](), opOf[Publish](),
		opOf[Abort](), opOf[Join](), opOf[Boot](), opOf[Down](), opOf[Evict](), opOf[EvictSpare](), opOf[Drain](),
		opOf[Held](), opOf[Unheld](),
		opOf[SetPolicy](), opOf[Restore](), rapid.Just(Op(&Expire{})), opOf[AddToken](), opOf[SetVoters](), opOf[Release](),
		opOf[Undelete](), opOf[Reserve](), opOf[DelegateNames](), opOf[ReturnNames](), opOf[RecallNames](),
		opOf[RaiseFormat](),
		opOf[Audit](),
	)
}

func opOf[T any]() *rapid.Generator[Op] {
	return rapid.Map(rapid.Make[*T](), func(p *T) Op {
		if p == nil {
			p = new(T)
		}
		return any(p).(Op)
	})
}

func TestEntryRoundTrip(t *testing.T) {
	for code, mk := range opMakers {
		if got := mk().opcode(); got != code {
			t.Fatalf("operation %d is listed under %d", got, code)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		e := Entry{
			Node: rapid.Make[NodeID]().Draw(r, "node"), Incarnation: rapid.Uint32().Draw(r, "incarnation"),
			Seq: rapid.Uint64().Draw(r, "seq"), Acked: rapid.Uint64().Draw(r, "acked"),
			Generation: rapid.Uint32().Draw(r, "generation"),
			Format:     rapid.Uint64Min(format.First).Draw(r, "format"),
			Op:         anyOp().Draw(r, "op"),
		}
		said(e.Op)
		data := EncodeEntry(e)
		got, err := DecodeEntry(data)
		if err != nil {
			r.Fatal(err)
		}
		if diff := cmp.Diff(e, got, cmpopts.EquateEmpty()); diff != "" {
			r.Fatal(diff)
		}
		if !bytes.Equal(data, EncodeEntry(got)) {
			r.Fatal("encoded differently again")
		}
		short := data[:rapid.IntRange(0, len(data)-1).Draw(r, "cut")]
		switch got, err := DecodeEntry(short); {
		case err == nil && bytes.Equal(EncodeEntry(got), short): // without the last fields, as older programs wrote it
		case !errors.Is(err, errMalformed):
			r.Fatalf("decoded the first %d of %d bytes: %v", len(short), len(data), err)
		}
	})
}

// said gives an operation a program that says which formats it knows, if it says anything. A rename gets an owner only
// if it leaves a whiteout, which somebody owns.
func said(op Op) {
	switch o := op.(type) {
	case *Join:
		o.Program.said()
	case *Boot:
		if o.Program.said(); o.Program.Formats.Newest == 0 {
			o.Next = 0
		}
	case *Rename:
		if o.Flags&RenameWhiteout == 0 {
			o.Cred = Cred{}
		}
	}
}

func (p *Program) said() {
	if p.Formats.Newest == 0 {
		p.Version = ""
	}
}

func second[A, B any](_ A, b B) B { return b }

func TestRecordRoundTrip(t *testing.T) {
	roundTrip(t, func(i *Inode) { i.Size &= 1<<62 - 1; i.Holes &= 1<<62 - 1 })
	roundTrip(t, func(r *contentRecord) { r.Size &= 1<<62 - 1; r.Holes &= 1<<62 - 1; r.Expires &= 1<<62 - 1 })
	roundTrip(t, func(r *owedRecord) { r.Size &= 1<<62 - 1 })
	roundTrip(t, func(r *nodeRecord) { r.NextIno = 0; r.Program.said() }) // NextIno lives in progress
	roundTrip(t, func(*tokenRecord) {})
	roundTrip(t, func(*Policy) {})
	roundTrip(t, func(*dirent) {})
	roundTrip(t, func(*progress) {})
	roundTrip(t, func(r *auditRecord) { r.Index = 0 }) // in the key
	roundTrip(t, func(*auditCount) {})
	roundTrip(t, func(r *Result) {
		r.Duplicate, r.Fenced, r.Retired = false, false, 0 // not stored
		r.Errno &= 0xff
		r.Inode.Size &= 1<<62 - 1
		r.Inode.Holes &= 1<<62 - 1
	})
}

func roundTrip[T any, P interface {
	*T
	record
}](t *testing.T, trim func(P)) {
	t.Helper()
	rapid.Check(t, func(r *rapid.T) {
		v := rapid.Make[T]().Draw(r, "record")
		trim(&v)
		data := encodeRecord(P(&v))
		var got T
		if err := decodeRecord(data, P(&got)); err != nil {
			r.Fatal(err)
		}
		if diff := cmp.Diff(v, got, cmpopts.EquateEmpty()); diff != "" {
			r.Fatal(diff)
		}
	})
}

// An entry that this build does not know answers ENOSYS and changes nothing but the index.
func TestUnknownEntries(t *testing.T) {
	db := OpenMemory()
	_, sum := db.Digest()
	for i, data := range [][]byte{{0}, {format.First}, {2, 0, 0, 0, 0, 1, 1}, {format.First, 0, 0, 0, 0, 1, 200},
		make([]byte, MaxEntryBytes+1)} {
		res, events, err := db.Apply(uint64(i+1), 0, data)
		if err != nil || len(events) != 0 || res.Errno == 0 {
			t.Errorf("entry %x: %v %v %v", data[:1], res.Errno, events, err)
		}
	}
	if i, s := db.Digest(); i != 5 || s == sum {
		t.Error("index not part of the digest") // the head's index is replicated state
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(EncodeEntry(Entry{Node: 1, Incarnation: 1, Seq: 1, Generation: 1,
		Op: &Create{Parent: 1, Name: "n", Kind: KindFile}}))
	f.Add(EncodeEntry(Entry{Op: &Publish{Ino: 5, Size: 3, Inline: []byte("abc"), Missing: []Missed{{3, OwedSlow}}}}))
	f.Add(EncodeEntry(Entry{Op: &Join{Name: "x", Labels: map[string]string{"rack": "1", "zone": "2"}}}))
	f.Add(EncodeEntry(Entry{Op: &SetAttr{Patch: AttrPatch{SetXattr: map[string][]byte{"a": {1}},
		DelXattr: []string{"b"}}}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := DecodeEntry(data)
		if err == nil {
			if got, err := DecodeEntry(EncodeEntry(e)); err != nil || !cmp.Equal(e, got) {
				t.Fatalf("%+v became %+v, %v", e, got, err)
			}
		}
		db := OpenMemory()
		before := db.cur.Load().head
		res, _, err := db.Apply(1, 5, data)
		if err != nil {
			t.Fatal(err)
		}
		if h := db.cur.Load().head; res.Errno != 0 && h.Sum != before.Sum {
			t.Fatalf("%v changed the state", res.Errno)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(encodeRecord(&Inode{Ino: 3, Name: "n"}), uint8(0))
	f.Add(encodeRecord(&contentRecord{Owed: []NodeID{1, 2}}), uint8(1))
	f.Add(encodeRecord(&nodeRecord{Node: Node{Labels: map[string]string{"a": "b"}, Backlog: []IndexRange{{1, 2}}}}),
		uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, kind uint8) {
		mk := []func() record{
			func() record { return new(Inode) }, func() record { return new(contentRecord) }, func() record {
				return new(nodeRecord)
			},
			func() record { return new(Policy) }, func() record { return new(progress) },
			func() record { return new(electorate) }, func() record { return new(Result) },
			func() record { return new(owedRecord) }, func() record { return new(tokenRecord) },
			func() record { return new(dirent) }, func() record { return new(head) },
		}[kind%10]
		r := mk()
		if err := decodeRecord(data, r); err != nil {
			return
		}
		again := mk()
		if err := decodeRecord(encodeRecord(r), again); err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		if !cmp.Equal(r, again, cmp.AllowUnexported(head{}, sum128{})) {
			t.Fatalf("%+v became %+v", r, again)
		}
	})
}

func FuzzRestore(f *testing.F) {
	db := OpenMemory()
	for i, op := range []Op{&AddToken{Hash: [32]byte{1}}, &SetVoters{Voters: []NodeID{1}}} {
		if _, _, err := db.Apply(uint64(i+1), 1, EncodeEntry(Entry{Generation: FirstGeneration, Op: op})); err != nil {
			f.Fatal(err)
		}
	}
	s, _, err := db.Snapshot()
	if err != nil {
		f.Fatal(err)
	}
	var good bytes.Buffer
	if _, err := good.ReadFrom(s); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Add(good.Bytes()[:snapshotHeader])
	_, want := db.Digest()
	f.Fuzz(func(t *testing.T, data []byte) {
		fresh := OpenMemory()
		_, empty := fresh.Digest()
		err := fresh.Restore(bytes.NewReader(data))
		_, got := fresh.Digest()
		if err != nil && got != empty {
			t.Fatalf("%v, but the state changed", err)
		}
		if bytes.HasPrefix(data, good.Bytes()) && (err != nil || got != want) {
			t.Fatalf("%v digest %x", err, got)
		}
	})
}
