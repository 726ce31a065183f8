package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// policyAt reads the policy of a path, and changes it before if there is a change.
func policyAt(t *testing.T, ps *policies, path string, change *admin.PolicyChange, recursive bool) admin.Policy {
	t.Helper()
	p, err := ps.showOrSet(t.Context(), admin.PolicyRequest{Path: path, Change: change, Recursive: recursive})
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return p
}

func subdir(c *metatest.Cluster, parent meta.Ino, name string) meta.Ino {
	return c.Do(1, &meta.Create{Parent: parent, Name: name, Kind: meta.KindDir, Mode: 0o755}).Ino
}

// A change that goes down a tree changes what it names, and each directory keeps the rest of its own policy.
func TestPolicyOfATreeKeepsTheOtherSettings(t *testing.T) {
	n, c, d := keepingNode(t)
	ps := n.policies
	subdir(c, subdir(c, d, "sub"), "deep")
	dirs := []string{"/", "/d", "/d/sub", "/d/sub/deep", "/early", "/early/late"}
	subdir(c, subdir(c, meta.RootIno, "early"), "late")
	two, five, month, yes := uint32(2), uint32(5), 720*time.Hour, true
	policyAt(t, ps, "/d/sub", &admin.PolicyChange{Placement: "copies", Copies: 2, MinCopies: &two, Retain: &five}, false)
	policyAt(t, ps, "/d/sub/deep", &admin.PolicyChange{AckLocal: &yes}, false)
	check := func(what string, want ...admin.Policy) {
		t.Helper()
		for i, dir := range dirs {
			if diff := cmp.Diff(want[i], policyAt(t, ps, dir, nil, false)); diff != "" {
				t.Errorf("%s: %s: %s", what, dir, diff)
			}
		}
	}
	all := admin.Policy{Placement: "all"}
	sub := admin.Policy{Placement: "copies", Copies: 2, MinCopies: 2, Retain: 5, KeepRemoved: time.Hour}
	check("before", all, admin.Policy{Placement: "all", KeepRemoved: time.Hour}, sub,
		admin.Policy{Placement: "all", AckLocal: true, KeepRemoved: time.Hour}, all, all)
	policyAt(t, ps, "/", &admin.PolicyChange{KeepRemoved: &month}, true)
	all.KeepRemoved, sub.KeepRemoved = month, month
	deep := admin.Policy{Placement: "all", AckLocal: true, KeepRemoved: month}
	check("a time", all, all, sub, deep, all, all)
	policyAt(t, ps, "/d", &admin.PolicyChange{Placement: "all"}, true)
	sub.Placement, sub.Copies = "all", 0
	check("a placement", all, all, sub, deep, all, all)
	whole := admin.Policy{Placement: "all", Retain: 1}
	if _, err := ps.showOrSet(t.Context(), admin.PolicyRequest{Path: "/", Set: &whole, Recursive: true}); err != nil {
		t.Error(err)
	}
	check("a whole policy", whole, whole, whole, whole, whole, whole)
}

// A change that one directory of a tree can't have changes none.
func TestPolicyOfATreeIsSetWholeOrNotAtAll(t *testing.T) {
	n, c, d := keepingNode(t)
	ps := n.policies
	subdir(c, d, "sub")
	one, two := uint32(1), uint32(2)
	policyAt(t, ps, "/d/sub", &admin.PolicyChange{MinCopies: &two}, false)
	refused := func(want string, req admin.PolicyRequest) {
		t.Helper()
		_, err := ps.showOrSet(t.Context(), req)
		if admin.CodeOf(err) != admin.CodeInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", req, err, want)
		}
		if p := policyAt(t, ps, "/d", nil, false); p.Placement != "all" || p.Retain != 0 {
			t.Errorf("%+v: %+v", req, p)
		}
	}
	copies := &admin.PolicyChange{Placement: "copies", Copies: 1, Retain: &one}
	refused("/d/sub: min-copies 2 is more than the 1 copies", admin.PolicyRequest{Path: "/d", Change: copies,
		Recursive: true})
	refused("goes alone", admin.PolicyRequest{Path: "/d", Change: copies, Inherit: true})
	refused("with a 'placement'", admin.PolicyRequest{Path: "/d", Change: &admin.PolicyChange{Copies: 2}})
	policyAt(t, ps, "/d", copies, false)
}

// A cap and a class are set and shown, and what is neither is refused.
func TestPolicyOfCapAndClass(t *testing.T) {
	n, c, _ := keepingNode(t)
	subdir(c, meta.RootIno, "early")
	ps := n.policies
	rate, none, low, normal := uint64(50<<20), uint64(0), "low", "normal"
	got := policyAt(t, ps, "/early", &admin.PolicyChange{SendRate: &rate, Priority: &low}, false)
	if got.SendRate != rate || got.Priority != low {
		t.Errorf("%+v", got)
	}
	got = policyAt(t, ps, "/early", &admin.PolicyChange{Priority: &normal}, false)
	if got.SendRate != rate || got.Priority != "" {
		t.Errorf("%+v", got)
	}
	if got = policyAt(t, ps, "/early", &admin.PolicyChange{SendRate: &none}, false); got.SendRate != 0 {
		t.Errorf("%+v", got)
	}
	little, often := uint64(meta.SendRateMin-1), "often"
	for _, change := range []admin.PolicyChange{{SendRate: &little}, {Priority: &often}} {
		_, err := ps.showOrSet(t.Context(), admin.PolicyRequest{Path: "/early", Change: &change})
		if e := new(admin.Error); !errors.As(err, &e) || e.Code != admin.CodeInvalid {
			t.Errorf("%+v: %v", change, err)
		}
	}
}
