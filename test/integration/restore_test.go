package integration

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
	"golang.org/x/sys/unix"
)

// What a daemon that died left unpublished is listed with the directory that it was written in, and goes back there.
func TestRestorePutsUnpublishedFilesBack(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	w := c.Nodes[2]
	for _, dir := range []string{"deep/er", "gone"} {
		if err := os.MkdirAll(w.Path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(w.Path("deep/old"), []byte("published"), 0o644); err != nil {
		t.Fatal(err)
	}
	bytes := map[string]string{"deep/er/new": "a new file", "deep/old": "published, and more",
		"gone/lost": "whose directory goes"}
	for name, text := range bytes {
		f, err := os.OpenFile(w.Path(name), os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	w.Kill()
	w.Start()
	c.AwaitUp(c.Nodes...)
	if err := os.Remove(w.Path("gone")); err != nil {
		t.Fatal(err)
	}

	want := map[string]string{"/deep/er/new": bytes["deep/er/new"], "/deep/old": bytes["deep/old"],
		"lost": bytes["gone/lost"]}
	for _, u := range w.Status().Unpublished {
		text, ok := want[u.Path]
		if !ok {
			t.Errorf("listed as %s: %+v", u.Path, u)
			continue
		}
		delete(want, u.Path)
		out := w.MustCLI("restore", "--content", u.ID)
		name := "/" + strings.TrimPrefix(u.Path, "/")
		if !strings.HasPrefix(out, name+" is version") {
			t.Errorf("restore of %s says %q", u.Path, out)
		}
		for _, n := range c.Nodes {
			if got, err := os.ReadFile(n.Path(name)); err != nil || string(got) != text {
				t.Errorf("%s: %s is %q, %v; want %q", n.Name(), name, got, err, text)
			}
		}
	}
	for name := range want {
		t.Errorf("%s is not listed: %+v", name, w.Status().Unpublished)
	}
	c.AwaitAgreement(60 * time.Second)
}

// A restore that fails can be repeated: it leaves nothing of the name.
func TestRestoreCanBeRepeated(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	w := c.Nodes[1]
	dir := w.Path("dir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(w.Path("file"), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("bytes"); err != nil {
		t.Fatal(err)
	}
	w.Kill()
	w.Start()
	c.AwaitUp(c.Nodes...)
	left := w.Status().Unpublished
	if len(left) != 1 {
		t.Fatalf("listed as unpublished: %+v", left)
	}
	as := w.Path("dir", "back")
	for _, n := range c.Nodes {
		if n != w {
			n.Kill()
		}
	}
	if out, _, err := w.CLI("restore", "--content", left[0].ID, "--as", as); err == nil {
		t.Errorf("restored without a majority: %q", out)
	}
	if _, err := os.Lstat(as); !os.IsNotExist(err) {
		t.Errorf("the name is there: %v", err)
	}
	for _, n := range c.Nodes {
		if n != w {
			n.Start()
		}
	}
	c.AwaitUp(c.Nodes...)
	w.MustCLI("restore", "--content", left[0].ID, "--as", as)
	for _, n := range c.Nodes {
		if got, err := os.ReadFile(n.Path("dir", "back")); err != nil || string(got) != "bytes" {
			t.Errorf("%s: %q, %v", n.Name(), got, err)
		}
	}
	c.AwaitAgreement(60 * time.Second)
}

// An older version comes back beside the file, which stays as it is.
func TestRestoreOfAVersionBesideTheFile(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	n := c.Nodes[1]
	name := n.Path("file")
	n.MustCLI("policy", n.Path(""), "--retain", "3")
	for _, size := range []int{1000, 3 << 20} {
		if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		first := strings.Repeat("f", size)
		if err := os.WriteFile(name, []byte(first), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("second"), 0o640); err != nil {
			t.Fatal(err)
		}
		as := fmt.Sprint("old", size)
		if out := n.MustCLI("restore", name, "--version", "1", "--as", n.Path(as)); !strings.HasPrefix(out,
			"/"+as+" is version 1") {
			t.Errorf("restore says %q", out)
		}
		for _, n := range c.Nodes {
			for path, want := range map[string]string{"file": "second", as: first} {
				st, err := os.Stat(n.Path(path))
				if err != nil || st.Mode() != 0o640 {
					t.Errorf("%s: stat of %s: %v, %v", n.Name(), path, st, err)
				}
				if got, err := os.ReadFile(n.Path(path)); err != nil || string(got) != want {
					t.Errorf("%s: %s has %d bytes, %v; want %d", n.Name(), path, len(got), err, len(want))
				}
			}
		}
		if out, _, err := n.CLI("restore", name, "--version", "1", "--as", n.Path(as)); err == nil {
			t.Errorf("restore over a file: %q", out)
		}
	}
	c.AwaitAgreement(60 * time.Second)
}

// Bytes of a file that never had a name go with the daemon; those of one that has got its name are listed under it.
func TestFilesWithoutANameGoWithTheDaemon(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 1})
	w := c.Nodes[0]
	for _, name := range []string{"", "linked"} {
		fd, err := unix.Open(w.Path(""), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		if _, err := f.WriteString("bytes"); err != nil {
			t.Fatal(err)
		}
		if name == "" {
			continue
		}
		if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, w.Path(name),
			unix.AT_SYMLINK_FOLLOW); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(" and more"); err != nil {
			t.Fatal(err)
		}
	}
	w.Kill()
	w.Start()
	c.AwaitUp(w)
	left := w.Status().Unpublished
	if len(left) != 1 || left[0].Path != "/linked" || left[0].SizeBytes != int64(len("bytes and more")) {
		t.Fatalf("listed as unpublished: %+v", left)
	}
	w.MustCLI("restore", "--content", left[0].ID)
	if got, err := os.ReadFile(w.Path("linked")); err != nil || string(got) != "bytes and more" {
		t.Errorf("restored: %q, %v", got, err)
	}
}

// Unpublished bytes of a file that has a newer version by now become the next version. The newer one is kept, and the
// restore says so.
func TestRestoreOverANewerVersion(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	w, other := c.Nodes[1], c.Nodes[2]
	stageOver(t, w, map[string]int{"small": 1000, "overlay": 20 << 20})
	w.Kill()
	for _, name := range []string{"small", "overlay"} {
		if err := os.WriteFile(other.Path(name), []byte("newer"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w.Start()
	c.AwaitUp(c.Nodes...)
	left := w.Status().Unpublished
	if len(left) != 2 {
		t.Fatalf("listed as unpublished: %+v", left)
	}
	for _, u := range left {
		if out := w.MustCLI("restore", "--content", u.ID); !strings.Contains(out,
			"Version 2, which was current before, is kept") {
			t.Errorf("restore of %s says %q", u.Path, out)
		}
		file := other.Path(u.Path[1:])
		if got, err := os.ReadFile(file); err != nil || int64(len(got)) != u.SizeBytes ||
			!strings.Contains(string(got), "staged") {
			t.Errorf("%s: %d bytes, %v", u.Path, len(got), err)
		}
		other.MustCLI("restore", file, "--version", "2", "--as", file+".newer")
		if got, err := os.ReadFile(w.Path(u.Path[1:] + ".newer")); err != nil || string(got) != "newer" {
			t.Errorf("the version that was displaced: %q, %v", got, err)
		}
	}
	c.AwaitAgreement(60 * time.Second)
}

// stageOver publishes files of these sizes and leaves bytes staged over each. No process is started meanwhile: a child
// has a copy of all descriptors until it calls execve. If it closed the first of a file after the second has written,
// that would be the close of a writer and would publish what is staged.
func stageOver(t *testing.T, w *cluster.Node, sizes map[string]int) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for name, size := range sizes {
		if err := os.WriteFile(w.Path(name), []byte(strings.Repeat("o", size)), 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(w.Path(name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if _, err := f.WriteAt([]byte("staged"), 5000%int64(size)); err != nil {
			t.Fatal(err)
		}
	}
}
