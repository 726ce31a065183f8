package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

const mountHelper = "/sbin/mount.fuse.rdmcfs"

// helperOf has mount(8) use the program under test until the end of the test.
func helperOf(t *testing.T) {
	t.Helper()
	before, err := os.Readlink(mountHelper)
	switch {
	case err == nil:
		must(t, os.Remove(mountHelper))
		t.Cleanup(func() { must(t, os.Symlink(before, mountHelper)) })
	case !errors.Is(err, os.ErrNotExist):
		t.Fatalf("%s: %v", mountHelper, err)
	}
	must(t, os.Symlink(cluster.Binary(t), mountHelper))
	t.Cleanup(func() { must(t, os.Remove(mountHelper)) })
}

// mountsAt are the options and the source of each mount at a directory, as /proc shows them.
func mountsAt(t *testing.T, dir string) (options, sources []string) {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(raw)) {
		head, tail, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(head); fields[4] == dir {
			options = append(options, fields[5])
			sources = append(sources, strings.Fields(tail)[1])
		}
	}
	return options, sources
}

func wantOptions(t *testing.T, dir string, with, without []string) {
	t.Helper()
	options, _ := mountsAt(t, dir)
	if len(options) != 1 {
		t.Fatalf("%s: mounted %d times", dir, len(options))
	}
	words := strings.Split(options[0], ",")
	for _, w := range with {
		if !slices.Contains(words, w) {
			t.Errorf("%s: not %q in %q", dir, w, options[0])
		}
	}
	for _, w := range without {
		if slices.Contains(words, w) {
			t.Errorf("%s: %q in %q", dir, w, options[0])
		}
	}
}

// mount(8), fstab and umount(8) treat a mount as that of a local disk: their options hold, mount -a finds what is
// mounted, and the source that fstab names can be unmounted.
func TestMountByFstab(t *testing.T) {
	helperOf(t)
	n := start(t, cluster.Options{Nodes: 1}).Nodes[0]
	dir := filepath.Join(t.TempDir(), "m")
	must(t, os.Mkdir(dir, 0o755))
	fstab := filepath.Join(t.TempDir(), "fstab")
	t.Setenv("RDMCFS_DATA", n.Data)
	line := fmt.Sprintf("shared %s fuse.rdmcfs ro,noexec,noatime,sync,_netdev,nofail 0 0\n", dir)
	must(t, os.WriteFile(fstab, []byte(line), 0o644))
	must(t, os.WriteFile(n.Path("script"), []byte("#!/bin/sh\necho done\n"), 0o755))
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })

	run(t, "mount", "-a", "-T", fstab)
	run(t, "mount", "-a", "-T", fstab)
	wantOptions(t, dir, []string{"ro", "noexec", "noatime"}, []string{"nosuid", "nodev"})
	if _, sources := mountsAt(t, dir); sources[0] != "shared" {
		t.Errorf("source %q, want that of fstab", sources[0])
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a file on a mount that is read-only: %v", err)
	}

	run(t, "mount", "-o", "remount,rw", dir)
	wantOptions(t, dir, []string{"rw", "noexec", "noatime"}, []string{"nosuid", "nodev"})
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("written"), 0o644))
	if err := exec.Command(filepath.Join(dir, "script")).Run(); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a program on a noexec mount: %v", err)
	}
	run(t, "mount", "-o", "remount,exec,nosuid", dir)
	wantOptions(t, dir, []string{"rw", "nosuid", "noatime"}, []string{"noexec", "nodev"})
	if out := run(t, filepath.Join(dir, "script")); out != "done\n" {
		t.Errorf("script: %q", out)
	}
	if out, err := exec.Command("mount", "-o", "remount,acl", dir).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "remount can't change acl") {
		t.Errorf("remount,acl: %v: %s", err, out)
	}
	run(t, "umount", "shared")
	if options, _ := mountsAt(t, dir); len(options) != 0 {
		t.Errorf("mounted after umount: %q", options)
	}
	if got, err := os.ReadFile(n.Path("f")); err != nil || string(got) != "written" {
		t.Errorf("%q %v", got, err)
	}
}

// A program that belongs to root and has the setuid bit runs as root on a mount by mount(8), as it does on a local
// disk, and not on one by rdmcfs mount.
func TestSetuidProgram(t *testing.T) {
	helperOf(t)
	n := start(t, cluster.Options{Nodes: 1}).Nodes[0]
	dir := filepath.Join(t.TempDir(), "m")
	must(t, os.Mkdir(dir, 0o755))
	for d := dir; strings.HasPrefix(d, filepath.Clean(os.TempDir())+"/"); d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755)) // others have to come here
	}
	run(t, "cp", "/usr/bin/id", n.Path("id"))
	run(t, "chmod", "4755", n.Path("id"))
	run(t, "mount", "-t", "fuse.rdmcfs", n.Data, dir)
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	as := []string{"--reuid=65534", "--regid=65534", "--clear-groups"}
	if out := run(t, "setpriv", append(as, filepath.Join(dir, "id"), "-u")...); out != "0\n" {
		t.Errorf("on a mount by mount(8): user %q", out)
	}
	run(t, "umount", dir)
	n.MustCLI("mount", "-d", dir)
	wantOptions(t, dir, []string{"nosuid", "nodev"}, nil)
	if out := run(t, "setpriv", append(as, filepath.Join(dir, "id"), "-u")...); out != "65534\n" {
		t.Errorf("on a mount by rdmcfs mount: user %q", out)
	}
	n.MustCLI("umount", dir)
}

// What a program wrote into the directory while nothing was mounted there is no reason to hide it without a word, nor
// to refuse it for good.
func TestMountOverFiles(t *testing.T) {
	n := start(t, cluster.Options{Nodes: 1}).Nodes[0]
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "stray"), []byte("stray"), 0o644))
	_, errs, err := n.CLI("mount", "-d", dir)
	if err == nil || !strings.Contains(errs, "while nothing was mounted") || !strings.Contains(errs, "nonempty") {
		t.Errorf("%v: %s", err, errs)
	}
	n.MustCLI("mount", "-d", "-o", "nonempty", dir)
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	if _, err := os.Stat(filepath.Join(dir, "stray")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file below the mount: %v", err)
	}
	n.MustCLI("umount", dir)
	if _, err := os.Stat(filepath.Join(dir, "stray")); err != nil {
		t.Error(err)
	}
}
