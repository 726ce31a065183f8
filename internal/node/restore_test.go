package node

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// failingDisk is a directory whose files the kernel keeps dirty pages of. It can be made to refuse them.
type failingDisk struct {
	*gofs.LoopbackNode
	refuses *atomic.Bool
}

func (d *failingDisk) WrapChild(_ context.Context, ops gofs.InodeEmbedder) gofs.InodeEmbedder {
	return &failingDisk{ops.(*gofs.LoopbackNode), d.refuses}
}

func (d *failingDisk) Write(ctx context.Context, fh gofs.FileHandle, p []byte, off int64) (uint32, syscall.Errno) {
	if d.refuses.Load() {
		return 0, syscall.EIO
	}
	return fh.(gofs.FileWriter).Write(ctx, p, off)
}

func mountFailing(t *testing.T) (dir string, refuses *atomic.Bool) {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	dir, refuses = t.TempDir(), new(atomic.Bool)
	data := &gofs.LoopbackRoot{Path: t.TempDir()}
	root := &failingDisk{&gofs.LoopbackNode{RootData: data}, refuses}
	data.RootNode = root
	server, err := gofs.Mount(dir, root, &gofs.Options{
		MountOptions: fuse.MountOptions{ExtraCapabilities: fuse.CAP_WRITEBACK_CACHE, DirectMount: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return dir, refuses
}

// Staged bytes that the disk did not take are not published by a restore either: what is read then may be what was
// there before.
func TestG5RestoreOfBytesThatTheDiskDidNotTake(t *testing.T) {
	dir, refuses := mountFailing(t)
	s, files := openStaging(t, dir)
	rs := &restorer{store: s.store}
	st, err := files.Create(fs.StageInfo{Ino: 7, Parent: 1, Path: "/f"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.WriteAt([]byte("bytes"), 0); err != nil {
		t.Fatal(err)
	}
	if err := st.Keep("its program was killed"); err != nil {
		t.Fatal(err)
	}
	list := s.unused()
	if len(list) != 1 {
		t.Fatalf("unpublished: %+v", list)
	}
	read := func() error {
		t.Helper()
		push, done, err := rs.stagedPush(list[0])
		if err != nil {
			return err
		}
		if want := (replicate.Extent{Length: 5}); push.Size != 5 || len(push.Data) != 1 || push.Data[0] != want {
			t.Errorf("pushed: %+v", push)
		}
		_, err = push.Source.ReadAt(make([]byte, 5), 0)
		if err == io.EOF {
			err = nil
		}
		return errors.Join(err, done(false))
	}
	if err := read(); err != nil {
		t.Errorf("bytes that the disk took: %v", err)
	}
	again, err := s.store.OpenStaging(list[0].Token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.File().WriteAt([]byte("other"), 0); err != nil {
		t.Fatal(err)
	}
	refuses.Store(true)
	_ = again.Close() // the bytes go to the disk now, as they do by themselves after a while
	refuses.Store(false)
	if err := read(); !errors.Is(err, syscall.EIO) {
		t.Errorf("bytes that the disk did not take: %v", err)
	}
}

// Bytes that the disk did not take when they were kept are published by no restore, not even the second one: the kernel
// has reported the failure once, and does not report it again.
func TestG5SecondRestoreOfBytesThatTheDiskDidNotTake(t *testing.T) {
	for name, when := range map[string]struct{ sync, keep, read bool }{
		"when they are synced": {sync: true}, "when they are kept": {keep: true}, "when they are restored": {read: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, refuses := mountFailing(t)
			s, files := openStaging(t, dir)
			rs := &restorer{store: s.store}
			st, err := files.Create(fs.StageInfo{Ino: 7, Parent: 1, Path: "/f"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := st.WriteAt([]byte("bytes"), 0); err != nil {
				t.Fatal(err)
			}
			refuses.Store(when.sync)
			if err := st.Sync(); (err != nil) != when.sync {
				t.Fatal(err)
			}
			if when.keep {
				_, err = st.WriteAt([]byte("other"), 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			refuses.Store(when.keep)
			if err := st.Keep("its program was killed"); (err != nil) != when.keep {
				t.Fatal(err)
			}
			list := s.unused()
			if len(list) != 1 {
				t.Fatalf("unpublished: %+v", list)
			}
			if when.read {
				again, err := s.store.OpenStaging(list[0].Token)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := again.File().WriteAt([]byte("other"), 0); err != nil {
					t.Fatal(err)
				}
				refuses.Store(true)
				_ = again.Close()
			}
			refuses.Store(false)
			for i := range 3 {
				push, done, err := rs.stagedPush(list[0])
				if err == nil {
					_, err = push.Source.ReadAt(make([]byte, 4), 0)
					err = errors.Join(err, done(false))
				}
				if !errors.Is(err, syscall.EIO) {
					t.Errorf("restore %d of bytes that the disk did not take: %v", i+1, err)
				}
			}
		})
	}
}

// What a disk did not take of one staged file, which is emptied then and used for the next one, is no failure of that
// one.
func TestFailureOfAFileBeforeIsNotThatOfTheNext(t *testing.T) {
	dir, refuses := mountFailing(t)
	_, files := openStaging(t, dir)
	st, err := files.Create(fs.StageInfo{Ino: 7, Parent: 1, Path: "/f"})
	if err == nil {
		_, err = st.WriteAt([]byte("bytes"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "staging", "*.file"))
	if err != nil || len(found) != 1 {
		t.Fatalf("staged: %v, %v", found, err)
	}
	other, err := os.OpenFile(found[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.WriteAt([]byte("again"), 0); err != nil {
		t.Fatal(err)
	}
	refuses.Store(true)
	_ = other.Close() // the bytes go to the disk now, as they do by themselves after a while
	refuses.Store(false)
	if err := st.(interface{ Recycle() error }).Recycle(); err != nil {
		t.Fatal(err)
	}
	if st, err = files.Create(fs.StageInfo{Ino: 8, Parent: 1, Path: "/g"}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.WriteAt([]byte("other"), 0); err != nil {
		t.Fatal(err)
	}
	if err := st.Sync(); err != nil {
		t.Errorf("the disk has taken all bytes of the next file: %v", err)
	}
	if err := st.Drop(); err != nil {
		t.Error(err)
	}
}

// An id of unpublished bytes that are not here is not found: no other id begins so.
func TestRestoreOfUnpublishedBytesThatAreNotHere(t *testing.T) {
	rs := &restorer{}
	if _, err := rs.findVersion(admin.RestoreRequest{Content: "staged-9"}); admin.CodeOf(err) != admin.CodeNotFound {
		t.Error(err)
	}
	if _, err := rs.findVersion(admin.RestoreRequest{Content: "9"}); admin.CodeOf(err) != admin.CodeInvalid {
		t.Error(err)
	}
}

// What was published and replaced before the log was asked for it is no error: else its bytes would be listed as
// unpublished.
func TestRestoredAndReplaced(t *testing.T) {
	out := replicate.Outcome{Result: meta.Result{Index: 9, Ino: 7, Version: 3}}
	for size, state := range map[int64]meta.ContentState{0: meta.ContentCurrent, 5: meta.ContentRetired} {
		c := unlisted(out, replicate.Push{Size: size, Attr: meta.AttrPatch{Mtime: 11}})
		if c.State != state || c.Ino != 7 || c.Version != 3 || c.Published != 9 || c.Size != size || c.Mtime != 11 {
			t.Errorf("%d bytes: %+v", size, c)
		}
	}
}

// A restore shows how much the slowest has of the members that it waits for.
func TestRestoreShowsWhomItWaitsFor(t *testing.T) {
	for _, tc := range []struct {
		members []replicate.MemberStatus
		want    int64
		some    bool
	}{
		{[]replicate.MemberStatus{{State: "receiving", Bytes: 7}, {State: "receiving", Bytes: 5}}, 5, true},
		{[]replicate.MemberStatus{{State: "receiving", Bytes: 7}, {State: "out", Bytes: 5}}, 7, true},
		{[]replicate.MemberStatus{{State: "stored", Bytes: 9}, {State: "out", Bytes: 5}}, 9, true},
		{[]replicate.MemberStatus{{State: "out", Bytes: 5}}, 9, false},
		{nil, 9, false},
	} {
		got, some := slowest(replicate.TransferStatus{Stream: 9, Members: tc.members})
		if got.Bytes != tc.want || got.SizeBytes != 9 || some != tc.some {
			t.Errorf("%+v: %+v, %v; want %d", tc.members, got, some, tc.want)
		}
	}
}
