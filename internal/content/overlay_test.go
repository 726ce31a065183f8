package content

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
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
	if err := snap.Published(id); err != nil {
		t.Fatal(err)
	}
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
			for _, id := range s.List(Committed) {
				if err := s.Delete(id); err != nil {
					t.Error(err)
				}
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
				token := m.o.st.token
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
	if err != nil || len(list) != 1 || list[0].Origin != (Origin{Ino: 42, Parent: 1, Name: "file", Node: 3,
		Incarnation: 4}) ||
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
	if next, err := s.NewStaging(Origin{}); err != nil || next.token <= again.token {
		t.Fatalf("token reused: %v", err)
	} else if err := next.Drop(); err != nil {
		t.Fatal(err)
	}
	if err := again.Drop(); err != nil {
		t.Fatal(err)
	}
}

// smallDisk is a file system of 8 MiB.
func smallDisk(t *testing.T) (dir string) {
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("mount tmpfs: %v (needs root)", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk takes all that is free on a file system, by one file, as another program would.
func fillDisk(t *testing.T, dir string) *os.File {
	filler, err := os.Create(dir + "/filler")
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = filler.Write(make([]byte, PageBytes))
	}
	return filler
}

// TestOverlayWriteThatFailed: of a write behind the end that the disk had no room for nothing shows when the file is
// made longer.
func TestOverlayWriteThatFailed(t *testing.T) {
	dir := smallDisk(t)
	s := openStore(t, dir, Options{})
	want := randomBytes(1, BlockBytes+100)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	o, err := s.NewOverlay(testID(1), Origin{Ino: 1})
	if err != nil {
		t.Fatal(err)
	}
	filler := fillDisk(t, dir)
	if err := filler.Truncate(5 << 20); err != nil { // leave room for a part of what is written next
		t.Fatal(err)
	}
	if n, err := o.WriteAt(bytes.Repeat([]byte{7}, 4<<20), 2*BlockBytes); !errors.Is(err, ErrNoSpace) || n != 0 {
		t.Fatalf("overlay write on a full disk: %d, %v", n, err)
	}
	if err := errors.Join(filler.Close(), os.Remove(filler.Name())); err != nil {
		t.Fatal(err)
	}
	if o.Size() != int64(len(want)) {
		t.Fatalf("size %d", o.Size())
	}
	if err := o.Truncate(4 * BlockBytes); err != nil {
		t.Fatal(err)
	}
	want = append(want, make([]byte, 4*BlockBytes-len(want))...)
	got := make([]byte, len(want))
	if _, err := o.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("overlay after a failed write differs at %d: %v", firstDiff(got, want), err)
	}
	if err := o.Drop(); err != nil {
		t.Fatal(err)
	}
}

// TestOverlayNotesOnAFullDisk: what is noted when there is room again is found after a crash, although a note before
// it was cut short.
func TestOverlayNotesOnAFullDisk(t *testing.T) {
	s := openStore(t, smallDisk(t), Options{})
	want := randomBytes(1, 2*BlockBytes)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	o, err := s.NewOverlay(testID(1), Origin{Ino: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(o.st.file.Fd()), 0, 0, o.size); err != nil {
		t.Fatal(err)
	}
	filler := fillDisk(t, s.files.dir)
	page, failed := randomBytes(2, PageBytes), 0
	for off := int64(0); off < o.size; off += 2 * PageBytes {
		if _, err := o.WriteAt(page, off); err == nil {
			copy(want[off:], page)
		} else if failed++; failed == 1 {
			if err := errors.Join(filler.Close(), os.Remove(filler.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	if failed != 1 {
		t.Fatalf("%d writes failed", failed)
	}
	if err := o.KeepUnpublished("test"); err != nil {
		t.Fatal(err)
	}
	if o, err = s.OpenOverlay(o.st.token); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := o.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("differs at %d: %v", firstDiff(got, want), err)
	}
	if err := o.Drop(); err != nil {
		t.Fatal(err)
	}
}

// TestOverlayChangesThatCannotBeNoted: a write or cut that fails since its note finds no room leaves the file as it
// was.
func TestOverlayChangesThatCannotBeNoted(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	want := randomBytes(1, BlockBytes+100)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	o, err := s.NewOverlay(testID(1), Origin{Ino: 1})
	if err != nil {
		t.Fatal(err)
	}
	copy(want[500_000:], randomBytes(2, 10_000))
	if _, err := o.WriteAt(want[500_000:510_000], 500_000); err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for name, fail := range map[string]func() error{
		"write":                func() error { _, err := o.WriteAt(randomBytes(4, 10_000), 700_000); return err },
		"punch":                func() error { return o.Punch(700_000, 100_000) },
		"write behind the end": func() error { _, err := o.WriteAt(randomBytes(3, 10_000), 2*BlockBytes); return err },
		"cut":                  func() error { return o.Truncate(2 * PageBytes) },
		"made longer":          func() error { return o.Truncate(3 * BlockBytes) },
	} {
		journal := o.st.journal
		o.st.journal = full
		if err := fail(); !errors.Is(err, ErrNoSpace) {
			t.Errorf("%s: %v", name, err)
		}
		o.st.journal, o.st.torn = journal, false
		got := make([]byte, len(want))
		if _, err := o.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) || o.Size() != int64(len(want)) {
			t.Errorf("%s: %d bytes, differs at %d: %v", name, o.Size(), firstDiff(got, want), err)
		}
	}
	if err := o.Truncate(4 * BlockBytes); err != nil {
		t.Fatal(err)
	}
	want = append(want, make([]byte, 4*BlockBytes-len(want))...)
	got := make([]byte, len(want))
	if _, err := o.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("made longer: differs at %d: %v", firstDiff(got, want), err)
	}
	if err := o.Drop(); err != nil {
		t.Fatal(err)
	}
}

// TestBaseOfStagedBytesStays: a version that bytes were staged over is deleted when newer ones come, but not from
// under those bytes.
func TestBaseOfStagedBytesStays(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	want := randomBytes(1, 3*BlockBytes)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	o, err := s.NewOverlay(testID(1), Origin{Ino: 1})
	if err != nil {
		t.Fatal(err)
	}
	copy(want[5000:], "staged")
	if _, err := o.WriteAt([]byte("staged"), 5000); err != nil {
		t.Fatal(err)
	}
	token := o.st.token
	if err := errors.Join(o.KeepUnpublished("why"), s.Delete(testID(1))); err != nil {
		t.Fatal(err)
	}
	for restart := range 3 {
		if _, here := s.State(testID(1)); here != (restart == 1) { // a restart undoes a deletion that waits
			t.Errorf("restart %d: the base is listed: %t", restart, here)
		}
		if o, err = s.OpenOverlay(token); err != nil {
			t.Fatalf("restart %d: %v", restart, err)
		}
		if got, err := io.ReadAll(io.NewSectionReader(o, 0, 1<<40)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("restart %d: differs at %d, %v", restart, firstDiff(got, want), err)
		}
		if restart == 2 {
			break
		}
		if err := errors.Join(o.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, dir, Options{})
		if restart == 1 {
			if err := s.Delete(testID(1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := o.Drop(); err != nil {
		t.Fatal(err)
	}
	if left := append(heldFiles(t, dir), staged(t, dir)...); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
