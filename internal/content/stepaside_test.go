package content

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestStepAside: the file of a content becomes staged, and all who read the content read the copy, whether they opened
// it before, meanwhile or later, and whatever is written to the file.
func TestStepAside(t *testing.T) {
	for _, clone := range []func(dst, src *os.File) error{nil, shareBytes} {
		dir := t.TempDir()
		s := openStore(t, dir, Options{Clone: clone})
		want := randomBytes(1, 5<<20+77)
		put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
		changed := bytes.Clone(want)
		copy(changed[1<<20:], "another")
		put(t, s, testID(2), Shape{Size: int64(len(want)), Base: testID(1), BaseSize: int64(len(want)),
			Extents: []Extent{{Off: 1 << 20, Len: 7}}}, changed)
		own, over := mustOpen(t, s, testID(1)), mustOpen(t, s, testID(2))
		program := dupOf(t, own.File())
		stop := readAlways(t, s, want, changed)

		st, err := s.StepAside(own, Origin{Ino: 7, Name: "f"})
		if err != nil {
			t.Fatal(err)
		}
		if got := allOf(t, st.File()); !bytes.Equal(got, want) {
			t.Error("the staged file does not begin as the content")
		}
		junk := randomBytes(9, int64(len(want)))
		for range 20 {
			if _, err := st.File().WriteAt(junk, 0); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		if got := allOf(t, program); !bytes.Equal(got, junk) {
			t.Error("who had the file open before does not read what is written")
		}
		for r, want := range map[*Reader][]byte{own: want, over: changed} {
			if got := allOf(t, r); !bytes.Equal(got, want) {
				t.Errorf("%v reads other bytes", r.ID())
			}
		}
		if got := allOf(t, own.File()); !bytes.Equal(got, want) {
			t.Error("File is not the content's")
		}
		wantContent(t, s, testID(1), want)
		if damage, err := s.Check(t.Context(), testID(1)); damage != nil || err != nil {
			t.Errorf("check: %v, %v", damage, err)
		}
		list, err := s.Stagings()
		if err != nil || len(list) != 1 || list[0].Origin.Ino != 7 || !list[0].Open {
			t.Errorf("staged: %+v, %v", list, err)
		}
		if err := errors.Join(own.Close(), over.Close(), st.Drop(), program.Close()); err != nil {
			t.Fatal(err)
		}
		if len(s.files.bodies) != 0 {
			t.Errorf("still open: %v", s.files.bodies)
		}
		wantContent(t, s, testID(2), changed)
	}
}

// readAlways reads both contents until it is stopped, by Readers that stay open and by new ones.
func readAlways(t *testing.T, s *Store, first, second []byte) (stop func()) {
	over := make(chan struct{})
	var running sync.WaitGroup
	for i := range 4 {
		id, want := testID(1), first
		if i%2 == 1 {
			id, want = testID(2), second
		}
		running.Go(func() {
			for n := 0; ; n++ {
				r, err := s.Open(id)
				if err != nil {
					t.Error(err)
					return
				}
				for range 3 {
					if got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size())); err != nil || !bytes.Equal(got, want) {
						t.Errorf("read %d of %v: %v", n, id, err)
					}
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	return func() { close(over); running.Wait() }
}

// TestStepAsideIsRefused: nothing is changed where it can't be done.
func TestStepAsideIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{Clone: func(_, _ *os.File) error { return errors.ErrUnsupported }})
	want := randomBytes(1, 1<<20+5)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	put(t, s, testID(2), Shape{Size: 10}, want[:10])
	put(t, s, testID(3), Shape{Size: StepAsideBytesMax + 1}, make([]byte, StepAsideBytesMax+1))
	small, large := mustOpen(t, s, testID(2)), mustOpen(t, s, testID(3))
	refused := func(r *Reader, wanted error) {
		t.Helper()
		if st, err := s.StepAside(r, Origin{Ino: 1}); !errors.Is(err, wanted) {
			t.Errorf("%v, %v, want %v", st, err, wanted)
		}
	}
	refused(small, ErrShape)
	refused(large, ErrTooLarge)
	one, two := mustOpen(t, s, testID(1)), mustOpen(t, s, testID(1))
	two.File()
	refused(one, ErrBusy)
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.index.startFold(testID(1)); err != nil {
		t.Fatal(err)
	}
	refused(one, ErrBusy)
	s.index.endFold(testID(1))
	s.space.reserve = 1 << 60
	refused(one, ErrNoSpace)
	s.space.reserve = 0
	if err := s.Delete(testID(1)); err != nil {
		t.Fatal(err)
	}
	refused(one, ErrNotFound)
	if got := allOf(t, one); !bytes.Equal(got, want) {
		t.Error("other bytes")
	}
	if err := errors.Join(one.Close(), small.Close(), large.Close()); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Stagings(); len(list) != 0 || err != nil {
		t.Errorf("staged: %+v, %v", list, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "held/*/*.aside")); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestDamagedContentDoesNotStepAside: neither the copy nor the staged file is of damaged bytes.
func TestDamagedContentDoesNotStepAside(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{Clone: shareBytes})
	want := randomBytes(1, 3<<20)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rotAt(t, dir, 1<<20+9)
	s = openStore(t, dir, Options{Clone: shareBytes})
	r := mustOpen(t, s, testID(1))
	defer r.Close()
	if st, err := s.StepAside(r, Origin{Ino: 1}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v, %v", st, err)
	}
}

// TestOpenAfterStepAsideWasCutShort: a staged name of a content's file, and a copy that is not finished, go.
// Unpublished bytes stay, whoever else has a link to them.
func TestOpenAfterStepAsideWasCutShort(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	want := randomBytes(1, 1<<20+5)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	data, aside := s.files.streamPath(testID(1), ID{}), s.files.asidePath(testID(1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	staged, unpublished := s.files.stagePath(77, ".file"), s.files.stagePath(78, ".file")
	if err := errors.Join(os.Link(data, staged), os.WriteFile(aside, want[:9], 0o600),
		os.WriteFile(unpublished, want[:99], 0o600), os.Link(unpublished, filepath.Join(t.TempDir(), "copy"))); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	wantContent(t, s, testID(1), want)
	for _, path := range []string{staged, aside} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	if got, err := os.ReadFile(unpublished); !bytes.Equal(got, want[:99]) {
		t.Errorf("unpublished bytes of which somebody has made a link: %d bytes, %v", len(got), err)
	}
}

func mustOpen(t *testing.T, s *Store, id ID) *Reader {
	t.Helper()
	r, err := s.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func allOf(t *testing.T, r io.ReaderAt) []byte {
	t.Helper()
	got, err := io.ReadAll(io.NewSectionReader(r, 0, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// dupOf is another descriptor of an open file, as the kernel keeps one for passthrough.
func dupOf(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprint("dup of ", f.Name()))
}

// TestFileIsGivenAwayDuringStepAside: a file that is given away meanwhile is the content's, before and after.
func TestFileIsGivenAwayDuringStepAside(t *testing.T) {
	given := make(chan *os.File, 1)
	var other *Reader
	s := openStore(t, t.TempDir(), Options{Step: func(step, path string) error {
		if step == "rename" && strings.Contains(path, suffixAside) {
			go func() { given <- dupOf(t, other.File()) }()
			select {
			case f := <-given: // it could come in between
				given <- f
			case <-time.After(20 * time.Millisecond):
			}
		}
		return nil
	}})
	want := randomBytes(1, 1<<20+5)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	own := mustOpen(t, s, testID(1))
	defer own.Close()
	other = mustOpen(t, s, testID(1))
	defer other.Close()
	st, err := s.StepAside(own, Origin{Ino: 1})
	program := <-given
	defer program.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer st.Drop()
	if _, err := st.File().WriteAt([]byte("not committed"), 0); err != nil {
		t.Fatal(err)
	}
	if got := allOf(t, program); !bytes.Equal(got, want) {
		t.Errorf("a program reads %q of a committed content", got[:13])
	}
}

// TestDamageOfWhatSteppedAside: damage that is found later is known to be in the staged file too.
func TestDamageOfWhatSteppedAside(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{Clone: shareBytes})
	want := randomBytes(1, 3<<20)
	put(t, s, testID(1), Shape{Size: 3 << 20}, want)
	r := mustOpen(t, s, testID(1))
	defer r.Close()
	rotAt(t, dir, 2*BlockBytes+5) // and nobody has looked yet
	s.opener.renewMark(r.body)    // the disk did it: the mark does not show it
	st, err := s.StepAside(r, Origin{Ino: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Drop()
	if damage, err := s.Check(t.Context(), testID(1)); err != nil || damage == nil {
		t.Fatalf("damage: %v, %v", damage, err)
	}
	if err := s.Mend(t.Context(), testID(1), 2, want[2*BlockBytes:]); err != nil {
		t.Fatal(err)
	}
	if err := st.Sound(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the staged file has the damage of the content, and is said to be sound: %v", err)
	}
}
