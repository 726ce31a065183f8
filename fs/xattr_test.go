package fs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/meta"
	"golang.org/x/sys/unix"
)

// More extended attributes than a file can have are refused when they are set, and not with its bytes at the close.
func TestTooManyXattrsOfAnOpenFile(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		f, err := os.Create(filepath.Join(a, "f"))
		must(t, err)
		_, err = f.WriteString("bytes")
		must(t, err)
		set := func(i int) error { return unix.Fsetxattr(int(f.Fd()), fmt.Sprint("user.", i), []byte("value"), 0) }
		for i := range meta.XattrsMax {
			if i == 10 {
				must(t, f.Sync()) // these are in the log
				_, err = f.WriteString(" and more")
				must(t, err)
			}
			must(t, set(i))
		}
		if err := set(meta.XattrsMax); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("one more: %v", err)
		}
		must(t, set(3))
		must(t, unix.Fremovexattr(int(f.Fd()), "user.4"))
		must(t, f.Sync())
		must(t, set(meta.XattrsMax))
		must(t, f.Close())
		wantBytes(t, filepath.Join(b, "f"), []byte("bytes and more"))
	})
}
