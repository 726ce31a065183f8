package meta_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// trail reads the audit trail.
func trail(t *testing.T, db *meta.DB) []meta.AuditRow {
	t.Helper()
	rows, err := meta.AuditTrail{DB: db}.Rows()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// A command has a row from before it changes anything, and its outcome when it has ended.
func TestAuditTrail(t *testing.T) {
	db := meta.OpenMemory()
	c := metatest.Over(t, db, 3)
	begun := c.Do(2, &meta.Audit{UID: 0, Login: 1000, Command: "rdmcfs evict n3"})
	rows := trail(t, db)
	want := meta.AuditRow{Index: begun.Index, Time: rows[len(rows)-1].Time, Node: 2, Login: 1000,
		Command: "rdmcfs evict n3"}
	if len(rows) != 1 || rows[len(rows)-1] != want || want.Time == 0 {
		t.Fatalf("got %+v, want %+v", rows, want)
	}
	end := &meta.Audit{Of: begun.Index, Outcome: "no node n3"}
	answers(t, "another node's command", c.Propose(1, end), syscall.ENOENT)
	answers(t, "the end of what was never noted", c.Propose(2, &meta.Audit{Of: 1 << 40}), syscall.ENOENT)
	c.Do(2, end)
	answers(t, "a command that has ended", c.Propose(2, &meta.Audit{Of: begun.Index}), syscall.ENOENT)
	rows = trail(t, db)
	if want.Ended, want.Outcome = true, "no node n3"; rows[len(rows)-1] != want {
		t.Errorf("got %+v, want %+v", rows[len(rows)-1], want)
	}
	long := strings.Repeat("é", meta.AuditTextMax)
	for _, bad := range []*meta.Audit{{Command: long}, {Of: begun.Index, Outcome: long}, {Command: "\xff"}} {
		answers(t, "a bad text", c.Propose(2, bad), syscall.EINVAL)
	}
	for _, text := range []string{long, "\xff" + long, "short", "x" + long, "a\xffb"} {
		if fit := meta.AuditText(text); len(fit) > meta.AuditTextMax || !utf8.ValidString(fit) {
			t.Errorf("%q does not fit", fit)
		}
		c.Do(1, &meta.Audit{Command: meta.AuditText(text)})
	}
}

// The trail is bounded: the oldest rows go first.
func TestAuditTrailIsBounded(t *testing.T) {
	db := meta.OpenMemory()
	c := metatest.Over(t, db, 1)
	const more = 10
	for i := range meta.AuditKept + more {
		c.Do(1, &meta.Audit{Command: fmt.Sprint(i)})
	}
	rows := trail(t, db)
	if len(rows) != meta.AuditKept {
		t.Fatalf("%d rows, want %d", len(rows), meta.AuditKept)
	}
	for i, row := range rows {
		if want := fmt.Sprint(i + more); row.Command != want {
			t.Fatalf("row %d is %q, want %q", i, row.Command, want)
		}
	}
}
