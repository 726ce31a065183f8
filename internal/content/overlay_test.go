package content

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// overlayModel holds an overlay against a byte slice.
type overlayModel struct {
	s      *Store
	o      *Overlay
	bytes  []byte
	last   []byte // what the overlay is compared with: the base, or what was published last
	newest []byte // what was published last under the id next
	next   *uint32
	id     ID // the newest
}

func (m *overlayModel) check(t *rapid.T) {
	if m.o.Size() != int64(len(m.bytes)) {
		t.Fatalf("size %d, want %d", m.o.Size(), len(m.bytes))
	}
	got, err := io.ReadAll(io.NewSectionReader(m.o, 0, 1<<40))
	if err != nil || !bytes.Equal(got, m.bytes) {
		t.Fatalf("overlay differs at %d (%v)", firstDiff(got, m.bytes), err)
	}
	if !m.o.Changed() && !bytes.Equal(m.bytes, m.last) {
		t.Fatal("changed, but says it is not")
	}
}

// numberedID makes an id from a number.
func numberedID(n uint32) ID {
	id := ID{0: 9}
	binary.BigEndian.PutUint32(id[12:], n)
	return id
}

func firstDiff(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// publish stores a snapshot and compares it with the model.
func (m *overlayModel) publish(t *rapid.T) {
	snap, err := m.o.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	*m.next++
	id := numberedID(*m.next)
	m.id = id
	r, err := m.s.Begin(id, snap.Shape())
	if err != nil {
		t.Fatal(err)
	}
	root, err := r.fill(t.Context(), snap)
	if err == nil {
		err = r.Finish(t.Context(), root)
	}
	if err == nil {
		err = m.s.Commit(id)
	}
	if err != nil {
		t.Fatal(err)
	}
	wantStored(t, m.s, id, m.bytes)
	snap.Published(id)
	m.last = bytes.Clone(m.bytes)
	m.newest = m.last
	if m.o.Changed() {
		t.Fatal("changed after it was published")
	}
}

func wantStored(t *rapid.T, s *Store, id ID, want []byte) {
	r, err := s.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
	if err != nil || !bytes.Equal(got, want) || rootOf(want) != r.Root() {
		t.Fatalf("stored content differs at %d of %d/%d (%v)", firstDiff(got, want), len(got), len(want), err)
	}
}

// offset draws offsets that like the edges of pages and blocks.
func offset(limit int64) *rapid.Generator[int64] {
	return rapid.Custom(func(t *rapid.T) int64 {
		off := rapid.Int64Range(0, limit).Draw(t, "off")
		switch rapid.IntRange(0, 3).Draw(t, "align") {
		case 0:
			off = off / PageBytes * PageBytes
		case 1:
			off = min(limit, off/BlockBytes*BlockBytes)
		}
		return off
	})
}

func TestOverlayModel(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	next := uint32(0)
	rapid.Check(t, func(t *rapid.T) {
		next++
		size := rapid.SampledFrom([]int64{0, 1, 4096, 5000, 100_000, BlockBytes, 2*BlockBytes + 4097}).Draw(t, "size")
		m := &overlayModel{s: s, bytes: randomBytes(9, size), next: &next, id: numberedID(next)}
		m.last = bytes.Clone(m.bytes)
		m.newest = m.last
		first := m.last
		if _, err := s.Put(t.Context(), m.id, Shape{Size: size}, bytes.NewReader(m.bytes)); err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(m.id); err != nil {
			t.Fatal(err)
		}
		var err error
		if m.o, err = s.NewOverlay(m.id, Origin{Ino: 5, Name: "x"}); err != nil {
			t.Fatal(err)
		}
		defer func() { // also when rapid gives a run up
			if err := m.o.Drop(); err != nil {
				t.Error(err)
			}
			if list, err := s.Stagings(); err != nil || len(list) != 0 {
				t.Errorf("stagings after drop: %v, %v", list, err)
			}
			if _, err := s.Sweep(func(ID) bool { return false }); err != nil {
				t.Error(err)
			}
		}()
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				off := offset(3*BlockBytes).Draw(t, "at")
				n := rapid.SampledFrom([]int64{1, 10, 4096, 5000, 70_000}).Draw(t, "n")
				p := randomBytes(uint64(off+n), n)
				if _, err := m.o.WriteAt(p, off); err != nil {
					t.Fatal(err)
				}
				m.bytes = append(m.bytes, make([]byte, max(0, off+n-int64(len(m.bytes))))...)
				copy(m.bytes[off:], p)
			},
			"truncate": func(t *rapid.T) {
				size := offset(3*BlockBytes).Draw(t, "to")
				if err := m.o.Truncate(size); err != nil {
					t.Fatal(err)
				}
				m.bytes = append(slices.Clone(m.bytes[:min(size, int64(len(m.bytes)))]),
					make([]byte, max(0, size-int64(len(m.bytes))))...)
			},
			"punch": func(t *rapid.T) {
				off, n := offset(3*BlockBytes).Draw(t, "at"), offset(2*BlockBytes).Draw(t, "n")
				if err := m.o.Punch(off, n); err != nil {
					t.Fatal(err)
				}
				if end := min(off+n, int64(len(m.bytes))); off < end {
					clear(m.bytes[off:end])
				}
			},
			"publish": m.publish,
			"fail": func(t *rapid.T) {
				snap, err := m.o.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				snap.Failed()
			},
			"merge": func(t *rapid.T) {
				id := m.id
				if err := m.s.Merge(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				wantStored(t, m.s, id, m.newest)
			},
			"reopen": func(t *rapid.T) {
				token := m.o.Token()
				if err := m.o.Close(); err != nil {
					t.Fatal(err)
				}
				if m.o, err = m.s.OpenOverlay(token); err != nil {
					t.Fatal(err)
				}
				m.last = first
			},
			"": m.check,
		})
	})
}

func TestStagingListedAfterClose(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	st, err := s.NewStaging(Origin{Ino: 42, Parent: 1, Name: "file", Node: 3, Incarnation: 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.File().WriteAt([]byte("staged"), BlockBytes*2); err != nil {
		t.Fatal(err)
	}
	if err := st.KeepUnpublished("quorum lost"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	list, err := s.Stagings()
	if err != nil || len(list) != 1 || list[0].Origin != (Origin{Ino: 42, Parent: 1, Name: "file", Node: 3, Incarnation: 4}) ||
		list[0].Reason != "quorum lost" || list[0].Size != 2*BlockBytes+6 || list[0].Open {
		t.Fatalf("stagings: %+v, %v", list, err)
	}
	again, err := s.OpenStaging(list[0].Token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenStaging(list[0].Token); !errors.Is(err, ErrBusy) {
		t.Fatalf("open twice: %v", err)
	}
	if next, err := s.NewStaging(Origin{}); err != nil || next.Token() <= again.Token() {
		t.Fatalf("token reused: %v", err)
	} else if err := next.Drop(); err != nil {
		t.Fatal(err)
	}
	if err := again.Drop(); err != nil {
		t.Fatal(err)
	}
}
