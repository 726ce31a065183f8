package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// What no cluster can do is refused with the reason, and nothing is changed.
func TestPolicyThatCannotBeMet(t *testing.T) {
	const noLabel = "no node that takes new files has these labels"
	nodes := map[meta.NodeID]meta.Node{1: {Labels: map[string]string{"rack": "a"}}, 2: {},
		3: {State: meta.NodeEvicted, Labels: map[string]string{"disk": "ssd"}},
		4: {DrainIndex: 7, Labels: map[string]string{"disk": "hdd"}}}
	for _, c := range []struct {
		policy meta.Policy
		want   string // "" = accepted
	}{
		{meta.Policy{Placement: meta.PlaceAll}, ""},
		{meta.Policy{Placement: meta.PlaceAll, MinCopies: 2}, ""},
		{meta.Policy{Placement: meta.PlaceAll, MinCopies: 3}, "min-copies 3: 2 nodes take new files"},
		{meta.Policy{Placement: meta.PlaceCopies, Copies: 2}, ""},
		{meta.Policy{Placement: meta.PlaceCopies, Copies: 3}, "3 copies: 2 nodes take new files"},
		{meta.Policy{Placement: meta.PlaceCopies, Copies: 4_000_000_000}, "4000000000 copies: 2 nodes take new files"},
		{meta.Policy{Placement: meta.PlaceLabels, Labels: map[string]string{"rack": "a"}}, ""},
		{meta.Policy{Placement: meta.PlaceLabels, Labels: map[string]string{"rack": "a"}, MinCopies: 2},
			"min-copies 2: 1 node has these labels"},
		{meta.Policy{Placement: meta.PlaceLabels, Labels: map[string]string{"rack": "b"}}, noLabel},
		{meta.Policy{Placement: meta.PlaceLabels, Labels: map[string]string{"disk": "ssd"}}, noLabel},
		{meta.Policy{Placement: meta.PlaceLabels, Labels: map[string]string{"disk": "hdd"}}, noLabel},
		{meta.Policy{Placement: meta.PlaceLabels, Labels: map[string]string{"rack": "a", "disk": "ssd"}},
			noLabel},
	} {
		err := canBeMet(&c.policy, nodes)
		var refused *admin.Error
		if c.want == "" && err != nil || c.want != "" &&
			(!errors.As(err, &refused) || refused.Code != admin.CodeInvalid || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.policy, err, c.want)
		}
	}
}

// A directory with somebody's files is not made a data directory, and is left as it was.
func TestDataDirectoryWithOtherFiles(t *testing.T) {
	for name, want := range map[string]error{"thesis.tex": ErrForeignFiles, "lost+found": nil, "raft": nil, "tls": nil,
		"log": nil} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Init(InitConfig{DataDir: dir, Listen: "127.0.0.1:0", Advertise: "127.0.0.1:7400"})
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
		if entries, _ := os.ReadDir(dir); want != nil && len(entries) != 1 {
			t.Errorf("%s: %v", name, entries)
		}
	}
}

// A directory whose path is too long for the socket in it is refused before anything is made: its daemon would not
// start.
func TestDataDirectoryWithALongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	_, err := Init(InitConfig{DataDir: dir, Listen: "127.0.0.1:0", Advertise: "127.0.0.1:7400"})
	if !errors.Is(err, admin.ErrLongPath) {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
}

// Of a join that was refused nothing is left: neither a new directory, nor what came into an empty one. What was there
// before stays: the key of a join that may have been taken, and other files.
func TestRefusedJoinLeavesNothing(t *testing.T) {
	names := func(dir string) (out []string) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	for name, c := range map[string]struct {
		before func(d dataDir)
		stays  bool // the directory
		within []string
	}{
		"new":   {before: func(dataDir) {}},
		"empty": {func(d dataDir) { os.MkdirAll(string(d), 0o700) }, true, nil},
		"after a join without an answer": {func(d dataDir) {
			if _, err := d.tls().JoinRequest(); err != nil {
				t.Fatal(err)
			}
		}, true, []string{"tls"}},
		"formatted": {func(d dataDir) { os.MkdirAll(d.path("lost+found"), 0o700) }, true, []string{"lost+found"}},
	} {
		above := t.TempDir()
		d := dataDir(filepath.Join(above, "a", "b"))
		c.before(d)
		missing := d.missing()
		claimed, err := d.claim(Host{}, "127.0.0.1:0", "")
		if err == nil {
			_, err = d.tls().JoinRequest()
		}
		if err != nil {
			t.Fatal(err)
		}
		err = removeMade(missing)
		if errors.Join(err, claimed.Close()) != nil {
			t.Fatal(err)
		}
		if got := names(string(d)); !slices.Equal(got, c.within) || c.stays != (len(names(above)) == 1) {
			t.Errorf("%s: there is %v, in %v", name, got, names(above))
		}
	}
}

// An init that was cut short while it wrote node.json can be repeated.
func TestDataDirectoryOfAnInitThatWasCutShort(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "node.json.new"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(InitConfig{DataDir: dir, Listen: "127.0.0.1:0", Advertise: "127.0.0.1:7400"}); err != nil {
		t.Error(err)
	}
}

// What says where files live is judged when it changes: another setting can be changed though nodes have gone since.
func TestPolicyOfMoreNodesThanThereAreNow(t *testing.T) {
	now := meta.Policy{Placement: meta.PlaceCopies, Copies: 3, MinCopies: 2}
	for name, c := range map[string]struct {
		change func(p *meta.Policy)
		placed bool
	}{
		"nothing":    {func(*meta.Policy) {}, false},
		"retain":     {func(p *meta.Policy) { p.Retain = 4 }, false},
		"ack":        {func(p *meta.Policy) { p.AckLocal = true }, false},
		"copies":     {func(p *meta.Policy) { p.Copies = 2 }, true},
		"min-copies": {func(p *meta.Policy) { p.MinCopies = 1 }, true},
		"all":        {func(p *meta.Policy) { p.Placement, p.Copies = meta.PlaceAll, 0 }, true},
		"labels": {func(p *meta.Policy) {
			p.Placement, p.Copies, p.Labels = meta.PlaceLabels, 0, map[string]string{"a": "b"}
		}, true},
	} {
		next := now
		c.change(&next)
		if placesElsewhere(now, &next) != c.placed {
			t.Errorf("%s: %+v", name, next)
		}
	}
}
