package fs_test

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
)

// noKernel stands where Linux is, for a test that sends the requests itself.
type noKernel struct{ gone chan struct{} }

func (k noKernel) Serve()            { <-k.gone }
func (k noKernel) Device() string    { return "" }
func (k noKernel) Passthrough() bool { return false }
func (k noKernel) MapsDirect() bool  { return true }
func (k noKernel) RegisterBackingFd(*fuse.BackingMap) (int32, syscall.Errno) {
	return 0, syscall.ENOSYS
}
func (k noKernel) UnregisterBackingFd(int32) syscall.Errno      { return syscall.ENOSYS }
func (k noKernel) InodeNotify(uint64, int64, int64) fuse.Status { return fuse.OK }
func (k noKernel) Epoch() bool                                  { return true }
func (k noKernel) Unmount(context.Context) error                { close(k.gone); return nil }
func (k noKernel) Detach() error                                { return nil }
func (k noKernel) Abort() error                                 { return nil }
func (k noKernel) Close() error                                 { return nil }

// G1: the kernel drops the pages of the version before when it handles the answer to an open, which may be later than
// it handles the answers to opens that follow. No open allows the kernel to keep the pages before one of them is read:
// the read shows that an answer was handled.
func TestG1PagesAreKeptOnlyOnceTheOldOnesAreDropped(t *testing.T) {
	c := fstest.New(t, 2)
	write(t, filepath.Join(c.Node(2).Mount(t, nil), "f"), []byte("bytes"))
	var requests fuse.RawFileSystem
	m, err := fs.NewMount(t.Context(), fs.Options{
		Dir: t.TempDir(), Cluster: c.Node(1), Staging: fs.NewStaging(c.Node(1).Store(), c.Node(1).Self),
		Attach: func(r fuse.RawFileSystem) (fs.Kernel, error) {
			requests = r
			return noKernel{make(chan struct{})}, nil
		},
	})
	must(t, err)
	defer func() { must(t, m.Unmount(context.Background())) }()
	var entry fuse.EntryOut
	if st := requests.Lookup(nil, &fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}, "f", &entry); st != fuse.OK {
		t.Fatal(st)
	}
	open := func() (fh uint64, keeps bool) {
		t.Helper()
		var out fuse.OpenOut
		if st := requests.Open(nil, &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: entry.NodeId}}, &out); st != fuse.OK {
			t.Fatal(st)
		}
		return out.Fh, out.OpenFlags&fuse.FOPEN_KEEP_CACHE != 0
	}
	var opened []uint64
	for range 3 {
		fh, keeps := open()
		if opened = append(opened, fh); keeps {
			t.Error("an open is told to keep pages that no answer has dropped")
		}
	}
	if _, st := requests.Read(nil, &fuse.ReadIn{Fh: opened[1]}, make([]byte, 10)); st != fuse.OK {
		t.Fatal(st)
	}
	fh, keeps := open()
	if !keeps {
		t.Error("pages that are right are dropped")
	}
	for _, fh := range append(opened, fh) {
		requests.Release(nil, &fuse.ReleaseIn{Fh: fh})
	}
}
