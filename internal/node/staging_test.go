package node

import (
	"log/slog"
	"os/exec"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

func openStaging(t testing.TB, dir string) (*staging, fs.Staging) {
	t.Helper()
	store, err := content.Open(dir, content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return &staging{store: store, log: slog.New(slog.DiscardHandler)}, fs.NewStaging(store, func() meta.Lease {
		return meta.Lease{Node: 1}
	})
}

// afterCrash is a copy of a store that is open, as the next daemon finds it.
func afterCrash(t testing.TB, dir string) string {
	t.Helper()
	left := t.TempDir()
	if out, err := exec.Command("cp", "-a", dir+"/.", left).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v %s", err, out)
	}
	return left
}

// What a daemon that died left of files without a name goes at the next start: nobody can ever ask for it. Written
// bytes of others stay.
func TestSweepOfUnnamedFiles(t *testing.T) {
	dir := t.TempDir()
	_, files := openStaging(t, dir)
	for ino, text := range map[meta.Ino]string{1<<63 + 1: "no name", 1<<63 + 2: "", 7: "named", 8: ""} {
		st, err := files.Create(fs.StageInfo{Ino: ino, Parent: 1, Path: "/f"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := st.Drop(); err != nil {
				t.Error(err)
			}
		}()
		if _, err := st.WriteAt([]byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	s, _ := openStaging(t, afterCrash(t, dir))
	if err := s.sweep(); err != nil {
		t.Fatal(err)
	}
	if list := s.unused(); len(list) != 1 || list[0].Origin.Ino != 7 {
		t.Errorf("left: %+v", list)
	}
}
