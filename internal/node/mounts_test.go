package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"golang.org/x/sys/unix"
)

// A mount that has ended is no error, though the call was cancelled too: a daemon in the foreground ends with its
// mount.
func TestMountThatHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &mountPoint{dir: "/mnt", gone: make(chan struct{})}
	if err := p.awaitGone(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a mount that is still there: %v", err)
	}
	close(p.gone)
	for range 100 {
		if err := p.awaitGone(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMountPointThatHangs: entries are applied and status answers while a mount point is looked at that does not.
func TestMountPointThatHangs(t *testing.T) {
	dir := t.TempDir()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs /dev/fuse: %v", err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev)
	if err := unix.Mount("hung", dir, "fuse.hung", 0, data); err != nil {
		t.Skipf("mount: %v (needs root)", errors.Join(err, unix.Close(dev)))
	}
	s := newMounts(&node{ctx: t.Context()})
	ended := make(chan error, 1)
	go func() {
		_, err := s.mount(t.Context(), admin.MountRequest{Dir: dir})
		ended <- err
	}()
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		for range 20 {
			s.apply(nil)
			<-time.After(10 * time.Millisecond)
		}
	}()
	select {
	case <-applied:
	case err := <-ended:
		t.Errorf("the mount point answered: %v", err)
		ended <- err
	case <-time.After(10 * time.Second):
		t.Error("nothing is applied")
	}
	if err := unix.Close(dev); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("mounted")
	}
	<-applied
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
}

// TestMountsAreListedWhileOneIsMade: status and the log look at mounts while one is being made. Run it with -race.
func TestMountsAreListedWhileOneIsMade(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	store, err := content.Open(t.TempDir(), content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{ctx: t.Context(), db: meta.OpenMemory(), store: store, log: slog.New(slog.DiscardHandler)}
	n.proposer = newProposer(n.ctx, nil, 1, 1)
	n.newNames = newNamesOf(n)
	s := newMounts(n)
	dir, mounted := t.TempDir(), make(chan error)
	go func() {
		_, err := s.mount(t.Context(), admin.MountRequest{Dir: dir})
		mounted <- err
	}()
	for looking := true; looking; {
		select {
		case err := <-mounted:
			if err != nil {
				t.Skip(err)
			}
			looking = false
		default:
			s.apply(nil)
			s.list()
		}
	}
	if list := s.list(); len(list) != 1 || list[0].State != "mounted" {
		t.Errorf("%+v", list)
	}
	if err := errors.Join(s.closeAll(t.Context()), store.Close()); err != nil {
		t.Error(err)
	}
	n.tasks.Wait()
}

// A mount that follows is read-only, and says so where somebody asks for the opposite.
func TestFollowOptions(t *testing.T) {
	s := newMounts(&node{ctx: t.Context()})
	for _, c := range []struct {
		flags []string
		bad   bool
	}{{nil, false}, {[]string{"ro"}, false}, {[]string{"rw", "ro"}, false}, {[]string{"ro", "rw"}, true}} {
		o, err := s.options(admin.MountRequest{Dir: "/m", Flags: c.flags, Options: map[string]string{"follow": ""}})
		if (admin.CodeOf(err) == admin.CodeInvalid) != c.bad || !o.Follow {
			t.Errorf("%q: %+v, %v", c.flags, o.Flags, err)
		}
	}
}
