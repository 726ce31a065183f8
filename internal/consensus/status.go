package consensus

import "github.com/rdmcfs/rdmcfs/internal/consensus/core"

// Status returns what the node knows.
func (n *Node) Status() Status {
	diverged := n.histories.still(n.peers(), n.conf())
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &n.state
	st := Status{
		ID: n.id, Role: s.role, Leader: s.leader, Commit: s.commit, Applied: s.applied,
		Voters:   core.VotersOf(s.conf),
		LedSince: s.ledSince,
		Joint:    len(s.conf.GetVotersOutgoing()) > 0,
		NoQuorum: s.noQuorum, Progress: map[ID]Progress{}, Diverged: diverged, Rebuild: n.replacer.says,
		RefusedBy: n.greeter.refusedBy(),
	}
	if s.readOnly != nil {
		st.ReadOnly = s.readOnly.Error()
	}
	for id, p := range n.reporter.nodes {
		st.Progress[id] = p.Progress
	}
	return st
}

// Changed returns what is closed when the role of a node, its leader, or the voters may have changed since the call.
func Changed(n *Node) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.changed
}
