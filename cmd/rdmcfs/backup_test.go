package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// A backup is written and checked. What is none, and a place that is on no mount, are refused before anything is done.
func TestBackupAndItsCheck(t *testing.T) {
	a := dataDir(t)
	book, other := filepath.Join(t.TempDir(), "book"), filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("no backup"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, exitcode.NotRunning, "no daemon answers", "backup", book, "--data", a)
	expect(t, exitcode.OK, "", "init", "--listen", "10.0.0.1:7400", "--data", a)
	expect(t, exitcode.OK, "", "mount", "-d", "/mnt/x", "--data", a)
	expect(t, exitcode.OK, "book is a backup of 1 inode at log index 0", "backup", book, "--data", a)
	expect(t, exitcode.OK, `"inodes": 1`, "backup", "--check", "--json", book, "--data", a)
	expect(t, exitcode.Damaged, "is no whole backup", "backup", "--check", other, "--data", a)
	expect(t, exitcode.NotFound, "no such file", "backup", "--check", book+"-", "--data", a)
	expect(t, exitcode.Damaged, "is no whole backup", "restore-backup", other, "/mnt/x", "--data", a)
	expect(t, exitcode.NotFound, "below no mount", "restore-backup", book, "/elsewhere", "--data", a)
	if st, err := os.Stat(book); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the backup: %v, %v", st, err)
	}
}
