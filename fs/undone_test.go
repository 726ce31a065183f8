package fs_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// undo writes bytes into a file while it is being published and what was there back after that: by then the others
// may have been sent. begun is called in mid-publish, before the bytes are written.
func undo(t *testing.T, c *fstest.Cluster, a, b string, data []byte, begun func(p replicate.Push)) {
	const at = 150_000
	path := filepath.Join(a, "f")
	f, err := os.Create(path)
	must(t, err)
	must(t, f.Truncate(200_000))
	_, err = f.Write(data)
	must(t, err)
	second, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	want := make([]byte, 200_000)
	copy(want, data)
	var pushes atomic.Int64
	c.Node(1).Before(func(_ context.Context, p replicate.Push) error {
		if pushes.Add(1) > 1 {
			return nil
		}
		begun(p)
		_, err := second.WriteAt([]byte("soon undone"), at)
		return err
	})
	must(t, f.Close())
	_, err = second.WriteAt(want[at:at+len("soon undone")], at)
	must(t, err)
	must(t, second.Close())
	wantBytes(t, path, want)
	wantBytes(t, filepath.Join(b, "f"), want)
}

// TestUndoneInHole: what is written where a publish has found a hole is sent with the block around it.
func TestUndoneInHole(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		undo(t, c, a, b, pattern(1, 1000), func(replicate.Push) {})
	})
}

// TestUndoneUnderAnotherAttempt: a publish has read all and reads it again, as another session may have to.
func TestUndoneUnderAnotherAttempt(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		undo(t, c, a, b, pattern(1, 200_000), func(p replicate.Push) {
			_, err := p.Source.ReadAt(make([]byte, p.Size), 0)
			must(t, err)
		})
	})
}
