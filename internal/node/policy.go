package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// priorityWords are the classes in answers: the normal one is left out.
var priorityWords = map[meta.Priority]string{meta.PriorityLow: "low", meta.PriorityHigh: "high"}

var placementWords = map[meta.Placement]string{
	meta.PlaceAll: "all", meta.PlaceCopies: "copies", meta.PlaceLabels: "labels",
}

// policies are the policies of directories, as the command line shows and changes them.
type policies struct {
	db       *meta.DB
	members  *members
	paths    *paths
	proposer *proposer
}

// of reads a policy for the command line.
func (ps *policies) of(id meta.PolicyID) (admin.Policy, error) {
	p, err := ps.db.Policy(id)
	if err != nil {
		return admin.Policy{}, fmt.Errorf("node: policy %d: %w", id, err)
	}
	out := PolicyWords(p)
	out.Unmet = whyUnmet(&p, ps.members.book().nodes)
	return out, nil
}

// PolicyWords is a policy as the command line has it.
func PolicyWords(p meta.Policy) admin.Policy {
	return admin.Policy{Placement: placementWords[p.Placement], Copies: p.Copies, Labels: p.Labels,
		MinCopies: p.MinCopies, AckLocal: p.AckLocal, Retain: p.Retain,
		KeepRemoved: time.Duration(p.KeepRemoved), SendRate: p.SendRate, Priority: priorityWords[p.Priority]}
}

// setsPolicy reports whether a request changes a policy.
func setsPolicy(req admin.PolicyRequest) bool {
	return req.Set != nil || req.Change != nil || req.Inherit
}

// showOrSet shows or changes which nodes hold the files that are made under a directory from now on.
func (ps *policies) showOrSet(ctx context.Context, req admin.PolicyRequest) (admin.Policy, error) {
	ino, clean, err := ps.paths.lookup(req.Path)
	if err != nil {
		return admin.Policy{}, err
	}
	if !setsPolicy(req) {
		return ps.of(ino.Policy)
	}
	if ino.Kind != meta.KindDir {
		return admin.Policy{}, admin.Errorf(admin.CodeInvalid,
			"%s is not a directory: a policy belongs to a directory and holds for what is made in it", clean)
	}
	if c := req.Change; c != nil {
		if req.Set != nil || req.Inherit {
			return admin.Policy{}, admin.Errorf(admin.CodeInvalid, "'change' goes alone: without 'set' and 'inherit'")
		}
		if c.Placement == "" && (c.Copies != 0 || len(c.Labels) > 0) {
			return admin.Policy{}, admin.Errorf(admin.CodeInvalid, "'copies' and 'labels' go with a 'placement'")
		}
	}
	s := policySetter{policies: ps, req: req, made: map[meta.PolicyID]*meta.Policy{}}
	if err := s.set(ctx, ino); err != nil {
		return admin.Policy{}, err
	}
	if ino, err = ps.db.Inode(ino.Ino); err != nil {
		return admin.Policy{}, err
	}
	return ps.of(ino.Policy)
}

// policySetter does what a request says to the policies of directories.
type policySetter struct {
	*policies
	req  admin.PolicyRequest
	made map[meta.PolicyID]*meta.Policy // the new policies, by those that the directories had
}

// set sets the policy of a directory, and of the directories below if the request says so. If one of them can't have
// its new policy, none gets one.
func (s policySetter) set(ctx context.Context, top meta.Inode) error {
	if !s.req.Recursive {
		return s.setOne(ctx, top)
	}
	check := func(_ context.Context, dir meta.Inode) error { _, err := s.wanted(dir.Policy); return err }
	if err := s.walk(ctx, top, check); err != nil {
		return err
	}
	return s.walk(ctx, top, s.setOne)
}

// walk visits a directory and then those below.
func (s policySetter) walk(ctx context.Context, dir meta.Inode, visit func(context.Context, meta.Inode) error) error {
	if err := visit(ctx, dir); err != nil {
		return s.named(dir.Ino, err)
	}
	const batch = 1000
	for after := ""; ; {
		entries, err := s.db.ReadDir(dir.Ino, after, batch, s.proposer.lease())
		if err != nil {
			return err
		}
		for _, e := range entries {
			after = e.Name
			if e.Kind != meta.KindDir {
				continue
			}
			sub, err := s.db.Inode(e.Ino)
			if errors.Is(err, meta.ErrNotFound) {
				continue // it was removed just now
			}
			if err == nil {
				err = s.walk(ctx, sub, visit)
			}
			if err != nil {
				return err
			}
		}
		if len(entries) < batch {
			return nil
		}
	}
}

// named adds to a refusal which directory below it is about.
func (s policySetter) named(dir meta.Ino, err error) error {
	var refused *admin.Error
	name, perr := s.paths.of(dir)
	if perr != nil || !errors.As(err, &refused) || name == path.Clean("/"+s.req.Path) ||
		strings.HasPrefix(refused.Message, "/") {
		return err
	}
	return admin.Errorf(refused.Code, "%s: %s", name, refused.Message)
}

func (s policySetter) setOne(ctx context.Context, dir meta.Inode) error {
	p, err := s.wanted(dir.Policy)
	if err != nil {
		return err
	}
	res, err := s.proposer.request(ctx, &meta.SetPolicy{Dir: dir.Ino, Policy: p})
	if err == nil && res.Errno != 0 {
		err = res.Errno
	}
	if err != nil {
		return adminError("set policy", err)
	}
	return nil
}

// wanted is the policy that a directory gets instead of the one that it has; nil where it inherits again.
func (s policySetter) wanted(id meta.PolicyID) (*meta.Policy, error) {
	if s.req.Set == nil && s.req.Change == nil {
		return nil, nil
	}
	if p := s.made[id]; p != nil {
		return p, nil
	}
	now, err := s.db.Policy(id)
	if err != nil {
		return nil, fmt.Errorf("node: policy %d: %w", id, err)
	}
	var words admin.Policy
	if s.req.Set != nil {
		words = *s.req.Set
	} else {
		words = changed(PolicyWords(now), *s.req.Change)
	}
	p, err := parsePolicy(words)
	if err != nil {
		return nil, err
	}
	if placesElsewhere(now, p) {
		if err := canBeMet(p, s.members.book().nodes); err != nil {
			return nil, err
		}
	}
	s.made[id] = p
	return p, nil
}

// changed is a policy with the settings of a change.
func changed(p admin.Policy, by admin.PolicyChange) admin.Policy {
	if by.Placement != "" {
		p.Placement, p.Copies, p.Labels = by.Placement, by.Copies, by.Labels
	}
	if by.MinCopies != nil {
		p.MinCopies = *by.MinCopies
	}
	if by.AckLocal != nil {
		p.AckLocal = *by.AckLocal
	}
	if by.Retain != nil {
		p.Retain = *by.Retain
	}
	if by.KeepRemoved != nil {
		p.KeepRemoved = *by.KeepRemoved
	}
	if by.SendRate != nil {
		p.SendRate = *by.SendRate
	}
	if by.Priority != nil {
		p.Priority = *by.Priority
	}
	return p
}

// placesElsewhere reports whether a policy would place files on other nodes than the present one does.
func placesElsewhere(now meta.Policy, set *meta.Policy) bool {
	return now.Placement != set.Placement || now.Copies != set.Copies || now.MinCopies != set.MinCopies ||
		!maps.Equal(now.Labels, set.Labels)
}

// whyUnmet says why the cluster has too few nodes for a policy: each close fails, or makes fewer copies than the policy
// says. It is "" if it has enough.
func whyUnmet(p *meta.Policy, nodes map[meta.NodeID]meta.Node) string {
	if err := canBeMet(p, nodes); err != nil {
		return err.Error()
	}
	return ""
}

// canBeMet refuses a policy that the cluster has too few nodes for. Nodes that are draining take no files.
func canBeMet(p *meta.Policy, nodes map[meta.NodeID]meta.Node) error {
	all, labelled := 0, 0
	for _, rec := range nodes {
		if rec.State == meta.NodeEvicted || rec.DrainIndex != 0 {
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
		return admin.Errorf(admin.CodeInvalid, "%d copies: %s new files", p.Copies, takeText(all))
	case p.Placement == meta.PlaceLabels && labelled == 0:
		return admin.Errorf(admin.CodeInvalid,
			"no node that takes new files has these labels: 'rdmcfs status --json' shows what each node has; "+
				"labels are given at join")
	case p.Placement == meta.PlaceLabels && int(p.MinCopies) > labelled:
		return admin.Errorf(admin.CodeInvalid, "min-copies %d: %s these labels", p.MinCopies, haveText(labelled))
	case uint64(p.MinCopies) > uint64(all):
		return admin.Errorf(admin.CodeInvalid, "min-copies %d: %s new files", p.MinCopies, takeText(all))
	}
	return nil
}

func takeText(n int) string {
	if n == 1 {
		return "1 node takes"
	}
	return fmt.Sprintf("%d nodes take", n)
}

func haveText(n int) string {
	if n == 1 {
		return "1 node has"
	}
	return fmt.Sprintf("%d nodes have", n)
}

// unmetPolicies says which policies that files are placed by can't be met by the present nodes, and how many file
// versions that concerns. The contents are looked through only if there are such policies.
func unmetPolicies(db *meta.DB, m *members) (out []string, err error) {
	nodes := m.book().nodes
	for id := meta.PolicyID(1); ; id++ {
		p, err := db.Policy(id)
		if errors.Is(err, meta.ErrNotFound) {
			return out, nil
		} else if err != nil {
			return out, err
		}
		why := whyUnmet(&p, nodes)
		if why == "" {
			continue
		}
		if count, err := db.UnderPolicy(id); err != nil {
			return out, err
		} else if count > 0 {
			out = append(out, fmt.Sprintf("%d file versions have a policy that can't be met (%s): join a node or end a "+
				"drain; 'rdmcfs policy' sets another one for new files", count, why))
		}
	}
}

// unmetLook remembers for status which policies can't be met: a look is good for drainLookShare times as long as it
// took.
type unmetLook struct {
	mu   sync.Mutex
	says []string
	next time.Time
}

func (l *unmetLook) of(db *meta.DB, m *members) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	began := time.Now()
	if began.Before(l.next) {
		return l.says, nil
	}
	says, err := unmetPolicies(db, m)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	l.says, l.next = says, now.Add(drainLookShare*now.Sub(began))
	return says, nil
}

// parsePolicy checks what a user asked for.
func parsePolicy(p admin.Policy) (*meta.Policy, error) {
	if p.KeepRemoved < 0 || uint64(p.KeepRemoved) > meta.KeepRemovedMax {
		return nil, admin.Errorf(admin.CodeInvalid, "keep-removed %v: want 0 to %v", p.KeepRemoved,
			time.Duration(meta.KeepRemovedMax))
	}
	out := &meta.Policy{Copies: p.Copies, Labels: p.Labels, MinCopies: p.MinCopies, AckLocal: p.AckLocal, Retain: p.Retain,
		KeepRemoved: uint64(p.KeepRemoved), SendRate: p.SendRate}
	if p.SendRate != 0 && p.SendRate < meta.SendRateMin {
		return nil, admin.Errorf(admin.CodeInvalid, "send-rate: want 0 or at least %d bytes a second (1 Mbit/s)",
			meta.SendRateMin)
	}
	switch p.Priority {
	case "", "normal":
	case "low":
		out.Priority = meta.PriorityLow
	case "high":
		out.Priority = meta.PriorityHigh
	default:
		return nil, admin.Errorf(admin.CodeInvalid, "priority %q: want low, normal or high", p.Priority)
	}
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
