package fs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

const cutPatience = 10 * time.Second

// cuts take bytes of a file away, and give what is left of them.
var cuts = map[string]func(t *testing.T, path string, f *os.File, data []byte) []byte{
	"ByName": func(t *testing.T, path string, _ *os.File, data []byte) []byte {
		must(t, os.Truncate(path, 5000))
		return data[:5000]
	},
	"ByDescriptor": func(t *testing.T, _ string, f *os.File, data []byte) []byte {
		must(t, f.Truncate(5000))
		return data[:5000]
	},
	"ByOpen": func(t *testing.T, path string, _ *os.File, _ []byte) []byte {
		write(t, path, []byte("next"))
		return []byte("next")
	},
	"ByPunch": func(t *testing.T, _ string, f *os.File, data []byte) []byte {
		must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<20, 1<<20))
		left := bytes.Clone(data)
		clear(left[1<<20 : 2<<20])
		return left
	},
}

// TestG1CutInMidSend: bytes of a closed version go away before any of them was read. It is published whole, and then
// what is left.
func TestG1CutInMidSend(t *testing.T) {
	for name, cut := range cuts {
		for _, size := range []int{3<<20 + 1, 20 << 20} { // the latter is written over in place, in an overlay
			t.Run(fmt.Sprint(name, size), func(t *testing.T) {
				eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) { cutInMidSend(t, c, a, b, size, cut) })
			})
		}
	}
}

func cutInMidSend(
	t *testing.T, c *fstest.Cluster, a, b string, size int, cut func(*testing.T, string, *os.File, []byte) []byte,
) {
	path, other := filepath.Join(a, "f"), filepath.Join(b, "f")
	data := pattern(2, size)
	if size > 16<<20 {
		write(t, path, pattern(1, size))
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	must(t, err)
	_, err = f.Write(data)
	must(t, err)
	started := make(chan struct{})
	var pushes atomic.Int64
	c.Node(1).Before(func(_ context.Context, p replicate.Push) error {
		if pushes.Add(1) > 1 {
			// empty: by O_TRUNC, published by itself
			if got, err := os.ReadFile(other); err != nil || !bytes.Equal(got, data) && len(got) != 0 {
				t.Errorf("the other node is shown %d bytes, %v; first difference at %d", len(got), err, firstDiff(got, data))
			}
			return nil
		}
		close(started)
		select {
		case <-p.Urgent:
		case <-time.After(cutPatience):
			t.Error("not told that bytes are to go away")
		}
		return nil
	})
	second, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	closed := make(chan error, 1)
	go func() { closed <- f.Close() }()
	<-started
	left := cut(t, path, second, data)
	must(t, <-closed)
	must(t, second.Close())
	wantBytes(t, other, left)
	wantBytes(t, path, left)
	if got := pushes.Load(); got < 2 {
		t.Errorf("%d pushes", got)
	}
}

// TestCutUnderAnotherAttempt: a publish has read all bytes, is to read them again, and they are gone. What was
// announced is shown to nobody, and what is left is published instead.
func TestCutUnderAnotherAttempt(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		f, err := os.Create(path)
		must(t, err)
		data := pattern(1, 2<<20)
		_, err = f.Write(data)
		must(t, err)
		second, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		started, cut := make(chan struct{}), make(chan struct{})
		var pushes atomic.Int64
		failed := make(chan error, 1)
		c.Node(1).Before(func(_ context.Context, p replicate.Push) error {
			if pushes.Add(1) > 1 {
				return nil
			}
			p.Taken()
			close(started)
			select {
			case <-cut:
			case <-time.After(cutPatience):
				t.Error("not cut")
			}
			_, err := p.Source.ReadAt(make([]byte, 10), 0)
			failed <- err
			return err
		})
		closed := make(chan error, 1)
		go func() { closed <- f.Close() }()
		<-started
		must(t, second.Truncate(10_000))
		close(cut)
		must(t, <-closed)
		if err := <-failed; !errors.Is(err, replicate.ErrCut) {
			t.Errorf("read of what was cut: %v", err)
		}
		wantBytes(t, filepath.Join(b, "f"), data[:10_000])
		must(t, second.Close())
		if pushes := c.Node(1).Pushes(); len(pushes) != 2 || pushes[1].Size != 10_000 {
			t.Errorf("%d pushes", len(pushes))
		}
	})
}
