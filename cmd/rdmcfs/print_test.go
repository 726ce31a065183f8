package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

func itoa(n int) string { return strconv.Itoa(n) }

var printTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func sampleTransfer(second int64) admin.Transfer {
	return admin.Transfer{Session: "s", Path: "image.qcow2", SizeBytes: 1000 << 20, Writer: 1,
		Members: []admin.TransferMember{
			{Node: 2, Name: "node2", Bytes: 500 << 20, BytesPerSec: 100 << 20, State: "receiving"},
			{Node: 3, Name: "node3", Bytes: second, BytesPerSec: 0, State: "ejected", Reason: "no progress for 2s"}}}
}

func TestPrintStatus(t *testing.T) {
	st := admin.Status{Cluster: "0123abcd", Node: 2, State: "serving", Leader: 1, Quorum: true, Voters: []uint32{1, 2},
		AppliedIndex: 42,
		Digest:       "feed", DigestIndex: 40, Files: 3, Bytes: 5 << 30, Fabric: "verbs:mlx5_0/1 (24 pairs), tcp",
		ControlRings: 5,
		Warnings:     []string{"one voter only: join two more nodes"},
		Nodes: []admin.Node{
			{ID: 1, Name: "node1", Addr: "10.0.0.1:7400", State: "up", LastSeen: printTime.Add(-time.Second)},
			{ID: 2, Name: "node2", Addr: "10.0.0.2:7400", State: "up"},
			{ID: 3, Name: "node3", Addr: "10.0.0.3:7400", State: "down", Reason: "no lease",
				LastSeen: printTime.Add(-3 * time.Hour), BehindIndex: 1, OwedCount: 1, OwedBytes: 1 << 20, OwedReason: "down"}},
		Transfers:   []admin.Transfer{sampleTransfer(0)},
		Unpublished: []admin.Unpublished{{ID: "00ff", Path: "b.tmp", SizeBytes: 12, Reason: "its writer was killed"}},
		Mounts:      []admin.Mount{{Dir: "/mnt/s", State: "mounted"}},
		Passthrough: admin.Feature{Why: "kernel 6.1", Cost: "writes go through the daemon"},
		Space:       admin.Space{TotalBytes: 100 << 30, FreeBytes: 60 << 30, State: "ok"}}
	var b bytes.Buffer
	printStatus(&b, st, printTime)
	want := `! one voter only: join two more nodes
cluster 0123abcd, 3 nodes, 2 files and directories, 5.00 GiB
leader node1, voters node1 node2; changes are possible
this is node2, serving; log index 42, namespace digest feed at 40
NODE  NAME   ADDRESS        STATE            SEEN    BEHIND   OWED
1     node1  10.0.0.1:7400  up               now     -        -
2     node2  10.0.0.2:7400  up               here    -        -
3     node3  10.0.0.3:7400  down (no lease)  3h ago  1 entry  1 content, 1.00 MiB (down)
transfer image.qcow2, 0.98 GiB, from node1
  node2        ############............  50%    100 MiB/s    5s receiving
  node3        ........................   0%        0 B/s ejected (no progress for 2s)
unpublished: b.tmp, 12 B, id 00ff: its writer was killed
mount /mnt/s: mounted, through the daemon
passthrough is off: kernel 6.1; writes go through the daemon
fabric verbs:mlx5_0/1 (24 pairs), tcp, 5 connections of control over RDMA; disk 60.0 GiB free of 100 GiB (ok)
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	for _, x := range []struct {
		change func()
		want   string
	}{
		{func() { st.Nodes[0].Unheard = true }, "up               now     ?        -"},
		{func() { st.Leader = 0 }, "changes wait until there is a leader"},
		{func() { st.ChangesRefused = "it is so" }, "changes fail here: it is so"},
		{func() { st.Quorum = false }, "NO QUORUM"},
		{func() { st.State = "rebuilding" }, "nothing is served here until the state is rebuilt"},
	} {
		x.change()
		b.Reset()
		printStatus(&b, st, printTime)
		if !strings.Contains(b.String(), x.want) {
			t.Errorf("it does not say %q:\n%s", x.want, b.String())
		}
	}
}

func TestProgressWithoutATerminalIsSparse(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	for i := range 30 {
		tr := sampleTransfer(int64(i) * 30 << 20)
		p.event(admin.Event{Time: printTime.Add(time.Duration(i) * 100 * time.Millisecond), Kind: "transfer", Transfer: &tr})
	}
	done := sampleTransfer(1000 << 20)
	done.Members[1].State, done.Members[1].Reason = "stored", ""
	done.Outcome, done.Started, done.Ended = "published", printTime, printTime.Add(3*time.Second)
	p.event(admin.Event{Time: printTime.Add(3 * time.Second), Kind: "transfer-end", Transfer: &done})
	want := []string{
		"image.qcow2, 0.98 GiB: node2 50%, node3 0% ejected",
		"image.qcow2, 0.98 GiB: node2 50%, node3 30% ejected",
		"image.qcow2, 0.98 GiB: node2 50%, node3 60% ejected",
		"published in 3s: image.qcow2, 0.98 GiB: node2 50%, node3 100%",
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(b.String()), "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestProgressOnATerminalDrawsInPlace(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	p.tty = true
	tr := sampleTransfer(0)
	for range 3 {
		p.event(admin.Event{Time: printTime, Kind: "transfer", Transfer: &tr})
	}
	if n := strings.Count(b.String(), "\x1b[3A\x1b[J"); n != 2 {
		t.Errorf("%d times over 3 lines: %q", n, b.String())
	}
	b.Reset()
	tr.Outcome, tr.Reason, tr.Started, tr.Ended = "failed", "1 of 2 copies stored", printTime, printTime.Add(time.Second)
	p.event(admin.Event{Time: printTime, Kind: "transfer-end", Transfer: &tr})
	p.event(admin.Event{Time: printTime, Kind: "message", Message: "hello"})
	if want := "\x1b[3A\x1b[Jfailed in 1s (1 of 2 copies stored): image.qcow2, 0.98 GiB: node2 50%, node3 0% ejected " +
		"(no progress for 2s)\nhello\n"; b.String() != want {
		t.Errorf("%q", b.String())
	}
}

// What is drawn over takes one row for each line, and no more rows than the terminal has: else the rows of an earlier
// draw would stay.
func TestDrawnLinesFitTheTerminal(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	p.tty, p.rows = true, func() int { return 6 }
	for i, name := range []string{"short", strings.Repeat("long/", 40), "third"} {
		tr := sampleTransfer(0)
		tr.Session, tr.Path = strconv.Itoa(i), name
		b.Reset()
		p.event(admin.Event{Kind: "transfer", Transfer: &tr})
		drawn, off, ok := strings.Cut(b.String(), wrapOn)
		if !ok || off != "" {
			t.Errorf("the terminal does not wrap lines any more: %q", b.String())
		}
		_, drawn, ok = strings.Cut(drawn, wrapOff)
		lines := strings.Split(strings.TrimSuffix(drawn, "\n"), "\n")
		if !ok || len(lines) != min(3*(i+1), 5) || p.drawn != len(lines) {
			t.Errorf("%d lines are drawn over, of %q", p.drawn, drawn)
		}
		if last := lines[len(lines)-1]; i > 0 && last != fmt.Sprintf("and %d lines more", 3*(i+1)-4) {
			t.Errorf("the last line is %q", last)
		}
	}
}

// A counter draws one row, however long the name is.
func TestCounterTakesOneRow(t *testing.T) {
	var b bytes.Buffer
	c := newCounter(&b, "restore of "+strings.Repeat("long/", 40)+"\x1b[2J")
	c.tty = true
	c.show(admin.Progress{Bytes: 1, SizeBytes: 2})
	if out := b.String(); !strings.HasPrefix(out, "\r\x1b[K"+wrapOff) || !strings.HasSuffix(out, wrapOn) ||
		strings.Contains(out, "\x1b[2J") {
		t.Errorf("%q", out)
	}
}

func TestSharesAreNeverRoundedUpToDone(t *testing.T) {
	for _, c := range []struct {
		done, all int64
		want      int
	}{{0, 100, 0}, {999999999999, 1000000000000, 99}, {5, 5, 100}, {0, 0, 100}, {6, 5, 100}, {1 << 60, 1 << 61, 50}} {
		if got := share(c.done, c.all, 100); got != c.want {
			t.Errorf("%d of %d: %d%%", c.done, c.all, got)
		}
	}
}

// Nothing that users or peers name reaches the terminal raw: no escape sequence, no line of its own, no byte that is
// not UTF-8.
func TestNamesAreEscaped(t *testing.T) {
	const evil = "x\x1b]0;owned\x07\n! forged\r\xff"
	tr := admin.Transfer{Session: "s", Path: evil, SizeBytes: 10, Outcome: "failed", Reason: evil,
		Members: []admin.TransferMember{{Name: evil, Reason: evil, State: "ejected"}}}
	st := admin.Status{Cluster: evil, Warnings: []string{evil}, Transfers: []admin.Transfer{tr}, Fabric: evil,
		Nodes: []admin.Node{{ID: 1, Name: evil, Addr: evil, State: "down", Reason: evil, OwedCount: 1, OwedReason: evil,
			BehindReason: evil}},
		Unpublished: []admin.Unpublished{{ID: "1", Path: evil, Reason: evil}}, Unresolved: []admin.Unresolved{{What: evil}},
		Mounts: []admin.Mount{{Dir: evil}}, Passthrough: admin.Feature{Why: evil, Cost: evil}}
	where := admin.Where{Policy: admin.Policy{Placement: "labels", Labels: map[string]string{evil: evil}},
		Holders: []admin.Holder{{Name: evil, Reason: evil}}}
	versions := []admin.Version{{Path: evil, Reason: evil, Content: evil, State: evil}}
	var b bytes.Buffer
	want := func(what string, lines int) {
		t.Helper()
		text := b.String()
		if strings.ContainsAny(text, "\x1b\x07\r\xff") || !utf8.ValidString(text) ||
			strings.Contains(text, "\n!") && what != "status" {
			t.Errorf("%s: %q", what, text)
		}
		if n := strings.Count(text, "\n"); lines > 0 && n != lines {
			t.Errorf("%s: %d lines, want %d: %q", what, n, lines, text)
		}
		b.Reset()
	}
	printStatus(&b, st, printTime)
	want("status", 14)
	p := newProgress(&b)
	p.event(admin.Event{Kind: "transfer", Transfer: &tr, Time: printTime})
	p.event(admin.Event{Kind: "transfer-end", Transfer: &tr})
	p.event(admin.Event{Kind: "node", Node: &st.Nodes[0]})
	p.event(admin.Event{Kind: "version", Version: &versions[0]})
	p.event(admin.Event{Kind: "message", Message: evil})
	p.event(admin.Event{Kind: "change", Change: &admin.Change{Path: evil, What: evil}})
	want("watch", 6)
	a := &app{out: &b}
	printWhere(a, evil, where)
	want("where", 3)
	printVersions(a, "", versions)
	want("versions", 2)
	printRemoved(a, []admin.Version{{Path: evil, RemoverName: evil, Content: evil, Removed: printTime,
		Expires: printTime}})
	want("removed files", 2)
	finish(&b, fmt.Errorf("open %s", evil))
	want("error", 1)
	if err := a.printJSON(versions); err != nil {
		t.Fatal(err)
	}
	var got []admin.Version
	if err := admin.Unmarshal(b.Bytes(), &got); err != nil || got[0].Path != evil {
		t.Errorf("JSON: %q, %v", b.String(), err)
	}
	want("JSON", 0)
}

// The ends of some transfers were missed: no transfer on the screen counts as running until the next news of it.
func TestTransfersWhoseEndWasMissedGo(t *testing.T) {
	var b strings.Builder
	p := newProgress(&b)
	p.tty = true
	for _, s := range []string{"runs", "ended"} {
		p.event(admin.Event{Kind: "transfer", Transfer: &admin.Transfer{Session: s, Path: "/" + s, SizeBytes: 10}})
	}
	p.event(admin.Event{Kind: "message", Message: "2 more transfers have ended"})
	b.Reset()
	p.event(admin.Event{Kind: "transfer", Transfer: &admin.Transfer{Session: "runs", Path: "/runs", SizeBytes: 10}})
	if out := b.String(); strings.Contains(out, "/ended") || !strings.Contains(out, "/runs") {
		t.Errorf("the screen shows %q", out)
	}
}

// Without a file, older versions are not listed: that there is nothing to list must not deny them.
func TestVersionsOfNoFileDenyNothing(t *testing.T) {
	var b bytes.Buffer
	printVersions(&app{out: &b}, "", nil)
	if !strings.Contains(b.String(), "'rdmcfs versions FILE' lists older versions") {
		t.Errorf("%q", b.String())
	}
}

// The audit trail says who did what, and whether it was done.
func TestAuditIsPrinted(t *testing.T) {
	dir := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--listen", "127.0.0.1:7400", "--data", dir)
	out := expect(t, exitcode.OK, "", "audit", "--data", dir)
	for _, want := range []string{
		"  n1    -          rdmcfs token          done\n",
		`  n1    1000 as 0  rdmcfs evict \x1b[2J  no node\n` + "\n",
		"  n2    0          rdmcfs drain n1       not ended\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	expect(t, exitcode.OK, `"login": 1000`, "audit", "--json", "--data", dir)
	expect(t, exitcode.OK, "", "stop", "--data", dir)
}
