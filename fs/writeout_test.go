package fs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// failingDisk is a file in a file system that the kernel keeps dirty pages of.
type failingDisk struct {
	gofs.MemRegularFile
	fails atomic.Bool
}

func (d *failingDisk) Write(ctx context.Context, fh gofs.FileHandle, p []byte, off int64) (uint32, syscall.Errno) {
	if d.fails.Load() {
		return 0, syscall.EIO
	}
	return d.MemRegularFile.Write(ctx, fh, p, off)
}

func (d *failingDisk) Fsync(context.Context, gofs.FileHandle, uint32) syscall.Errno { return 0 }

// mountFailing mounts a file system with a file on a disk that can be made to fail.
func mountFailing(t *testing.T) (disk *failingDisk, path string) {
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	disk, dir := &failingDisk{}, t.TempDir()
	root := &gofs.Inode{}
	server, err := gofs.Mount(dir, root, &gofs.Options{
		MountOptions: fuse.MountOptions{ExtraCapabilities: fuse.CAP_WRITEBACK_CACHE, DirectMount: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild("f", root.NewPersistentInode(ctx, disk, gofs.StableAttr{Mode: syscall.S_IFREG}), true)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return disk, filepath.Join(dir, "f")
}

// TestFailedWriteOutIsNotForgotten: the kernel could not write a page and reports that to each descriptor once. No
// publish may take the bytes from then on, and no fsync may succeed.
func TestFailedWriteOutIsNotForgotten(t *testing.T) {
	disk, path := mountFailing(t)
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() }) // it may report the failure again
		return f
	}
	program := open() // as by passthrough
	stage := NewPlainFile(open())
	publish := func() error {
		snap, err := stage.Snapshot()
		if err != nil {
			return err
		}
		_, err = readFull(snap.Source, make([]byte, snap.Size), 0)
		snap.Done(meta.ContentID{}, err == nil)
		return err
	}
	if _, err := program.Write([]byte("whole")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(program.Sync(), publish(), stage.Sync(), publish()); err != nil {
		t.Fatal(err)
	}
	disk.fails.Store(true)
	if _, err := program.WriteAt([]byte("lost"), 0); err != nil {
		t.Fatal(err)
	}
	if err := program.Sync(); !errors.Is(err, syscall.EIO) { // as the kernel does it by itself after a while
		t.Fatalf("the disk fails, and sync says %v", err)
	}
	disk.fails.Store(false)
	for range 2 {
		if err := publish(); !errors.Is(err, syscall.EIO) {
			t.Errorf("bytes that did not come to the disk are published: %v", err)
		}
		if err := stage.Sync(); !errors.Is(err, syscall.EIO) {
			t.Errorf("sync of bytes that did not come to the disk: %v", err)
		}
	}
}
