package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// start makes a cluster with the mount options that the flags ask for.
func start(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	if *noPassthrough {
		o.MountArgs = append(o.MountArgs, "-o", "nopassthrough")
	}
	return cluster.Start(t, o)
}

// run runs a program and fails the test when it fails.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	return runIn(t, "", name, args...)
}

func runIn(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// sameEverywhere fails the test unless the file has the same bytes on every running node as at source.
func sameEverywhere(t *testing.T, c *cluster.Cluster, source, name string) {
	t.Helper()
	want, err := cluster.Digest(source)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		if got, err := cluster.Digest(n.Path(name)); err != nil || got != want {
			t.Errorf("%s: %s is %s (%v), want %s", n.Name(), name, got, err, want)
		}
	}
}

// G2, G3: when cp returns, every node shows the bytes, at once.
func TestCopyIsEverywhereWhenCpReturns(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	for i, size := range []int64{0, 1, 4096, 4097, 70_000, 1 << 20, 3<<20 + 17, 40 << 20} {
		name := fmt.Sprintf("file%d", i)
		src := filepath.Join(c.Dir, name)
		cluster.Random(t, src, size, uint64(i))
		run(t, "cp", src, c.Nodes[i%3].Path(name))
		sameEverywhere(t, c, src, name)
	}
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
}

// A real tree, with names, bytes, modes, times, symbolic and hard links.
func TestCopyOfATree(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 5})
	src := size(filepath.Join(goroot(t), "src", "net"), goroot(t))
	run(t, "cp", "-a", src, c.Nodes[0].Path("tree"))
	link := c.Nodes[0].Path("tree", "a hard link")
	run(t, "sh", "-c", fmt.Sprintf("ln %q %q && ln -s 'no such target' %q", firstFile(t, c.Nodes[0].Path("tree")), link,
		link+".sym"))
	c.AwaitAgreement(60 * time.Second) // names that are made after the last close are seen a moment later
	for _, n := range c.Nodes[1:] {
		cluster.SameTrees(t, c.Nodes[0].Path("tree"), n.Path("tree"))
	}
	os.Remove(link)
	os.Remove(link + ".sym")
	run(t, "touch", "-r", src, c.Nodes[0].Path("tree"))
	c.AwaitAgreement(60 * time.Second)
	cluster.SameTrees(t, src, c.Nodes[4].Path("tree"))
}

func goroot(t *testing.T) string {
	t.Helper()
	out := run(t, "go", "env", "GOROOT")
	return out[:len(out)-1]
}

func firstFile(t *testing.T, root string) string {
	t.Helper()
	found := ""
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			found = filepath.Join(root, e.Name())
			break
		}
	}
	if found == "" {
		t.Fatalf("no regular file in %s", root)
	}
	return found
}

// A sparse disk image stays an image, and sparse.
func TestCopyOfASparseImage(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 5})
	image := filepath.Join(c.Dir, "disk.img")
	run(t, "truncate", "-s", size("256M", "2G"), image)
	run(t, "mke2fs", "-q", "-t", "ext4", "-d", filepath.Join(goroot(t), "src", size("net", "")), image)
	run(t, "cp", "--sparse=always", image, c.Nodes[0].Path("disk.img"))
	sameEverywhere(t, c, image, "disk.img")
	want := blocks(t, image)
	for _, n := range c.Nodes {
		run(t, "e2fsck", "-f", "-n", n.Path("disk.img"))
		if got := blocks(t, n.Path("disk.img")); got > want+want/10+64 {
			t.Errorf("%s: the image takes %d sectors, the source %d: holes were filled", n.Name(), got, want)
		}
	}
}

func blocks(t *testing.T, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks
}

// What is written through one name is read through another, here and elsewhere.
func TestHardLinksShareBytes(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	writer, reader := c.Nodes[0], c.Nodes[2]
	if err := os.WriteFile(writer.Path("a"), []byte("first"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(writer.Path("a"), writer.Path("b")); err != nil {
		t.Fatal(err)
	}
	for i := range size(200, 1000) {
		want := fmt.Sprintf("write %d", i)
		if err := os.WriteFile(writer.Path("a"), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{writer.Path("b"), reader.Path("b")} {
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Fatalf("round %d: %s holds %q (%v), want %q", i, path, got, err, want)
			}
		}
	}
	if a, b := inode(t, reader.Path("a")), inode(t, reader.Path("b")); a != b || a != inode(t, writer.Path("b")) {
		t.Errorf("inode numbers differ: %d, %d, %d", a, b, inode(t, writer.Path("b")))
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}
