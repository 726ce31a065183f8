package main

import (
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

func TestScrubSaysWhatStaysDamaged(t *testing.T) {
	a := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--listen", "10.0.0.1:7400", "--data", a)
	expect(t, exitcode.OK, "", "mount", "-d", "/mnt/x", "--data", a)
	out, errs, code := rdmcfs(t, "scrub", "--data", a)
	for _, part := range []string{
		`/d/f\x1b[2J version 3 (retained): damaged as a whole, not mended: no other node holds it`,
		"/g version 1: 2 damaged blocks, mended", "5 contents of 4.00 MiB checked: 2 were damaged, 1 of them mended.",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("%q lacks %q", out, part)
		}
	}
	if code != exitcode.Damaged || !strings.Contains(errs, "1 content stays damaged") {
		t.Errorf("exit %d, %q", code, errs)
	}
	expect(t, exitcode.OK, "1 content of 64.0 KiB checked: all are right", "scrub", "--rate", "64KiB", "/mnt/x/whole",
		"--data", a)
	expect(t, exitcode.Damaged, `"mended": 1`, "scrub", "--json", "/mnt/x/d", "--data", a)
	expect(t, exitcode.Usage, "/mnt/x/link is a symbolic link", "scrub", "/mnt/x/link", "--data", a)
	expect(t, exitcode.Usage, "want bytes a second", "scrub", "--rate", "fast", "--data", a)
	expect(t, exitcode.NotFound, "below no mount", "scrub", "/elsewhere", "--data", a)
}
