package fstest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"golang.org/x/sys/unix"
)

// Mount mounts the node's file system and unmounts it at the end of the test. It skips where that cannot be done.
func (n *Node) Mount(tb testing.TB, change func(*fs.Options)) string {
	tb.Helper()
	return n.MountAt(tb, tb.TempDir(), change).Dir()
}

// MountAt is Mount at a given directory.
func (n *Node) MountAt(tb testing.TB, dir string, change func(*fs.Options)) *fs.Mount {
	tb.Helper()
	m := n.newMount(tb, dir, change)
	n.mount.Store(m)
	tb.Cleanup(func() { n.Unmount(tb) })
	switchOffPoll(tb, dir)
	return m
}

// MountMore gives the node one more mount until the end of the test.
func (n *Node) MountMore(tb testing.TB, change func(*fs.Options)) (dir string) {
	tb.Helper()
	dir = tb.TempDir()
	m := n.newMount(tb, dir, change)
	n.c.mu.Lock()
	n.more = append(n.more, m)
	n.c.mu.Unlock()
	tb.Cleanup(func() { end(tb, m) })
	switchOffPoll(tb, dir)
	return dir
}

func (n *Node) newMount(tb testing.TB, dir string, change func(*fs.Options)) *fs.Mount {
	tb.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		tb.Skip("needs root and /dev/fuse")
	}
	o := fs.Options{
		Dir: dir, Cluster: n, Staging: fs.NewStaging(n.store, n.Self), Log: logger(tb), Siblings: &n.siblings,
	}
	if change != nil {
		change(&o)
	}
	m, err := fs.NewMount(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// Unmount unmounts if it is mounted; what is still open is reported and cut off.
func (n *Node) Unmount(tb testing.TB) {
	tb.Helper()
	if m := n.mount.Load(); m != nil {
		end(tb, m)
		n.mount.Store(nil)
	}
}

func end(tb testing.TB, m *fs.Mount) {
	tb.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	err := m.Unmount(ctx)
	if err != nil {
		tb.Errorf("unmount: %v", err)
		err = m.Detach(ctx)
	}
	if err != nil {
		tb.Errorf("detach: %v", err)
	}
}

// Mounted is the present mount.
func (n *Node) Mounted() *fs.Mount { return n.mount.Load() }

// switchOffPoll makes the kernel learn that there is no FUSE_POLL. Otherwise the Go runtime's first epoll_ctl on a
// file of a mount in this very process would wait for this process.
func switchOffPoll(tb testing.TB, dir string) {
	tb.Helper()
	fd, err := unix.Open(filepath.Join(dir, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatalf("poll file: %v", err)
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, 0); err != nil {
		tb.Fatalf("poll: %v", err)
	}
}

type testWriter struct{ tb testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.tb.Logf("%s", p)
	return len(p), nil
}

func logger(tb testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{tb}, &slog.HandlerOptions{Level: slog.LevelInfo}))
}
