package fs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// staging descriptors of this process
func stagedOpen() (list []string) {
	ents, _ := os.ReadDir("/proc/self/fd")
	for _, e := range ents {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if strings.Contains(to, "/staging/") {
			list = append(list, to)
		}
	}
	return list
}

func TestRevEndsAfterTakeOver(t *testing.T) {
	for _, readerFirst := range []bool{false, true} {
		eachPair(t, func(t *testing.T, _ *fstest.Cluster, a, b string) {
			path := filepath.Join(a, "f")
			old := pattern(3, 1<<20+3)
			write(t, path, old)
			var r *os.File
			if readerFirst {
				r = openFor(t, path, os.O_RDONLY)
				_ = looks(r)
			}
			w := openFor(t, path, os.O_RDWR)
			_, err := w.WriteAt([]byte("here"), 0)
			must(t, err)
			must(t, w.Close())
			if r != nil {
				must(t, r.Close())
			}
			time.Sleep(4 * time.Second)
			if l := stagedOpen(); len(l) != 0 {
				t.Errorf("readerFirst=%t: still staged 4s after the last close: %v", readerFirst, l)
			}
			write(t, filepath.Join(b, "f"), []byte("a version of another node"))
			wantBytes(t, path, []byte("a version of another node"))
		})
	}
}

type failing struct{ fs.Staging }
type failingStaged struct{ fs.Staged }

func (f failing) TakeOver(info fs.StageInfo, base replicate.ContentReader) (fs.Staged, error) {
	st, err := f.Staging.TakeOver(info, base)
	if err != nil {
		return nil, err
	}
	return failingStaged{st}, nil
}
func (f failingStaged) SetTimes(a, m *int64) error { return errors.New("injected: no times") }
func (f failingStaged) Recycle() error             { return f.Staged.(interface{ Recycle() error }).Recycle() }

func TestRevFailureAfterTakeOver(t *testing.T) {
	c := fstest.New(t, 1)
	a := c.Node(1).Mount(t, func(o *fs.Options) { o.Staging = failing{o.Staging} })
	path := filepath.Join(a, "f")
	old := pattern(3, 1<<20+3)
	write(t, path, old)
	r := openFor(t, path, os.O_RDONLY)
	want := looks(r)
	w := openFor(t, path, os.O_WRONLY)
	_, err := w.WriteAt([]byte("later"), 0)
	must(t, err)
	if got := looks(r); got != want {
		t.Errorf("after the failure the reader sees %v, want %v", got, want)
	}
	must(t, w.Close())
	time.Sleep(200 * time.Millisecond)
	other := openFor(t, filepath.Join(a, "secret"), os.O_CREATE|os.O_WRONLY)
	_, err = other.WriteAt(bytes.Repeat([]byte("secret of another file "), 100), 0)
	must(t, err)
	if got := looks(r); got != want {
		p := make([]byte, 22)
		_, err := r.ReadAt(p, 0)
		t.Errorf("with another new file the reader sees %v %q %v, want %v", got, p, err, want)
	}
}

// without passthrough: failure after CopyUp closes what readers read
type failingCopy struct{ fs.Staging }

var failNow bool

func (f failingCopy) CopyUp(ctx context.Context, info fs.StageInfo, base replicate.ContentReader) (fs.Staged, error) {
	st, err := f.Staging.CopyUp(ctx, info, base)
	if err != nil || !failNow {
		return st, err
	}
	failNow = false
	return failingStaged{st}, nil
}

func TestRevFailureAfterCopyUp(t *testing.T) {
	c := fstest.New(t, 1)
	a := c.Node(1).Mount(t, func(o *fs.Options) { o.Staging = failingCopy{o.Staging}; o.NoPassthrough = true })
	path := filepath.Join(a, "f")
	old := pattern(3, 1<<20+3)
	write(t, path, old)
	r := openFor(t, path, os.O_RDONLY)
	failNow = true
	w := openFor(t, path, os.O_RDWR)
	time.Sleep(100 * time.Millisecond)
	p := make([]byte, len(old))
	if _, err := r.ReadAt(p, 0); err != nil || !bytes.Equal(p, old) {
		t.Errorf("reader after the failure: %v", err)
	}
	must(t, w.Close())
}

func TestRevMappingOfOtherMount(t *testing.T) {
	c := fstest.New(t, 1)
	a := c.Node(1).Mount(t, nil)
	b := c.Node(1).MountMore(t, nil)
	old := pattern(3, 1<<20+3)
	write(t, filepath.Join(a, "f"), old)
	m := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	p := mapOf(t, m, len(old), unix.PROT_READ)
	want := sum(p)
	must(t, m.Close())
	time.Sleep(300 * time.Millisecond)
	r := openFor(t, filepath.Join(a, "f"), os.O_RDONLY)
	_ = looks(r)
	w := openFor(t, filepath.Join(a, "f"), os.O_RDWR)
	_, err := w.WriteAt([]byte("not committed"), 0)
	must(t, err)
	if got := sum(p); got != want {
		t.Errorf("a mapping of the other mount sees %q", p[:13])
	}
	fmt.Println(len(stagedOpen()))
}
