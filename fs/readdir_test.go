package fs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
)

// G3: names that go while a program lists their directory are not shown again by the rest of the listing.
func TestG3ListingShowsNoOldNames(t *testing.T) {
	const files, atOnce = 400, 20
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for name, other := range map[string]string{"here": b, "elsewhere": a} {
			must(t, os.Mkdir(filepath.Join(a, name), 0o755))
			for i := range files {
				must(t, os.Symlink("x", filepath.Join(a, name, fmt.Sprintf("f%03d", i))))
			}
			dir := filepath.Join(b, name)
			d, err := os.Open(dir)
			must(t, err)
			defer d.Close()
			_, err = d.Readdir(atOnce) // looks names up, so that the kernel wants to get more of them
			must(t, err)
			last := filepath.Join(dir, fmt.Sprintf("f%03d", files-1))
			must(t, os.Rename(filepath.Join(other, name, filepath.Base(last)), filepath.Join(other, name, "renamed")))
			_, err = os.Stat(dir) // by its path, which would drop all names below when it is old
			for err == nil {
				_, err = d.Readdir(atOnce)
			}
			if _, err := os.Lstat(last); !os.IsNotExist(err) {
				t.Errorf("renamed %s: the old name is there, %v", name, err)
			}
		}
	})
}
