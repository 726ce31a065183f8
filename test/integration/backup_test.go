package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// A cluster is gone but for a backup of its names, the data directory of one node, and a copy of its files. A new one
// gets everything back from either.
func TestBackupIntoAnotherCluster(t *testing.T) {
	t.Parallel()
	old := start(t, cluster.Options{Nodes: 2, MountArgs: []string{"-o", "acl"}})
	n := old.Nodes[0]
	run(t, "mkdir", "-m", "2750", n.Path("d"), n.Path("d", "e"))
	n.MustCLI("policy", n.Path("d"), "--copies", "1", "--retain", "3")
	for name, size := range map[string]int64{"d/small": 900, "d/e/middle": 300_000, "large": 5<<20 + 3} {
		src := filepath.Join(old.Dir, filepath.Base(name))
		cluster.Random(t, src, size, uint64(size))
		run(t, "cp", src, n.Path(name))
	}
	run(t, "ln", n.Path("large"), n.Path("d", "linked"))
	run(t, "ln", "-s", "../large", n.Path("d", "symlink"))
	run(t, "chown", "12:34", n.Path("d", "small"))
	run(t, "chmod", "4711", n.Path("d", "small"))
	acl := "\x02\x00\x00\x00"
	for _, entry := range []string{"\x01\x00\x06\x00\xff\xff\xff\xff", "\x02\x00\x04\x00\x4d\x00\x00\x00", // user 77
		"\x04\x00\x04\x00\xff\xff\xff\xff", "\x10\x00\x04\x00\xff\xff\xff\xff", "\x20\x00\x04\x00\xff\xff\xff\xff"} {
		acl += entry
	}
	for name, value := range map[string]string{aclName: acl, "user.note": "kept"} {
		if err := syscall.Setxattr(n.Path("d", "e", "middle"), name, []byte(value), 0); err != nil {
			t.Fatal(name, err)
		}
	}
	run(t, "touch", "-d", "2001-02-03 04:05:06.789", n.Path("large"), n.Path("d"))
	copies, book := filepath.Join(old.Dir, "copies"), filepath.Join(old.Dir, "backup")
	run(t, "cp", "-a", n.Mount, copies)
	old.AwaitNothingOwed(60 * time.Second)
	if out := n.MustCLI("backup", book); !strings.Contains(out, "is a backup of 7 inodes") {
		t.Errorf("backup printed %q", out)
	}
	if out := n.MustCLI("backup", "--check", book); !strings.Contains(out, "is a backup of 7 inodes") {
		t.Errorf("backup --check printed %q", out)
	}
	for _, each := range old.Nodes {
		each.Stop()
	}
	fresh := start(t, cluster.Options{Nodes: 1, MountArgs: []string{"-o", "acl"}}).Nodes[0]
	restoreBackup(t, fresh, exitcode.OK, book, fresh.Mount, "--store", old.Nodes[0].Data, "--store", old.Nodes[1].Data)
	cluster.SameTrees(t, copies, fresh.Mount)
	if out := fresh.MustCLI("policy", fresh.Path("d")); !strings.Contains(out, "1 cop") {
		t.Errorf("policy of d: %q", out)
	}
	for name, want := range map[string]string{aclName: acl, "user.note": "kept"} {
		value := make([]byte, 100)
		size, err := syscall.Getxattr(fresh.Path("d", "e", "middle"), name, value)
		if got := string(value[:max(size, 0)]); got != want {
			t.Errorf("%s: %q, want %q, %v", name, got, want, err)
		}
	}
	restoreBackup(t, fresh, exitcode.Usage, book, fresh.Mount, "--files", copies)
	again := fresh.Path("again")
	run(t, "mkdir", again)
	flip(t, filepath.Join(copies, "large"), 1)
	out := restoreBackup(t, fresh, exitcode.Incomplete, book, again, "--files", copies)
	if !strings.Contains(out, "not restored: bytes of /large: 5242883 bytes: ") ||
		!strings.Contains(out, "not restored: bytes of /d/linked: ") {
		t.Errorf("restore-backup printed %q", out)
	}
	for path, there := range map[string]bool{"large": false, "d/e/middle": true, "d/small": true} {
		if _, err := os.Stat(filepath.Join(again, path)); (err == nil) != there {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// aclName is the extended attribute that holds an ACL.
const aclName = "system.posix_acl_access"

// restoreBackup runs restore-backup on a node, which must end with a code.
func restoreBackup(t *testing.T, n *cluster.Node, code int, args ...string) string {
	t.Helper()
	out, stderr, err := n.CLI(append([]string{"restore-backup"}, args...)...)
	got := 0
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		got = ended.ExitCode()
	}
	if got != code {
		t.Fatalf("restore-backup %v: code %d, want %d (%v)\n%s%s", args, got, code, err, out, stderr)
	}
	return out
}
