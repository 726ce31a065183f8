package main

import (
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// Bytes that have to move take as long as they take: restore has no limit of its own, and shows how far it is.
func TestRestoreTakesLongerThanOtherRequests(t *testing.T) {
	t.Parallel() // waits for 11 s
	a := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--listen", "10.0.0.1:7400", "--data", a) // the daemon runs then
	out, errs, code := rdmcfs(t, "restore", "--content", "staged-1a", "--data", a)
	if code != exitcode.OK || !strings.Contains(out, "a/b is version 3 now") ||
		!strings.Contains(errs, "restore: 1.00 MiB of 4.00 MiB") {
		t.Fatalf("exit %d, out %q, err %q", code, out, errs)
	}
}

func TestPolicyOfALargeTreeTakesLongerThanOtherRequests(t *testing.T) {
	t.Parallel() // waits for 11 s
	a := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--listen", "10.0.0.1:7400", "--data", a)
	expect(t, exitcode.OK, "", "mount", "-d", "/mnt/x", "--data", a)
	expect(t, exitcode.OK, "/mnt/x/dir: 2 copies", "policy", "-r", "--copies", "2", "/mnt/x/dir", "--data", a)
}

func TestRemovedFiles(t *testing.T) {
	a := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--listen", "10.0.0.1:7400", "--data", a)
	expect(t, exitcode.OK, "", "mount", "-d", "/mnt/x", "--data", a)
	out := expect(t, exitcode.OK, "removed-2a", "versions", "/mnt/x", "--data", a)
	if !strings.Contains(out, "KEPT UNTIL") || !strings.Contains(out, `/f\x1b[2J`) || !strings.Contains(out, "  3  ") {
		t.Errorf("%q", out)
	}
	if !strings.Contains(out, "may go earlier: 65000 of at most 65536 removed files") {
		t.Errorf("%q", out)
	}
	for _, args := range [][]string{{"versions", "/mnt/x/many"}, {"versions", "/mnt/x/many", "--json"}} {
		if _, errs, code := rdmcfs(t, append(args, "--data", a)...); code != exitcode.OK ||
			!strings.Contains(errs, "the list is cut at 10000") {
			t.Errorf("%v: exit %d, %q", args, code, errs)
		}
	}
	expect(t, exitcode.OK, `"remover": 3`, "versions", "/mnt/x", "--json", "--data", a)
	expect(t, exitcode.OK, "No removed files are kept", "versions", "--removed", "/mnt/x/d", "--data", a)
	expect(t, exitcode.OK, "removed files: 'rdmcfs versions --removed'", "versions", "--data", a)
	expect(t, exitcode.OK, "/g is version 9 now", "restore", "--removed", "/mnt/x/d/f", "--as", "/mnt/x/g", "--data", a)
	expect(t, exitcode.Exists, "", "restore", "--removed", "/mnt/x/d/f", "--data", a)
	expect(t, exitcode.OK, "", "restore", "--removed", "/mnt/x/d/f", "--drop", "--data", a)
	expect(t, exitcode.NotFound, "/mnt/x/e: no such removed file", "restore", "--removed", "/mnt/x/e", "--data", a)
}
