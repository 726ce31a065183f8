package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// overlayfs, on which container programs run, has its upper directory on the mount: it asks for RENAME_WHITEOUT and
// trusted.overlay.*. What is changed through it on one node is there when another node mounts the same directories.
func TestOverlayWithItsUpperDirectoryOnTheMount(t *testing.T) {
	t.Parallel()
	if b, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(b), "\toverlay\n") {
		t.Skip("this kernel has no overlayfs")
	}
	c := start(t, cluster.Options{Nodes: 3})
	lower := filepath.Join(c.Dir, "lower")
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"moved", "removed", "changed", "dir/inside", "gone/inside", "opaque/old"} {
		write(filepath.Join(lower, name), name)
	}
	merged := mountOverlay(t, c, 0, lower)
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	do(os.Rename(filepath.Join(merged, "moved"), filepath.Join(merged, "here")))
	do(os.Remove(filepath.Join(merged, "removed")))
	write(filepath.Join(merged, "changed"), "changed here")
	do(os.RemoveAll(filepath.Join(merged, "gone")))
	do(os.RemoveAll(filepath.Join(merged, "opaque")))
	write(filepath.Join(merged, "opaque/new"), "new")
	do(os.Symlink("here", filepath.Join(merged, "link")))
	unmountOverlay(t, merged)
	c.AwaitAgreement(time.Minute)

	var st syscall.Stat_t
	err := syscall.Lstat(c.Nodes[2].Path("upper/moved"), &st)
	if err != nil || st.Mode != syscall.S_IFCHR || st.Rdev != 0 {
		t.Errorf("the whiteout on another node: mode %o, device %x, %v", st.Mode, st.Rdev, err)
	}
	value := make([]byte, 8)
	if n, err := unix.Getxattr(c.Nodes[2].Path("upper/opaque"), "trusted.overlay.opaque", value); err != nil || n < 1 {
		t.Errorf("the mark of an opaque directory on another node: %q, %v", value[:max(n, 0)], err)
	}
	merged = mountOverlay(t, c, 1, lower)
	defer unmountOverlay(t, merged)
	for name, want := range map[string]string{
		"here": "moved", "changed": "changed here", "dir/inside": "dir/inside", "opaque/new": "new", "link": "moved",
	} {
		if b, err := os.ReadFile(filepath.Join(merged, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for _, name := range []string{"moved", "removed", "gone", "opaque/old"} {
		if _, err := os.Lstat(filepath.Join(merged, name)); !os.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// mountOverlay mounts lower with the directories upper and work of a node's mount.
func mountOverlay(t *testing.T, c *cluster.Cluster, node int, lower string) string {
	t.Helper()
	merged := filepath.Join(c.Dir, "merged")
	upper, work := c.Nodes[node].Path("upper"), c.Nodes[node].Path("work")
	for _, dir := range []string{merged, upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("mount", "-t", "overlay", "overlay", "-o",
		"lowerdir="+lower+",upperdir="+upper+",workdir="+work, merged).CombinedOutput()
	if err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) }) // if the test failed before
	return merged
}

func unmountOverlay(t *testing.T, merged string) {
	t.Helper()
	if err := unix.Unmount(merged, 0); err != nil {
		t.Errorf("umount: %v", err)
	}
}
