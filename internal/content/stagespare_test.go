package content

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// A recycled file comes back empty, with a new description and new times, and is not listed meanwhile.
func TestStagingRecycled(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	first, err := s.NewStaging(Origin{Ino: 1, Name: "first"})
	if err != nil {
		t.Fatal(err)
	}
	if err := stage(first, "the first bytes", time.Unix(1000, 0)); err != nil {
		t.Fatal(err)
	}
	token := first.token
	if err := first.Recycle(); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Stagings(); err != nil || len(list) != 0 {
		t.Fatalf("an empty file is listed: %v %v", list, err)
	}
	name := strings.Repeat("n", nameBytesMax)
	second, err := s.NewStaging(Origin{Ino: 2, Parent: 1<<40 + 1, Node: 7, Incarnation: 9, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	info, err := second.File().Stat()
	if err != nil || second.token != token || info.Size() != 0 || time.Since(info.ModTime()) > time.Minute {
		t.Fatalf("token %x, was %x; %+v %v", second.token, token, info, err)
	}
	if err := stage(second, "others", time.Now()); err != nil {
		t.Fatal(err)
	}
	list, err := s.Stagings()
	if err != nil || len(list) != 1 || list[0].Origin != second.Origin() || list[0].Size != 6 || !list[0].Open {
		t.Fatalf("listed: %+v %v", list, err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	if list, err := s.Stagings(); err != nil || len(list) != 1 || list[0].Origin != second.Origin() || list[0].Damaged {
		t.Fatalf("after a restart: %+v %v", list, err)
	}
}

func stage(st *Staging, text string, mtime time.Time) error {
	if _, err := st.File().WriteString(text); err != nil {
		return err
	}
	return os.Chtimes(st.File().Name(), mtime, mtime)
}

// Spare files are bounded, go with the store, and those of a crash are removed by the next one.
func TestSparesGo(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	var open []*Staging
	for i := range uint64(2 * sparesMax) {
		st, err := s.NewStaging(Origin{Ino: i})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	for _, st := range open {
		if err := st.Recycle(); err != nil {
			t.Fatal(err)
		}
	}
	if left := staged(t, dir); len(left) != sparesMax {
		t.Fatalf("%d files kept, want %d", len(left), sparesMax)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left := staged(t, dir); len(left) != 0 {
		t.Fatalf("left by Close: %v", left)
	}
	if err := os.WriteFile(filepath.Join(dir, "staging", "0000000000000099.file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	if left := staged(t, dir); len(left) != 0 {
		t.Fatalf("left by a crash: %v", left)
	}
	if st, err := s.NewStaging(Origin{}); err != nil || st.token != 0x9a {
		t.Fatalf("token %x %v", st.token, err)
	} else if err := st.Drop(); err != nil {
		t.Fatal(err)
	}
}

func staged(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(filepath.Join(dir, "staging"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Where the file system keeps no attributes a second file does, and nothing is used again.
func TestStagingWithoutTags(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	s.staging.setWithoutTags()
	st, err := s.NewStaging(Origin{Ino: 5, Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if names := staged(t, dir); !slices.Equal(names, []string{"0000000000000001.file", "0000000000000001.stage"}) {
		t.Fatal(names)
	}
	if list, err := s.Stagings(); err != nil || len(list) != 1 || list[0].Origin != st.Origin() {
		t.Fatalf("listed: %+v %v", list, err)
	}
	if err := st.Recycle(); err != nil {
		t.Fatal(err)
	}
	if names := staged(t, dir); len(names) != 0 {
		t.Fatal(names)
	}
}

func FuzzDecodeTag(f *testing.F) {
	f.Add(appendTag(nil, &stageHead{origin: Origin{Ino: 1 << 41, Parent: 1, Node: 3, Incarnation: 2, Name: "name"},
		created: time.Unix(1, 2)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		codertest.Again(t, b, func(b []byte) ([]byte, error) {
			h, err := decodeTag(b)
			return appendTag(nil, &h), err
		})
	})
}

// TestKeepOnAFullDisk: staged bytes whose reason finds no room any more are listed all the same, and can be taken up
// again.
func TestKeepOnAFullDisk(t *testing.T) {
	s := openStore(t, smallDisk(t), Options{})
	st, err := s.NewStaging(Origin{Ino: 7, Name: "f"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.File().WriteString("bytes"); err != nil {
		t.Fatal(err)
	}
	filler := fillDisk(t, s.files.dir)
	if err := st.KeepUnpublished("why"); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("keep on a full disk: %v", err)
	}
	if err := errors.Join(filler.Close(), os.Remove(filler.Name())); err != nil {
		t.Fatal(err)
	}
	list, err := s.Stagings()
	if err != nil || len(list) != 1 || list[0].Damaged || list[0].Origin.Ino != 7 {
		t.Fatalf("staged: %+v, %v", list, err)
	}
	if st, err = s.OpenStaging(st.token); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := st.File().ReadAt(got, 0); err != nil || string(got) != "bytes" {
		t.Errorf("staged bytes: %q, %v", got, err)
	}
	if err := st.Drop(); err != nil {
		t.Fatal(err)
	}
}

// TestSetOrigin: staged bytes that belong to something else now are listed so, also by the next daemon and when they
// are kept.
func TestSetOrigin(t *testing.T) {
	for _, tags := range []bool{true, false} {
		for _, keep := range []bool{true, false} {
			dir := t.TempDir()
			s := openStore(t, dir, Options{})
			if !tags {
				s.staging.setWithoutTags()
			}
			st, err := s.NewStaging(Origin{Ino: 1 << 63, Parent: 1})
			if err != nil {
				t.Fatal(err)
			}
			want := Origin{Ino: 7, Parent: 2, Name: "named", Node: 3, Incarnation: 4}
			if err := errors.Join(stage(st, "bytes", time.Now()), st.SetOrigin(want)); err != nil {
				t.Fatal(err)
			}
			if keep {
				err = st.KeepUnpublished("why")
			} else {
				err = st.Close()
			}
			if err := errors.Join(err, s.Close()); err != nil {
				t.Fatal(err)
			}
			if err := st.SetOrigin(Origin{}); !errors.Is(err, ErrClosed) {
				t.Errorf("after the end: %v", err)
			}
			s = openStore(t, dir, Options{})
			list, err := s.Stagings()
			if err != nil || len(list) != 1 || list[0].Origin != want || (list[0].Reason == "why") != keep || list[0].Damaged {
				t.Fatalf("tags %t, kept %t: %+v, %v", tags, keep, list, err)
			}
			if st, err = s.OpenStaging(list[0].Token); err != nil || st.Origin() != want {
				t.Fatalf("tags %t, kept %t: opened again: %+v, %v", tags, keep, st.Origin(), err)
			}
			if err := st.Drop(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
