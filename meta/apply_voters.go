package meta

import (
	"slices"
	"syscall"
)

// electorate says which nodes vote in raft as of an entry: the voters, and during a joint change the voters before it
// too. Number 0 is a vote whose store was replaced.
type electorate struct{ Voters, Outgoing []NodeID }

func (e *electorate) code(c *fields) {
	c.nodes(&e.Voters)
	c.nodes(&e.Outgoing)
}

var votersKey = []byte{tableVoters}

// electorateOf returns the present electorate. Until the first change of the voters it is the node that began the
// cluster.
func electorateOf(t *tx) electorate {
	var e electorate
	if t.load(votersKey, &e) {
		return e
	}
	for _, n := range t.cl.nodes {
		if n != nil && n.Voter {
			e.Voters = append(e.Voters, n.ID)
		}
	}
	return e
}

// firstVoter reports whether nobody votes yet: the node that boots now is the cluster's first.
func firstVoter(t *tx) bool { return t.get(votersKey) == nil && len(electorateOf(t).Voters) == 0 }

func (t membership) setVoters(o *SetVoters) (Result, syscall.Errno) {
	for _, id := range slices.Concat(o.Voters, o.Outgoing) {
		if id != 0 && t.cl.node(id) == nil {
			return Result{}, syscall.EINVAL
		}
	}
	e := electorate(*o)
	t.save(votersKey, &e)
	for _, m := range t.cl.nodes {
		if m == nil || m.Voter == (contains(o.Voters, m.ID) || contains(o.Outgoing, m.ID)) {
			continue
		}
		n := *m
		n.Voter = !n.Voter
		t.saveNode(n)
		t.emit(Event{Kind: EventNode, Node: n.ID, Incarnation: n.Incarnation})
	}
	return Result{}, ok
}

// replace takes the vote from the number of a node that was replaced: its new store has none.
func (e electorate) replace(id NodeID) {
	for _, list := range [][]NodeID{e.Voters, e.Outgoing} {
		for i := range list {
			if list[i] == id {
				list[i] = 0
			}
		}
	}
}

// quorumWithout reports whether raft can do without a node: whether the nodes that are up, without this one, are a
// majority of the voters and of the outgoing voters. Only lists that the node is in count. Evicted nodes count as
// voters until the voters are changed: raft waits for them too.
func (e electorate) quorumWithout(id NodeID, c *cluster) bool {
	return c.majorityWithout(id, e.Voters) && c.majorityWithout(id, e.Outgoing)
}

func (c *cluster) majorityWithout(id NodeID, voters []NodeID) bool {
	up := 0
	for _, v := range voters {
		if n := c.node(v); n != nil && v != id && n.State == NodeUp {
			up++
		}
	}
	return !contains(voters, id) || up > len(voters)/2
}
