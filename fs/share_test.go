package fs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// shareCase is what programs of one node do with a file that a reader has opened before.
type shareCase struct {
	name string
	do   func(t *testing.T, path string, old []byte) (show []any)
}

var shareCases = []shareCase{
	{"pwrite", func(t *testing.T, path string, old []byte) []any {
		r, w := openFor(t, path, os.O_RDONLY), openFor(t, path, os.O_RDWR)
		_, err := w.WriteAt([]byte("NEW!"), 1)
		before := looks(r)
		return []any{err, before, w.Close(), looks(r)}
	}},
	{"append, as tail -f sees it", func(t *testing.T, path string, old []byte) []any {
		r := openFor(t, path, os.O_RDONLY)
		read, err := io.ReadAll(r)
		show := []any{len(read), err}
		for i := range 3 {
			w := openFor(t, path, os.O_WRONLY|os.O_APPEND)
			_, err := fmt.Fprintf(w, "line %d\n", i)
			read, readErr := io.ReadAll(r)
			show = append(show, err, w.Close(), string(read), readErr)
			read, readErr = io.ReadAll(r)
			show = append(show, string(read), readErr)
		}
		return append(show, looks(r))
	}},
	{"O_TRUNC and less bytes", func(t *testing.T, path string, old []byte) []any {
		r := openFor(t, path, os.O_RDONLY)
		show := []any{looks(r)}
		w := openFor(t, path, os.O_WRONLY|os.O_TRUNC)
		show = append(show, looks(r))
		_, err := w.Write([]byte("now"))
		return append(show, err, looks(r), w.Close(), looks(r))
	}},
	{"mapping of a reader", func(t *testing.T, path string, old []byte) []any {
		r := openFor(t, path, os.O_RDONLY)
		m := mapOf(t, r, len(old), unix.PROT_READ)
		show := []any{sum(load(t, m))}
		w := openFor(t, path, os.O_RDWR)
		_, err := w.WriteAt([]byte("mapped"), 2)
		show = append(show, err, sum(load(t, m)))
		mw := mapOf(t, w, len(old), unix.PROT_READ|unix.PROT_WRITE)
		store(t, mw, "stored")
		show = append(show, sum(load(t, m)), looks(r))
		return append(show, w.Close(), sum(load(t, m)))
	}},
	{"truncate(2), longer and shorter", func(t *testing.T, path string, old []byte) []any {
		r := openFor(t, path, os.O_RDONLY)
		show := []any{os.Truncate(path, int64(len(old))+5), looks(r)}
		return append(show, os.Truncate(path, 2), looks(r))
	}},
	{"/proc/self/fd for writing", func(t *testing.T, path string, old []byte) []any {
		r := openFor(t, path, os.O_RDONLY)
		w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", r.Fd()), os.O_RDWR, 0)
		if err != nil {
			return []any{err}
		}
		_, err = w.WriteAt([]byte("by descriptor"), 0)
		return []any{err, looks(r), w.Close(), looks(r)}
	}},
	{"writers one after another", func(t *testing.T, path string, old []byte) []any {
		r := openFor(t, path, os.O_RDONLY)
		var show []any
		for i := range 4 {
			w := openFor(t, path, os.O_RDWR)
			_, err := w.WriteAt(fmt.Append(nil, "round ", i), int64(i))
			show = append(show, err, w.Close(), looks(r))
			late := openFor(t, path, os.O_RDONLY)
			show = append(show, looks(late), late.Close())
		}
		return show
	}},
	{"removed while a reader has it", func(t *testing.T, path string, old []byte) []any {
		r, w := openFor(t, path, os.O_RDONLY), openFor(t, path, os.O_RDWR)
		err := os.Remove(path)
		_, writeErr := w.WriteAt([]byte("gone"), 0)
		return []any{err, writeErr, looks(r), w.Close(), looks(r)}
	}},
	{"copied over from another file", func(t *testing.T, path string, old []byte) []any {
		r := openFor(t, path, os.O_RDONLY)
		err := os.WriteFile(path, []byte("cp does so"), 0o644)
		return []any{err, looks(r)}
	}},
}

// Programs of one node share a file, whoever opened it first, as on a local disk. In the end all nodes have the same.
func TestProcessesOfANodeShareAFile(t *testing.T) {
	sizes := []int{16, 5000, content.InlineBytesMax + 9, 1<<20 + 3, content.CopyUpBytesMax + 11}
	if testing.Short() {
		sizes = sizes[:4]
	}
	for _, c := range shareCases {
		for _, size := range sizes {
			old := pattern(uint64(size), size)
			local := filepath.Join(t.TempDir(), "f")
			must(t, os.WriteFile(local, old, 0o644))
			want := fmt.Sprint(c.do(t, local, old))
			eachPair(t, func(t *testing.T, _ *fstest.Cluster, a, b string) {
				path := filepath.Join(a, "f")
				write(t, path, old) // the store of this node has it, as that of each node of a replica group
				awaitNoneStaged(t)
				if got := fmt.Sprint(c.do(t, path, old)); got != want {
					t.Errorf("%s, %d bytes:\n%.500s\nlocal disk:\n%.500s", c.name, size, got, want)
				}
				here, err := os.ReadFile(path)
				there, thereErr := os.ReadFile(filepath.Join(b, "f"))
				if os.IsNotExist(err) && os.IsNotExist(thereErr) {
					return
				}
				disk, diskErr := os.ReadFile(local)
				if err != nil || thereErr != nil || diskErr != nil || !bytes.Equal(here, disk) || !bytes.Equal(there, disk) {
					t.Errorf("%s, %d bytes: %v, %v; equal to the local disk: %t, there %t", c.name, size, err, thereErr,
						bytes.Equal(here, disk), bytes.Equal(there, disk))
				}
			})
		}
	}
}

// A commit of another node is not seen by those who have the file open, whatever programs here did with it before.
func TestSharedFileKeepsItsVersionAgainstOthers(t *testing.T) {
	for _, size := range []int{16, 1<<20 + 3} {
		eachPair(t, func(t *testing.T, _ *fstest.Cluster, a, b string) {
			path, old := filepath.Join(a, "f"), pattern(3, size)
			write(t, path, old)
			r := openFor(t, path, os.O_RDONLY)
			w := openFor(t, path, os.O_RDWR)
			_, err := w.WriteAt([]byte("here"), 0)
			must(t, err)
			must(t, w.Close())
			mine := append([]byte("here"), old[4:]...)
			write(t, filepath.Join(b, "f"), []byte("a version of another node"))
			wantBytes(t, path, []byte("a version of another node"))
			if got := looks(r); got != fmt.Sprint(sum(mine), " ", len(mine), " ", nil) {
				t.Errorf("%d bytes: the reader sees %v", size, got)
			}
			w = openFor(t, path, os.O_RDWR)
			_, err = w.WriteAt([]byte("A"), 0)
			must(t, err)
			must(t, w.Close())
			wantBytes(t, filepath.Join(b, "f"), []byte("A version of another node"))
			if got := looks(r); got != fmt.Sprint(sum(mine), " ", len(mine), " ", nil) {
				t.Errorf("%d bytes: the reader sees %v later", size, got)
			}
		})
	}
}

func openFor(t *testing.T, path string, flag int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flag, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// looks is what a reader sees: a sum of the bytes, and the size by fstat.
func looks(f *os.File) string {
	st, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	return fmt.Sprint(sum(got), " ", st.Size(), " ", err)
}

func sum(p []byte) string { return fmt.Sprintf("%d bytes, %08x", len(p), content.Checksum(p)) }

// load reads a mapping in a system call. The daemon runs in this process: a plain load that it has to answer would stop
// the collector of garbage, and that the daemon. It is not for pages that may be dropped meanwhile: the kernel then
// holds a lock that the daemon needs to get memory, so a viewer is to read them.
func load(t *testing.T, m []byte) []byte {
	t.Helper()
	p := make([]byte, len(m))
	local := []unix.Iovec{{Base: &p[0], Len: uint64(len(p))}}
	remote := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&m[0])), Len: len(m)}}
	if n, err := unix.ProcessVMReadv(os.Getpid(), local, remote, 0); n != len(p) {
		t.Fatalf("load %d of %d: %v", n, len(p), err)
	}
	return p
}

// store writes to the beginning of a mapping likewise.
func store(t *testing.T, m []byte, text string) {
	t.Helper()
	p := []byte(text)
	local := []unix.Iovec{{Base: &p[0], Len: uint64(len(p))}}
	remote := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&m[0])), Len: len(p)}}
	if n, err := unix.ProcessVMWritev(os.Getpid(), local, remote, 0); n != len(p) {
		t.Fatalf("store %d of %d: %v", n, len(p), err)
	}
}

func mapOf(t *testing.T, f *os.File, size, prot int) []byte {
	t.Helper()
	m, err := syscall.Mmap(int(f.Fd()), 0, size, prot, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(m) })
	return m
}

// A mapping outlives its writer and a commit of another node: opens get that version at once, also beside a reader of
// the older one, and what is stored by the mapping later becomes a version of its own.
func TestMappingOutlivesACommitOfAnotherNode(t *testing.T) {
	eachPair(t, func(t *testing.T, _ *fstest.Cluster, a, b string) {
		const size = 1<<20 + 3
		if strings.HasSuffix(t.Name(), "/mediated") {
			return // there a mapping keeps its handle: a program has the file open for writing
		}
		path, old := filepath.Join(a, "f"), pattern(3, size)
		write(t, path, old)
		r := openFor(t, path, os.O_RDONLY)
		w := openFor(t, path, os.O_RDWR)
		m := mapOf(t, w, size, unix.PROT_READ|unix.PROT_WRITE)
		must(t, w.Close())
		write(t, filepath.Join(b, "f"), []byte("theirs"))
		wantBytes(t, path, []byte("theirs"))
		beside := openFor(t, path, os.O_RDONLY)
		store(t, m, "stored")
		stored := append([]byte("stored"), old[6:]...)
		for _, path := range []string{filepath.Join(b, "f"), path} {
			eventually(t, func() error {
				if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, stored) {
					return fmt.Errorf("%s: %d bytes, %v", path, len(got), err)
				}
				return nil
			})
		}
		if got := looks(r); got != fmt.Sprint(sum(stored), " ", size, " ", nil) {
			t.Errorf("the first reader sees %v", got)
		}
		if got := looks(beside); got != fmt.Sprint(sum([]byte("theirs")), " ", 6, " ", nil) {
			t.Errorf("the reader of the other version sees %v", got)
		}
	})
}

// A file that readers had first ends like any other when all have closed it, and frees its room.
func TestSharedFileEnds(t *testing.T) {
	for _, flag := range []int{os.O_WRONLY, os.O_RDWR} {
		eachPair(t, func(t *testing.T, _ *fstest.Cluster, a, b string) {
			path := filepath.Join(a, "f")
			write(t, path, pattern(3, 1<<20+3))
			r, w := openFor(t, path, os.O_RDONLY), openFor(t, path, flag)
			_, err := w.WriteAt([]byte("here"), 0)
			must(t, err)
			must(t, w.Close())
			must(t, r.Close())
			awaitNoneStaged(t)
			write(t, filepath.Join(b, "f"), []byte("a version of another node"))
			wantBytes(t, path, []byte("a version of another node"))
		})
	}
}

// awaitNoneStaged waits until all that was closed is at rest.
func awaitNoneStaged(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		if list := stagedFiles(); len(list) != 0 {
			return fmt.Errorf("staged: %q", list)
		}
		return nil
	})
}

// stagedFiles are the staged files that this process has open.
func stagedFiles() (list []string) {
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.Contains(to, "/staging/") {
			list = append(list, to)
		}
	}
	return list
}

// failingStaging makes staged files whose times can't be set.
type failingStaging struct {
	fs.Staging
	off atomic.Bool
}

func (f *failingStaging) fail(st fs.Staged, err error) (fs.Staged, error) {
	if err != nil || f.off.Load() {
		return st, err
	}
	return untimed{st}, nil
}

func (f *failingStaging) TakeOver(info fs.StageInfo, base replicate.ContentReader) (fs.Staged, error) {
	return f.fail(f.Staging.TakeOver(info, base))
}

func (f *failingStaging) CopyUp(
	ctx context.Context, info fs.StageInfo, base replicate.ContentReader,
) (fs.Staged, error) {
	return f.fail(f.Staging.CopyUp(ctx, info, base))
}

type untimed struct{ fs.Staged }

func (untimed) SetTimes(_, _ *int64) error { return errors.New("no times") }
func (u untimed) Recycle() error           { return u.Staged.(interface{ Recycle() error }).Recycle() }

// A reader keeps what it has when an open for writing fails, however far that came. Its file is never used again for
// another one.
func TestReaderBesideAFailedOpen(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, _ string) {
		bad := new(failingStaging)
		mnt := n.MountMore(t, func(o *fs.Options) {
			bad.Staging, o.Staging = o.Staging, bad
			o.NoPassthrough = strings.HasSuffix(t.Name(), "/mediated")
		})
		path := filepath.Join(mnt, "f")
		write(t, path, pattern(3, 1<<20+3))
		awaitNoneStaged(t) // so that the reader opens a version
		r := openFor(t, path, os.O_RDONLY)
		want := looks(r)
		if w, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			must(t, w.Close())
			t.Fatal("opened")
		}
		bad.off.Store(true)
		for i := range 20 {
			write(t, filepath.Join(mnt, fmt.Sprint("other", i)), []byte("another file"))
			if got := looks(r); got != want {
				t.Fatalf("the reader sees %v, want %v", got, want)
			}
		}
	})
}
