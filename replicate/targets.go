package replicate

import (
	"slices"
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// sessionNumbers gives out the session numbers of this node: dense from 1 in each incarnation. Every number
// ends in a publish or an abort.
type sessionNumbers struct {
	self func() meta.Lease

	mu    sync.Mutex
	lease meta.Lease
	last  uint64
}

func (s *sessionNumbers) next() meta.ContentID {
	lease := s.self()
	s.mu.Lock()
	defer s.mu.Unlock()
	// never back: another push may have seen the next one first
	if lease.Node != s.lease.Node || lease.Incarnation > s.lease.Incarnation {
		s.lease, s.last = lease, 0
	}
	s.last++
	return meta.ContentID{Node: s.lease.Node, Incarnation: s.lease.Incarnation, Seq: s.last}
}

// targets says which members are to get a version.
type targets struct {
	policy  meta.Policy
	ino     meta.Ino
	members []meta.NodeID // the placement, and nodes that belonged to it when the push began
	others  []meta.NodeID // of them, up, without this node
	self    bool          // this node is a member
	needed  int           // so many must hold the version before it is published, as apply counts
	full    []meta.NodeID // up and without room: members, and those that would stand in for them. They are not asked
	down    []meta.NodeID // of them, not up
	view    uint64        // as of which all that is said
	voters  int
	booted  map[meta.NodeID]uint32 // incarnations of the members that were up, as last looked at
}

// asked is how many nodes may get a copy now.
func (t *targets) asked() int {
	if t.self {
		return len(t.others) + 1
	}
	return len(t.others)
}

// localFirst reports whether the policy leaves the other members to catch-up.
func (t *targets) localFirst() bool { return t.policy.AckLocal && t.self }

// unasked adds the members that were not asked since they have no room.
func (t *targets) unasked(missed []meta.Missed) []meta.Missed {
	for _, n := range t.full {
		if !missing(missed, n) {
			missed = append(missed, meta.Missed{Node: n, Reason: meta.OwedFull})
		}
	}
	return missed
}

// rideInLog reports whether bytes go with the entry: all nodes are to have them, and the log has at least as many
// durable copies as the policy asks for.
func (t *targets) rideInLog(size int64) bool {
	return size <= meta.MaxInline && t.policy.Placement == meta.PlaceAll && t.voters >= inlineVoters &&
		int64(t.policy.MinCopies) <= int64(t.voters/2+1)
}

// lost returns the members without which too few have voted, that the log lists as up, and that may take the content a
// moment later.
func (t *targets) lost(votes []meta.NodeID, missed []meta.Missed) (out []meta.NodeID) {
	if len(votes) >= t.needed {
		return nil
	}
	for _, m := range missed {
		if session.MayPass(m.Reason) && slices.Contains(t.others, m.Node) {
			out = append(out, m.Node)
		}
	}
	return out
}

// choose reads the placement of a push from the applied log. Where a policy lets others stand in, members that have
// said that they have no room are not asked, unless too few would be left: what they said may be out of date.
func (p *Pusher) choose(push *Push) (targets, error) {
	nodes, err := p.cfg.Names.Nodes()
	if err != nil {
		return targets{}, err
	}
	lacking := p.rooms.lacking(nodes, push.bytes())
	all, err := p.chooseBeside(push, nil)
	if err != nil || len(lacking) == 0 || all.policy.Placement != meta.PlaceCopies {
		return all, err
	}
	t := all
	for {
		full := slices.DeleteFunc(slices.Clone(t.others), func(n meta.NodeID) bool { return !slices.Contains(lacking, n) })
		if len(full) == 0 {
			break
		}
		if t, err = p.chooseBeside(push, append(full, t.full...)); err != nil {
			return all, err
		}
	}
	if t.asked() < t.needed {
		return all, nil
	}
	return t, nil
}

// chooseBeside reads the placement of a push that some nodes have no room for. They are not asked.
func (p *Pusher) chooseBeside(push *Push, full []meta.NodeID) (targets, error) {
	names := p.cfg.Names
	t := targets{view: names.View(), booted: make(map[meta.NodeID]uint32), full: full, ino: push.Ino}
	policy, err := p.policyOf(push)
	if err != nil {
		return t, err
	}
	if t.policy, err = names.Policy(policy); err != nil {
		return t, err
	}
	if t.members, t.needed, err = names.PlaceNew(policy, push.Ino, full); err != nil {
		return t, err
	}
	nodes, err := names.Nodes()
	if err != nil {
		return t, err
	}
	self := p.cfg.Self().Node
	for _, n := range nodes {
		if n.Voter {
			t.voters++
		}
		t.add(n, self)
	}
	return t, nil
}

// refresh looks at the members again. gone lists the members that were up when last looked at, and are now down or in a
// new incarnation: apply takes no vote of the incarnation that ended. Members that are back are among the others, and
// so are nodes that stand in for members since these were declared down.
func (p *Pusher) refresh(t *targets) (gone []meta.NodeID) {
	_, gone = p.look(t)
	return gone
}

// look is refresh, with what it saw.
func (p *Pusher) look(t *targets) (e session.View, gone []meta.NodeID) {
	t.placeAgain(p.cfg.Names)
	others := slices.DeleteFunc(slices.Clone(t.members), func(id meta.NodeID) bool {
		return id == p.cfg.Self().Node || slices.Contains(t.full, id)
	})
	e = looked(p.cfg.Names, others)
	t.others = nil
	for _, v := range e.Nodes {
		if was, ok := t.booted[v.Node]; ok && (!v.Up || v.Incarnation != was) {
			gone = append(gone, v.Node)
		}
		delete(t.booted, v.Node)
		if v.Up {
			t.booted[v.Node] = v.Incarnation
			t.others = append(t.others, v.Node)
		}
	}
	e.Need = t.needed
	if t.self {
		e.Need--
	}
	return e, gone
}

// placeAgain adds the nodes that have become members since the last look. What nodes that are no members any more have
// stored counts all the same.
func (t *targets) placeAgain(names meta.Reader) {
	view := names.View() // first: a later boot makes apply refuse the vote rather than count it wrongly
	if view == t.view {
		return
	}
	t.view = view
	members, needed, err := names.PlaceNew(t.policy.ID, t.ino, t.full)
	if err != nil {
		return // apply counts once more
	}
	t.needed = needed
	for _, n := range members {
		if !slices.Contains(t.members, n) {
			t.members = append(t.members, n)
		}
	}
}

// looked is what the applied log says of nodes; no votes are needed.
func looked(names meta.Reader, nodes []meta.NodeID) (e session.View) {
	for _, id := range nodes {
		if n, err := names.Node(id); err == nil {
			e.Nodes = append(e.Nodes, session.NodeView{Node: id, Up: n.State == meta.NodeUp, Incarnation: n.Incarnation})
		}
	}
	return e
}

func (t *targets) add(n meta.Node, self meta.NodeID) {
	member := false
	for _, m := range t.members {
		member = member || m == n.ID
	}
	switch {
	case !member:
	case n.ID == self:
		t.self = true
	case slices.Contains(t.full, n.ID):
	case n.State == meta.NodeUp:
		t.others = append(t.others, n.ID)
		t.booted[n.ID] = n.Incarnation
	default:
		t.down = append(t.down, n.ID)
	}
}

// policyOf is the policy of the inode, of the directory it will be linked in, or the default for an orphan.
func (p *Pusher) policyOf(push *Push) (meta.PolicyID, error) {
	ino := push.Ino
	if push.LinkName != "" {
		ino = push.LinkParent
	}
	i, err := p.cfg.Names.Inode(ino)
	if isNotFound(err) {
		return 0, nil
	}
	return i.Policy, err
}
