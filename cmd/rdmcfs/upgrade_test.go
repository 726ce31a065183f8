package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
)

func TestPrintUpgrade(t *testing.T) {
	st := admin.Upgrade{Format: 1, Common: 1, Newest: 2, Nodes: []admin.UpgradeNode{
		{ID: 1, Name: "n1", State: "up", Version: "v1.1\x1b[2J", OldestFormat: 1, NewestFormat: 2},
		{ID: 2, Name: "n2", State: "down", Version: "v1.0", OldestFormat: 1, NewestFormat: 1},
		{ID: 3, Name: "n3", State: "joined", OldestFormat: 1, NewestFormat: 1}}}
	table := `NODE  NAME  STATE   VERSION      FORMATS
1     n1    up      v1.1\x1b[2J  1 to 2
2     n2    down    v1.0         1
3     n3    joined               1
`
	for _, c := range []struct {
		format, common uint64
		want           string
	}{
		{1, 1, table + "The cluster uses format 1. Next: install the newer version on n2, n3.\n"},
		{1, 2, table + "The cluster uses format 1, and all nodes know 2: 'rdmcfs upgrade --finish' begins to use it.\n" +
			"Until then each node can go back to an older version.\n"},
		{2, 2, table + "The cluster uses format 2, the newest that its nodes know.\n"},
	} {
		st.Format, st.Common = c.format, c.common
		var b bytes.Buffer
		printUpgrade(&b, st)
		if diff := cmp.Diff(c.want, b.String()); diff != "" {
			t.Error(diff)
		}
	}
}

// status shows versions only while they differ, or while there is something to finish.
func TestStatusShowsVersionsThatDiffer(t *testing.T) {
	node := func(name, version string, newest uint64) admin.Node {
		return admin.Node{Name: name, Version: version, OldestFormat: 1, NewestFormat: newest}
	}
	for _, c := range []struct {
		nodes []admin.Node
		want  string
	}{
		{nil, ""},
		{[]admin.Node{node("a", "v1", 1), node("b", "v1", 1)}, ""},
		{[]admin.Node{node("a", "v1", 1), node("b", "v2", 2), node("c", "v1", 1)},
			"version v1 (format 1): a c\nversion v2 (format 1 to 2): b\n"},
		{[]admin.Node{node("a", "v2", 2), node("b", "v2", 2)},
			"the cluster uses format 1, and all nodes know 2: see 'rdmcfs upgrade'\n"},
	} {
		var b bytes.Buffer
		printPrograms(&b, admin.Status{Format: 1, Nodes: c.nodes})
		if b.String() != c.want {
			t.Errorf("%q, want %q", b.String(), c.want)
		}
	}
	var b bytes.Buffer
	printStatus(&b, admin.Status{Format: 1, Nodes: []admin.Node{node("a", "v2", 2)}}, printTime)
	if !strings.Contains(b.String(), "see 'rdmcfs upgrade'") {
		t.Errorf("%s", b.String())
	}
}
