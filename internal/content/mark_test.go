package content

import (
	"bytes"
	"errors"
	"os"
	"testing"
)

// checkedAt reports whether a content, opened now, is to be read without the daemon.
func checkedAt(t *testing.T, s *Store, id ID) bool {
	t.Helper()
	r := mustOpen(t, s, id)
	defer r.Close()
	return r.Checked()
}

// TestChangedFileIsCheckedAgain: whatever changes the data file of a checked content, the next open does not take it
// for checked, and a check settles it.
func TestChangedFileIsCheckedAgain(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	want := randomBytes(1, 3*BlockBytes+1)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	before := mustOpen(t, s, testID(1))
	defer before.Close()
	path := before.File().Name()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	flip := func() error { rotAt(t, dir, 2*BlockBytes+5); return nil }
	for _, change := range []struct {
		what    string
		do      func() error
		damages bool
	}{
		{"bytes", flip, true},
		{"bytes, with the old mtime", func() error {
			return errors.Join(flip(), os.Chtimes(path, st.ModTime(), st.ModTime()))
		}, true},
		{"another file", func() error {
			return errors.Join(os.WriteFile(path+"~", want, 0o600), os.Rename(path+"~", path))
		}, false},
		{"mode", func() error { return os.Chmod(path, 0o400) }, false},
		{"second name", func() error { return os.Link(path, dir+"/kept") }, false},
	} {
		if !checkedAt(t, s, testID(1)) || !checkedAt(t, s, testID(1)) {
			t.Fatalf("%s: not checked before", change.what)
		}
		if err := change.do(); err != nil {
			t.Fatal(err)
		}
		if checkedAt(t, s, testID(1)) {
			t.Errorf("%s: changed, and taken for checked", change.what)
		}
		damage, err := s.Check(t.Context(), testID(1))
		if err != nil || change.damages != (damage != nil) {
			t.Fatalf("%s: %v, %v", change.what, damage, err)
		}
		if !change.damages {
			continue
		}
		if err := s.Mend(t.Context(), testID(1), 2, want[2*BlockBytes:3*BlockBytes]); err != nil {
			t.Fatal(err)
		}
		if damage, err := s.Check(t.Context(), testID(1)); damage != nil || err != nil {
			t.Fatalf("%s: mended: %v, %v", change.what, damage, err)
		}
	}
	if !checkedAt(t, s, testID(1)) {
		t.Error("not checked at the end")
	}
}

// TestOwnChangesKeepTheMark: what the store itself does to the file of a checked content is no change.
func TestOwnChangesKeepTheMark(t *testing.T) {
	for _, clone := range []func(dst, src *os.File) error{nil, shareBytes} {
		s := openStore(t, t.TempDir(), Options{Clone: clone})
		data := chain(t, s, 1)
		r := mustOpen(t, s, testID(1))
		st, err := s.StepAside(r, Origin{Ino: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.File().WriteAt([]byte("not committed"), 0); err != nil {
			t.Fatal(err)
		}
		other := mustOpen(t, s, testID(1))
		if other.File(); !other.Checked() {
			t.Error("a copy that was put in its place is not checked")
		}
		if _, err := s.StepAside(r, Origin{Ino: 2}); !errors.Is(err, ErrBusy) {
			t.Fatalf("step aside beside another: %v", err)
		}
		if !checkedAt(t, s, testID(1)) {
			t.Error("a file that could not be given away is not checked")
		}
		if err := errors.Join(other.Close(), r.Close(), st.Drop(), s.Delete(testID(1))); err != nil {
			t.Fatal(err)
		}
		if n, err := s.FoldIdle(t.Context()); n != 1 || err != nil {
			t.Fatalf("folded %d, %v", n, err)
		}
		if !checkedAt(t, s, testID(2)) {
			t.Error("a content that was folded into its base's file is not checked")
		}
		wantContent(t, s, testID(2), data)
	}
}

// TestFoldIntoAChangedFile: a content that is folded into the file of its base counts as checked only if the base does.
func TestFoldIntoAChangedFile(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	data := chain(t, s, 1)
	rotAt(t, dir, 2*BlockBytes+5) // nobody opens the base meanwhile
	if err := s.Delete(testID(1)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.FoldIdle(t.Context()); n != 1 || err != nil {
		t.Fatalf("folded %d, %v", n, err)
	}
	r := mustOpen(t, s, testID(2))
	defer r.Close()
	if got := allOf(t, r.File()); r.Checked() && !bytes.Equal(got, data) {
		t.Error("wrong bytes are taken for checked")
	}
}

// TestScrubOfADeletedBase: a scrub of a delta checks what it needs of a base that was deleted, and mends it there.
func TestScrubOfADeletedBase(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	data := chain(t, s, 1)
	if err := s.Delete(testID(1)); err != nil {
		t.Fatal(err)
	}
	rotAt(t, dir, 2*BlockBytes+5)
	damage, err := s.Check(t.Context(), testID(2))
	if err != nil || damage == nil || len(damage.Blocks) != 1 || damage.Blocks[0] != 2 {
		t.Fatalf("%+v, %v", damage, err)
	}
	if err := s.Mend(t.Context(), testID(2), 2, data[2*BlockBytes:]); err != nil {
		t.Fatal(err)
	}
	if damage, err := s.Check(t.Context(), testID(2)); err != nil || damage != nil {
		t.Fatalf("mended: %+v, %v", damage, err)
	}
	wantContent(t, s, testID(2), data)
}

// BenchmarkOpen is an open of a content with a data file, and its close.
func BenchmarkOpen(b *testing.B) {
	s := openStore(b, b.TempDir(), Options{})
	want := randomBytes(1, 100_000)
	put(b, s, testID(1), Shape{Size: int64(len(want))}, want)
	for b.Loop() {
		r, err := s.Open(testID(1))
		if err != nil {
			b.Fatal(err)
		}
		_ = r.Close()
	}
}
