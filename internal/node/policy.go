package node

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

var placementWords = map[meta.Placement]string{
	meta.PlaceAll: "all", meta.PlaceCopies: "copies", meta.PlaceLabels: "labels",
}

// policyOf reads a policy for the command line.
func (n *node) policyOf(id meta.PolicyID) (admin.Policy, error) {
	p, err := n.db.Policy(id)
	if err != nil {
		return admin.Policy{}, fmt.Errorf("node: policy %d: %w", id, err)
	}
	return admin.Policy{Placement: placementWords[p.Placement], Copies: p.Copies, Labels: p.Labels,
		MinCopies: p.MinCopies, AckLocal: p.AckLocal, Retain: p.Retain}, nil
}

// policy shows or changes where the files made under a directory from now on live.
func (n *node) policy(ctx context.Context, req admin.PolicyRequest) (admin.Policy, error) {
	ino, clean, err := n.lookup(req.Path)
	if err != nil {
		return admin.Policy{}, err
	}
	if req.Set == nil && !req.Inherit {
		return n.policyOf(ino.Policy)
	}
	if ino.Kind != meta.KindDir {
		return admin.Policy{}, admin.Errorf(admin.CodeInvalid,
			"%s is not a directory: a policy belongs to a directory and holds for what is made in it", clean)
	}
	var set *meta.Policy
	if req.Set != nil {
		if set, err = parsePolicy(*req.Set); err != nil {
			return admin.Policy{}, err
		}
		now, err := n.db.Policy(ino.Policy)
		if err != nil {
			return admin.Policy{}, fmt.Errorf("node: policy %d: %w", ino.Policy, err)
		}
		if placesElsewhere(now, set) {
			if err := canBeMet(set, n.members.book().nodes); err != nil {
				return admin.Policy{}, err
			}
		}
	}
	if err := n.setPolicy(ctx, ino.Ino, set, req.Recursive); err != nil {
		return admin.Policy{}, err
	}
	if ino, err = n.db.Inode(ino.Ino); err != nil {
		return admin.Policy{}, err
	}
	return n.policyOf(ino.Policy)
}

// setPolicy sets it on a directory, and on those below if recursive.
func (n *node) setPolicy(ctx context.Context, dir meta.Ino, p *meta.Policy, recursive bool) error {
	res, err := n.proposer.propose(ctx, &meta.SetPolicy{Dir: dir, Policy: p})
	if err == nil && res.Errno != 0 {
		err = res.Errno
	}
	if err != nil {
		return adminError("set policy", err)
	}
	if !recursive {
		return nil
	}
	const batch = 1000
	for after := ""; ; {
		entries, err := n.db.ReadDir(dir, after, batch, n.proposer.lease())
		if err != nil {
			return err
		}
		for _, e := range entries {
			after = e.Name
			if e.Kind == meta.KindDir {
				if err := n.setPolicy(ctx, e.Ino, p, true); err != nil {
					return err
				}
			}
		}
		if len(entries) < batch {
			return nil
		}
	}
}

// placesElsewhere tells whether a policy differs from the present one in who holds files.
func placesElsewhere(now meta.Policy, set *meta.Policy) bool {
	return now.Placement != set.Placement || now.Copies != set.Copies || now.MinCopies != set.MinCopies ||
		!maps.Equal(now.Labels, set.Labels)
}

// canBeMet refuses a policy that the cluster has too few nodes for: each close would fail, or make fewer copies than
// the policy says.
func canBeMet(p *meta.Policy, nodes map[meta.NodeID]meta.Node) error {
	all, labelled := 0, 0
	for _, rec := range nodes {
		if rec.State == meta.NodeEvicted {
			continue
		}
		all++
		if !slices.ContainsFunc(slices.Collect(maps.Keys(p.Labels)), func(k string) bool {
			return rec.Labels[k] != p.Labels[k]
		}) {
			labelled++
		}
	}
	switch {
	case p.Placement == meta.PlaceCopies && uint64(p.Copies) > uint64(all):
		return admin.Errorf(admin.CodeInvalid, "%d copies: the cluster has %s", p.Copies, nodesText(all))
	case p.Placement == meta.PlaceLabels && labelled == 0:
		return admin.Errorf(admin.CodeInvalid,
			"no node has these labels: 'rdmcfs status --json' shows what each node has; labels are given at join")
	case p.Placement == meta.PlaceLabels && int(p.MinCopies) > labelled:
		return admin.Errorf(admin.CodeInvalid, "min-copies %d: %s these labels", p.MinCopies, haveText(labelled))
	case uint64(p.MinCopies) > uint64(all):
		return admin.Errorf(admin.CodeInvalid, "min-copies %d: the cluster has %s", p.MinCopies, nodesText(all))
	}
	return nil
}

func nodesText(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

func haveText(n int) string {
	if n == 1 {
		return "1 node has"
	}
	return fmt.Sprintf("%d nodes have", n)
}

// parsePolicy checks what a user asked for.
func parsePolicy(p admin.Policy) (*meta.Policy, error) {
	out := &meta.Policy{Copies: p.Copies, Labels: p.Labels, MinCopies: p.MinCopies, AckLocal: p.AckLocal, Retain: p.Retain}
	switch p.Placement {
	case "all", "":
		out.Placement = meta.PlaceAll
	case "copies":
		out.Placement = meta.PlaceCopies
		if p.Copies == 0 {
			return nil, admin.Errorf(admin.CodeInvalid, "policy 'copies' wants a number of copies of at least 1")
		}
		if p.MinCopies > p.Copies {
			return nil, admin.Errorf(admin.CodeInvalid, "min-copies %d is more than the %d copies there will be", p.MinCopies,
				p.Copies)
		}
	case "labels":
		out.Placement = meta.PlaceLabels
		if len(p.Labels) == 0 {
			return nil, admin.Errorf(admin.CodeInvalid, "policy 'labels' wants at least one KEY=VALUE")
		}
	default:
		return nil, admin.Errorf(admin.CodeInvalid, "placement %q: want all, copies or labels", p.Placement)
	}
	return out, nil
}
