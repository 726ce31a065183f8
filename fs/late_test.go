package fs_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
)

// TestDetachWhileFilesAreOpen: a mount that is taken away leaves no name behind that nobody will ever publish, and no
// change of attributes.
func TestDetachWhileFilesAreOpen(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		write(t, filepath.Join(a, "old"), []byte("old"))
		var open []*os.File
		for _, name := range []string{"new", "old"} {
			f, err := os.OpenFile(filepath.Join(a, name), os.O_CREATE|os.O_WRONLY, 0o644)
			must(t, err)
			_, err = f.WriteString("bytes")
			must(t, err)
			must(t, os.Chmod(filepath.Join(a, name), 0o600))
			open = append(open, f)
		}
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		must(t, c.Node(1).Mounted().Detach(ctx))
		for _, f := range open {
			f.Close()
		}
		released(t, c.Node(1), 2)
		f, err := os.OpenFile(filepath.Join(b, "new"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			t.Errorf("a name that was never published: %v", err)
		} else {
			must(t, f.Close())
		}
		wantMode(t, filepath.Join(b, "old"), 0o600)
		wantBytes(t, filepath.Join(b, "old"), []byte("old"))
	})
}
