package fs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
)

// A closed file that is looked after for stores through mappings opens at once, for reading and for writing.
func TestOpenWhileMappingsAreLookedFor(t *testing.T) {
	rounds := 600
	if testing.Short() {
		rounds = 60
	}
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		defer keepBusy(t)()
		deadline := time.Now().Add(20 * time.Second)
		for i := 0; i < rounds && time.Now().Before(deadline); i++ {
			path := filepath.Join(mnt, fmt.Sprint("f", i%10))
			f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
			must(t, err)
			_, err = f.WriteAt(fmt.Appendf(nil, "%d", i), 0)
			must(t, err)
			must(t, f.Close())
			for range 20 {
				fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
				must(t, unix.Close(fd))
			}
		}
	})
}
