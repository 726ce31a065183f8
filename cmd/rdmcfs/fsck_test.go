package main

import (
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// Findings come first, one line each, with names escaped; then what was looked at. The code says whether something does
// not heal by itself.
func TestFsckPrintsFindingsThenASummary(t *testing.T) {
	a := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--listen", "10.0.0.1:7400", "--data", a)
	expect(t, exitcode.OK, "", "mount", "-d", "/mnt/x", "--data", a)
	out, errs, code := rdmcfs(t, "fsck", "--data", a)
	want := []string{
		`damaged: /d/f\x1b[2J version 3 on n\x1b2: its files are gone`,
		`owed: 7 contents of 2.00 MiB (/a\x1b, /b, ...) on n3: they are owed to it: slow (heals by itself)`,
		"unneeded: on n1 (2): nothing needs them",
		"4 inodes and 1 content of 1.00 MiB checked on 1 of 2 nodes, at log index 77: 3 findings, 2 of them do not heal by " +
			"themselves.",
	}
	if got := strings.Split(strings.TrimSpace(out), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("printed\n%s\nwant\n%s", out, strings.Join(want, "\n"))
	}
	if code != exitcode.Faulty || !strings.Contains(errs, "2 findings do not heal by themselves") {
		t.Errorf("exit %d, %q", code, errs)
	}
	expect(t, exitcode.OK, "1 finding, all of which heal by themselves.", "fsck", "--contents", "--data", a)
	expect(t, exitcode.OK, "n1 has 5 contents of 1.00 MiB that nothing needs", "fsck", "--contents", "--data", a)
	expect(t, exitcode.OK, "checked on 2 of 2 nodes, at log index 77: nothing is wrong.", "fsck", "/mnt/x/whole",
		"--data", a)
	out, _, code = rdmcfs(t, "fsck", "--json", "--data", a)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != exitcode.Faulty || len(lines) != 4 || !strings.HasPrefix(lines[0], `{"finding":{"kind":"damaged"`) ||
		!strings.HasPrefix(lines[3], `{"result":{"index":77`) {
		t.Errorf("as JSON: %d, %q", code, lines)
	}
	expect(t, exitcode.NotFound, "below no mount", "fsck", "/elsewhere", "--data", a)
}
