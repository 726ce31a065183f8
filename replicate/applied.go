package replicate

import (
	"slices"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// applied answers questions about the log, as far as it was applied here.
type applied struct {
	names meta.Reader
	self  func() meta.Lease // this node and its incarnation
}

func inBacklog(n meta.Node, index uint64) bool {
	for _, r := range n.Backlog {
		if r.Lo < index && index <= r.Hi {
			return true
		}
	}
	return false
}

// isFenced reports whether the incarnation that a session is of has ended, as the applied log says.
func isFenced(names meta.Reader, id meta.ContentID) bool {
	n, err := names.Node(id.Node)
	return err == nil && (n.State != meta.NodeUp || n.Incarnation > id.Incarnation)
}

// judge reads what the applied log says about a session.
func (a applied) judge(id meta.ContentID) session.Verdict {
	c, err := a.names.Content(id)
	if err == nil && c.State != meta.ContentRetired {
		return session.Published
	}
	if err == nil {
		return session.Aborted
	}
	if over, err := a.names.Decided(id); err == nil && over {
		return session.Aborted // or published and retired since: nobody wants it
	}
	return session.Undecided
}

// known reports whether the log has published a content with this root. Catch-up brings nothing else.
func (a applied) known(id meta.ContentID, root [32]byte) bool {
	c, err := a.names.Content(id)
	return err == nil && c.Root == root
}

// wasDecided reports whether the session of a content is over.
func (a applied) wasDecided(id meta.ContentID) bool {
	over, err := a.names.Decided(id)
	return err == nil && over
}

// assigned reports whether this node is in the placement of a published content.
func (a applied) assigned(c meta.Content) bool {
	members, err := a.names.Members(c.Policy, c.Ino)
	return err == nil && slices.Contains(members, a.self().Node)
}

// placed reports whether the log lists the holders of a content one by one.
func (a applied) placed(id meta.ContentID) bool {
	c, err := a.names.Content(id)
	if err != nil {
		return false
	}
	p, err := a.names.Policy(c.Policy)
	return err == nil && p.Placement == meta.PlaceCopies
}

// nowhere reports whether no node is believed to hold a content any more.
func (a applied) nowhere(id meta.ContentID) bool {
	holders, err := a.names.Holders(id)
	return err == nil && len(holders) == 0
}

// letIn reports whether the state here has the log entry that this process is up. Everything that earlier processes of
// this node have reported comes before that entry.
func (a applied) letIn() (meta.Node, bool) {
	self := a.self()
	n, err := a.names.Node(self.Node)
	return n, err == nil && n.State == meta.NodeUp && n.Incarnation == self.Incarnation
}

// drainedSince reports whether this node has drained after an index: what was owed to it could not be seen then.
func (a applied) drainedSince(index uint64) bool {
	n, in := a.letIn()
	return !in || n.DrainIndex != 0 || slices.ContainsFunc(n.Backlog, func(r meta.IndexRange) bool { return r.Hi > index })
}

// keeps reports whether this node is to have a published content: it is a member, or is still recorded as one.
func (a applied) keeps(c meta.Content) bool {
	if a.assigned(c) {
		return true
	}
	holds, err := a.names.Holds(a.self().Node, c.ID)
	return err != nil || holds
}

// wanted reports whether the log still gives this node a reason to keep a content. After a kill, the state here may
// begin before publishes whose contents are already committed here: what the log has not decided yet is kept.
func (a applied) wanted(id meta.ContentID) bool {
	c, err := a.names.Content(id)
	if isNotFound(err) {
		over, err := a.names.Decided(id)
		return err != nil || !over
	}
	return err != nil || c.State != meta.ContentRetired && a.keeps(c)
}
