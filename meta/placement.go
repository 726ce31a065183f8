package meta

import "sort"

// Placement, and which nodes hold what.
//
// The log never lists the holders of each content of a policy that covers all nodes: 10^8 files times 512 nodes
// would be too much. It believes that a node holds a content when the node is assigned to it and nothing says
// otherwise. For that to be sound, an assignment must never come about silently:
//
//   - PlaceAll, PlaceLabels: assignment depends on the node's own labels only. Labels are fixed at join, and a
//     join (also a replacing one) begins with everything published so far in the node's backlog.
//   - PlaceCopies: assignment depends on which other nodes there are, so the assigned nodes are written into the
//     content's record at publish (Placed). Joins and evictions change [cluster.members] but not Placed: nobody is
//     believed to hold because another left. A node enters Placed only by saying Held, and leaves it only by Release.
//     A publish may say that members have no room: the next nodes stand in for them, as for members that are down, and
//     are written into Placed beside them. So are other nodes that the policy allows and that have a copy, as many as
//     there are members without one: they stood in for members that are back when the publish is applied.
//   - Policies are never changed; a directory, or the default, is pointed at another one.
//
// Said otherwise, in this order: an owed row (node up at publish, no vote; or lost later); the backlog, ranges of
// publish indexes the node was not up for; published after the node went down, while it is down.
//
// What is owed to a node is what it is assigned to and not believed to hold, and further, for PlaceCopies, what it is
// a member for now without being in Placed, for contents in its backlog (it joined or came back) or below its Recheck
// mark (another was evicted). A down node's substitute thus gets new contents, but a mere restart moves no old ones;
// an eviction makes the others look, and so does a drain. A node that is draining is a member of nothing, is owed
// nothing, and is believed to hold what it held; see apply_drain.go.

// matches reports whether the labels of a node satisfy the labels that a policy asks for.
func (p *Policy) matches(n *nodeRecord) bool {
	for k, v := range p.Labels {
		if n.Labels[k] != v {
			return false
		}
	}
	return true
}

// eligible reports whether a policy could place on the node at all.
func (p *Policy) eligible(n *nodeRecord) bool {
	if n == nil || n.State == NodeEvicted {
		return false
	}
	return p.Placement == PlaceAll || p.matches(n)
}

// members is the placement of a policy for an inode over the present nodes that are not draining, ascending.
func (c *cluster) members(p *Policy, ino Ino) []NodeID { return c.membersBeside(p, ino, nil) }

// membersBeside is members for a content that nodes have no room for: with PlaceCopies others stand in for them.
func (c *cluster) membersBeside(p *Policy, ino Ino, full []NodeID) []NodeID {
	out := c.candidates(p)
	if p.Placement == PlaceCopies {
		out = c.pick(out, int(p.Copies), ino, full)
	}
	return out
}

// candidates are the nodes that a policy may place on, ascending.
func (c *cluster) candidates(p *Policy) (out []NodeID) {
	for _, n := range c.nodes {
		if p.eligible(n) && !n.draining() {
			out = append(out, n.ID)
		}
	}
	return out
}

// rackLabel is the label that distinguishes failure domains.
const rackLabel = "rack"

// pick chooses copies nodes in rendezvous order of the inode, distinct racks first. For each chosen node that is not
// up, or is full, the next node that is up and not full joins as its substitute.
func (c *cluster) pick(from []NodeID, copies int, ino Ino, full []NodeID) []NodeID {
	order := append([]NodeID(nil), from...)
	weight := make(map[NodeID]uint64, len(order))
	for _, n := range order {
		weight[n] = rendezvous(ino, n)
	}
	sort.Slice(order, func(i, j int) bool {
		a, b := order[i], order[j]
		return weight[a] > weight[b] || weight[a] == weight[b] && a < b
	})
	order = c.spread(order)
	chosen, substitutes := order[:min(copies, len(order))], 0
	takes := func(n NodeID) bool { return c.node(n).State == NodeUp && !contains(full, n) }
	for _, n := range chosen {
		if !takes(n) {
			substitutes++
		}
	}
	out := append([]NodeID(nil), chosen...)
	for _, n := range order[len(chosen):] {
		if substitutes > 0 && takes(n) {
			out = append(out, n)
			substitutes--
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

// spread moves the first node of each rack ahead of the second ones, keeping order otherwise.
func (c *cluster) spread(order []NodeID) []NodeID {
	seen := map[string]bool{}
	first, rest := make([]NodeID, 0, len(order)), []NodeID(nil)
	for _, n := range order {
		rack := c.node(n).Labels[rackLabel]
		if rack == "" || !seen[rack] {
			seen[rack] = true
			first = append(first, n)
		} else {
			rest = append(rest, n)
		}
	}
	return append(first, rest...)
}

// rendezvous is the weight of a node for an inode.
func rendezvous(ino Ino, n NodeID) uint64 {
	x := uint64(ino)*0x9e3779b97f4a7c15 ^ uint64(n)*0xd1342543de82ef95
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// minVotes is how many members must hold a content before it may be published.
func (c *cluster) minVotes(p *Policy, members []NodeID) int {
	if p.AckLocal {
		return 1
	}
	if p.MinCopies > 0 {
		return int(p.MinCopies)
	}
	up := 0
	for _, n := range members {
		if c.node(n).State == NodeUp {
			up++
		}
	}
	return max(1, min(2, up))
}

// assigned reports whether the node is to hold the content by what was decided at its publish.
func (c *cluster) assigned(n *nodeRecord, rec *contentRecord) bool {
	p := c.policy(rec.Policy)
	if p == nil || !p.eligible(n) {
		return false
	}
	return p.Placement != PlaceCopies || contains(rec.Placed, n.ID)
}

// believes reports whether the log believes that the node holds the content.
func (c *cluster) believes(n *nodeRecord, rec *contentRecord) bool {
	switch {
	case n == nil || n.State == NodeEvicted:
		return false
	case rec.Inline: // its bytes came with the entry
		return n.State == NodeUp || n.State == NodeDown && rec.Published <= n.DownIndex
	case !c.assigned(n, rec) || contains(rec.Owed, n.ID) || inRanges(n.Backlog, rec.Published):
		return false
	case n.draining() && rec.Published > n.DrainIndex && !contains(rec.Placed, n.ID):
		return false
	}
	return n.State == NodeUp || rec.Published <= n.DownIndex
}

// owes reports whether the content is owed to the node other than by a row.
func (c *cluster) owes(n *nodeRecord, rec *contentRecord) bool {
	if rec.Inline || contains(rec.Owed, n.ID) || n.draining() {
		return false
	}
	missed := inRanges(n.Backlog, rec.Published) || n.State != NodeUp && rec.Published > n.DownIndex
	if c.assigned(n, rec) {
		return missed
	}
	p := c.policy(rec.Policy)
	if p == nil || p.Placement != PlaceCopies || !missed && !inRange(n.Recheck, rec.Published) {
		return false
	}
	return contains(c.members(p, rec.Ino), n.ID)
}

func inRange(r IndexRange, index uint64) bool { return r.Lo < index && index <= r.Hi }

func inRanges(rs []IndexRange, index uint64) bool { return seqSet(rs).has(index) }

func contains(nodes []NodeID, n NodeID) bool {
	for _, m := range nodes {
		if m == n {
			return true
		}
	}
	return false
}

// with returns nodes with n added, in order; the slice itself is left alone.
func with(nodes []NodeID, n NodeID) []NodeID {
	if contains(nodes, n) {
		return nodes
	}
	out := append(append([]NodeID(nil), nodes...), n)
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

// without returns nodes with n removed; the slice itself is left alone.
func without(nodes []NodeID, n NodeID) []NodeID {
	var out []NodeID
	for _, m := range nodes {
		if m != n {
			out = append(out, m)
		}
	}
	return out
}
