package main

import (
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// A drain ends with 0 when nothing depends on the node, and else says what does, with names that can't hurt a terminal.
func TestDrainedSaysWhatIsLeft(t *testing.T) {
	for _, c := range []struct {
		state admin.DrainState
		says  []string
		not   string
	}{
		{state: admin.DrainState{Draining: true}},
		{state: admin.DrainState{Name: "n2"}, says: []string{"n2 does not drain any more"}},
		{state: admin.DrainState{Draining: true, NeededCount: 3, StuckCount: 3, Needed: []string{"/a", "/b\n"}},
			says: []string{"3 file versions", "; /a; ", `/b\n; `, "and 1 more"}},
		{state: admin.DrainState{Name: "n2", Draining: true, UnpublishedCount: 1,
			Unpublished: []admin.Unpublished{{Path: "/\x1b[2J"}}},
			says: []string{"1 unpublished file on n2", `/\x1b[2J`}},
		{state: admin.DrainState{Name: "n2", Draining: true, UnpublishedCount: 3, OpenCount: 2,
			Unpublished: []admin.Unpublished{{Path: "/a", Reason: "no quorum\n"}, {Path: "/b", Reason: "it is open"}}},
			says: []string{"1 unpublished file on n2: publish or drop them there with 'rdmcfs restore'",
				"2 files open for writing on n2, which close publishes", `; /a: no quorum\n; /b: it is open; and 1 more`}},
		{state: admin.DrainState{Name: "n2", Draining: true, UnpublishedCount: 1, OpenCount: 1},
			says: []string{"1 file open for writing on n2, which close publishes"}, not: "restore"},
		{state: admin.DrainState{Name: "n2", Draining: true, Unasked: "it does not run"},
			says: []string{"n2 could not be asked", "it does not run"}},
	} {
		err := drained(c.state)
		if len(c.says) == 0 {
			if err != nil {
				t.Errorf("%+v: %v", c.state, err)
			}
			continue
		}
		if err == nil || codeOf(err) != exitcode.Needed {
			t.Errorf("%+v: %v, want code %d", c.state, err, exitcode.Needed)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: no %q in %q", c.state, want, err)
			}
		}
		if c.not != "" && strings.Contains(err.Error(), c.not) {
			t.Errorf("%+v: %q is in %q", c.state, c.not, err)
		}
	}
}

func TestStatusShowsDrains(t *testing.T) {
	for want, n := range map[string]admin.Node{
		"": {NeededCount: 1}, ", drained": {Draining: true},
		", draining: 2 contents, 10 B": {Draining: true, NeededCount: 2, NeededBytes: 10},
	} {
		if got := drainText(n); got != want {
			t.Errorf("%+v: %q, want %q", n, got, want)
		}
	}
}

func TestWatchShowsDrains(t *testing.T) {
	for want, n := range map[string]admin.Node{
		"n2 is evicted (sold)\n": {Name: "n2", State: "evicted", Reason: "sold"},
		"n2 is up, drained\n":    {Name: "n2", State: "up", Draining: true},
	} {
		var out strings.Builder
		newProgress(&out).event(admin.Event{Kind: "node", Node: &n})
		if out.String() != want {
			t.Errorf("%+v: %q, want %q", n, out.String(), want)
		}
	}
}
