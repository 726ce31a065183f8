package fs

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMountAbove(t *testing.T) {
	mounts := []mountLine{{dir: "/", kind: "ext4"}, {dir: "/m", kind: fsType}, {dir: "/m/disk", kind: "ext4"},
		{dir: "/over", kind: fsType}, {dir: "/over", kind: "tmpfs"}}
	for path, want := range map[string]string{
		"/": "", "/m": "/m", "/m/a/b": "/m", "/mm": "", "/m/disk": "", "/m/disk/a": "", "/over/a": "", "/var/lib": "",
	} {
		if got := mountAbove(path, mounts); got != want {
			t.Errorf("%s lies on %q, want %q", path, got, want)
		}
	}
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if got := realPrefix(filepath.Join(dir, "link", "a", "b")); err != nil || got != filepath.Join(real, "a", "b") {
		t.Errorf("got %s, %v, want %s/a/b", got, err, real)
	}
}
