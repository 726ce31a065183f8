package meta_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
)

// A state whose marker is gone or empty, or that nothing names any more, is damaged: it is rebuilt like any other
// damage. It is no state of a node that has applied nothing.
func TestStateWithoutItsMarkerIsDamaged(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"SYNCED is empty":  func(path string) error { return os.Truncate(filepath.Join(path, "state-1", "SYNCED"), 0) },
		"SYNCED is gone":   func(path string) error { return os.Remove(filepath.Join(path, "state-1", "SYNCED")) },
		"CURRENT is empty": func(path string) error { return os.Truncate(filepath.Join(path, "CURRENT"), 0) },
		"CURRENT is no name": func(path string) error {
			return os.WriteFile(filepath.Join(path, "CURRENT"), []byte("stave-1\n"), 0o600)
		},
		"CURRENT names a state that is not there": func(path string) error {
			return os.WriteFile(filepath.Join(path, "CURRENT"), []byte("state-3\n"), 0o600)
		},
		"CURRENT is gone": func(path string) error { return os.Remove(filepath.Join(path, "CURRENT")) },
	} {
		dir, twin := filled(t)
		if err := harm(dir); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the first look changes nothing
			if db, err := meta.Open(dir, small()); !errors.Is(err, meta.ErrDamaged) {
				t.Fatalf("%s: %v %v", name, db, err)
			}
		}
		db, _, err := meta.OpenEmpty(dir, small())
		if err != nil {
			t.Fatal(err)
		}
		whole, _, err := twin.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Restore(whole), whole.Close(), db.Close()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		db = openSmall(t, dir)
		if db.Index() != twin.Index() {
			t.Errorf("%s: rebuilt at %d, want %d", name, db.Index(), twin.Index())
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
