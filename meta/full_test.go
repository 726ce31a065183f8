package meta_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// smallDisks mounts file systems of 400 MiB, where the test may.
var smallDisks = map[string]func(t *testing.T, dir string) error{
	"tmpfs": func(t *testing.T, dir string) error {
		return unix.Mount("none", dir, "tmpfs", 0, "size=400m")
	},
	"ext4": func(t *testing.T, dir string) error {
		img := filepath.Join(t.TempDir(), "img")
		if err := os.WriteFile(img, nil, 0o600); err != nil {
			return err
		}
		if err := os.Truncate(img, 400<<20); err != nil {
			return err
		}
		if out, err := exec.Command("mke2fs", "-q", "-t", "ext4", "-m", "0", img).CombinedOutput(); err != nil {
			return fmt.Errorf("mke2fs: %w: %s", err, out)
		}
		if out, err := exec.Command("mount", "-o", "loop", img, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("mount: %w: %s", err, out)
		}
		return nil
	},
}

// Another program fills the disk: changes are announced as unwise, then entries refused with nothing done, and the
// process lives. When there is space again, everything goes on where it was.
func TestFullDisk(t *testing.T) {
	for name, mount := range smallDisks {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := mount(t, dir); err != nil {
				t.Skipf("no small disk: %v", err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			})
			fullDisk(t, filepath.Join(dir, "meta"), filepath.Join(dir, "hog"))
		})
	}
}

func fullDisk(t *testing.T, dir, hog string) {
	open := func() (*meta.DB, error) { return meta.Open(dir, meta.Options{ReserveBytes: 144 << 20}) }
	db, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { db.Close() }()
	twin := meta.OpenMemory()
	rec := newRecorder(twin)
	c := metatest.Over(t, rec, 3)
	rnd := rand.New(rand.NewPCG(1, 1))
	churn(c, rnd, 2000)
	rec.replay(t, db, twin.Index())
	wantSpace(t, db, "an empty disk", true, true)
	fill(t, hog)
	wantSpace(t, db, "a full disk", false, true)
	refused := applyUntilFull(t, db, rec, func() { churn(c, rnd, 2000); fill(t, hog) })
	wantSpace(t, db, "a full disk without a reserve", false, false)
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	rec.replay(t, db, twin.Index())
	wantSpace(t, db, "a disk with space again", true, true)
	sameState(t, twin, db)
	t.Logf("applied %d entries, refused from %d on the full disk", twin.Index(), refused)

	// Full while it is closed: the opening says so and hurts nothing.
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	fill(t, hog)
	if again, err := open(); !errors.Is(err, meta.ErrNoSpace) {
		t.Fatalf("opened on a full disk: %v %v", again, err)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	if db, err = open(); err != nil {
		t.Fatal(err)
	}
	sameState(t, twin, db)
}

// wantSpace fails the test unless names may be made, and be removed, as they should.
func wantSpace(t *testing.T, db *meta.DB, where string, makes, removes bool) {
	t.Helper()
	if db.SpaceLow() == makes || db.SpaceFor(&meta.Create{}) != makes || db.SpaceFor(&meta.Rename{}) != makes {
		t.Fatalf("%s: low %v, names are made: %v, want %v", where, db.SpaceLow(), db.SpaceFor(&meta.Create{}), makes)
	}
	if db.SpaceFor(&meta.Unlink{}) != removes || db.SpaceFor(&meta.Rmdir{}) != removes {
		t.Fatalf("%s: names are removed: %v, want %v", where, db.SpaceFor(&meta.Unlink{}), removes)
	}
}

// applyUntilFull goes on with the disk full until an entry is refused, and returns its index.
func applyUntilFull(t *testing.T, db *meta.DB, rec *recorder, more func()) uint64 {
	t.Helper()
	for range 100 {
		for _, e := range rec.entries {
			if e.index <= db.Index() {
				continue
			}
			_, _, err := db.Apply(e.index, e.now, e.data)
			if errors.Is(err, meta.ErrNoSpace) {
				if db.Index() >= e.index {
					t.Fatal("refused, but applied")
				}
				if _, err := db.Sync(); err != nil {
					t.Fatalf("sync on the full disk: %v", err)
				}
				return e.index
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		more()
	}
	t.Fatal("never refused")
	return 0
}

// fill takes all the space there is.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := int64(16 << 20); size >= 4096; {
		end, err := f.Seek(0, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Fallocate(int(f.Fd()), 0, end, size); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
