package main

import (
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// Bytes that have to move take as long as they take: restore has no limit of its own, and shows how far it is.
func TestRestoreTakesLongerThanOtherRequests(t *testing.T) {
	a := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--listen", "10.0.0.1:7400", "--data", a) // the daemon runs then
	out, errs, code := rdmcfs(t, "restore", "--content", "staged-1a", "--data", a)
	if code != exitcode.OK || !strings.Contains(out, "a/b is version 3 now") ||
		!strings.Contains(errs, "restore: 1.00 MiB of 4.00 MiB") {
		t.Fatalf("exit %d, out %q, err %q", code, out, errs)
	}
}

func TestPolicyOfALargeTreeTakesLongerThanOtherRequests(t *testing.T) {
	a := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--listen", "10.0.0.1:7400", "--data", a)
	expect(t, exitcode.OK, "", "mount", "-d", "/mnt/x", "--data", a)
	expect(t, exitcode.OK, "/mnt/x/dir: 2 copies", "policy", "-r", "--copies", "2", "/mnt/x/dir", "--data", a)
}
