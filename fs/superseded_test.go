package fs_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/meta"
)

// TestG3SupersededBeforeCloseReturns: another node publishes the file again while a close still waits until all nodes
// show its own version. A program that opens the file later sees the newer version, also while a reader from before
// keeps the older.
func TestG3SupersededBeforeCloseReturns(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path, other := filepath.Join(a, "f"), filepath.Join(b, "f")
		write(t, path, []byte("first"))
		w, err := os.OpenFile(path, os.O_WRONLY, 0) // a program that may map it for writing is watched while it is read
		must(t, err)
		r, err := os.Open(path)
		must(t, err)
		defer r.Close()
		older, newer := []byte("from the first node"), []byte("from the second")
		_, err = w.WriteAt(older, 0)
		must(t, err)
		applied, wait := make(chan struct{}), make(chan struct{})
		var once atomic.Bool
		c.Node(1).Late(func(op meta.Op) <-chan struct{} {
			if _, ok := op.(*meta.Publish); !ok || once.Swap(true) {
				return nil
			}
			close(applied)
			return wait
		})
		closed := make(chan error, 1)
		go func() { closed <- w.Close() }()
		<-applied
		write(t, other, newer)
		close(wait)
		must(t, <-closed)
		eventually(t, func() error {
			got, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got, newer) {
				return fmt.Errorf("opened again: %q %v, want %q", got, err, newer)
			}
			return nil
		})
		got := make([]byte, len(older))
		if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, older) {
			t.Errorf("open since before: %q %v", got, err)
		}
	})
}
