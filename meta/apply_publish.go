package meta

import (
	"syscall"
)

// keepFor is how long conflict losers, orphans and versions displaced by a restore are kept.
const keepFor = int64(7*24*3600) * 1e9

// retainMax bounds Policy.Retain.
const retainMax = 16

// hintMax bounds Publish.Hint.
const hintMax = 4096

// publication is a publish under way.
type publication struct {
	*Publish
	inode  *Inode // nil: an orphan
	policy *Policy
	rec    contentRecord // of the new content; unused when Size is 0
	res    Result
}

// publications is the part of apply that decides about new versions of files.
type publications struct{ *tx }

func (t publications) publish(o *Publish) (Result, syscall.Errno) {
	if errno := t.mayPublish(o); errno != ok {
		return Result{}, errno
	}
	p := publication{Publish: o}
	if errno := t.target(&p); errno != ok {
		return Result{}, errno
	}
	if errno := t.newContent(&p); errno != ok {
		return Result{}, errno
	}
	t.decide(o.Session, true)
	if p.inode == nil {
		t.orphan(&p)
		return p.res, ok
	}
	t.supersede(&p)
	return t.install(&p)
}

// mayPublish checks the session and the bounds of the entry.
func (t publications) mayPublish(o *Publish) syscall.Errno {
	s := o.Session
	switch {
	case s.Seq == 0 || s.Node != t.entry.Node || o.Size < 0 || o.Holes < 0 || o.Holes > o.Size || len(o.Hint) > hintMax:
		return syscall.EINVAL
	case s.Incarnation != t.entry.Incarnation || t.decided(s):
		return syscall.ESTALE
	case o.Votes.View > t.head.View || len(o.Inline) > 0 && int64(len(o.Inline)) != o.Size:
		return syscall.EINVAL
	case len(o.Inline) > MaxInline:
		return syscall.E2BIG
	}
	return ok
}

// target finds or makes the inode and its policy.
func (t publications) target(p *publication) (errno syscall.Errno) {
	switch {
	case p.LinkName != "" && (p.Ino != 0) != (p.Made != nil):
		return syscall.EINVAL
	case p.LinkName != "" && (p.Made == nil || t.inode(p.Ino) == nil):
		p.inode, errno = t.linkNew(p.Publish)
	default:
		p.inode = t.reservedOrShown(p.Ino)
	}
	if errno != ok {
		return errno
	}
	policy := t.cl.fallback
	if i := p.inode; i != nil {
		if i.Kind != KindFile {
			return syscall.EINVAL
		}
		if i.Reserved != (Lease{}) && i.Reserved != t.lease() {
			return syscall.ESTALE
		}
		policy = i.Policy
	}
	if p.policy = t.cl.policy(policy); p.policy == nil {
		t.fail(errMalformed)
		return syscall.EIO
	}
	return ok
}

// reservedOrShown loads the inode of a publish. One that a dead lease reserved does not exist any more.
func (t publications) reservedOrShown(ino Ino) *Inode {
	i := t.inode(ino)
	if i == nil || i.Reserved == (Lease{}) || t.cl.alive(i.Reserved) {
		return i
	}
	membership{t.tx}.freeReserved(ino)
	return nil
}

// linkNew makes the inode and the name of an O_TMPFILE, or of a file that the holder of the directory's names made.
func (t publications) linkNew(o *Publish) (*Inode, syscall.Errno) {
	dir, errno := tree{t.tx}.dir(o.LinkParent, o.LinkName)
	if errno != ok {
		return nil, errno
	}
	if d, _ := (tree{t.tx}).entryOf(dir, o.LinkName); d.Ino != 0 {
		return nil, syscall.EEXIST
	}
	if o.Made != nil {
		return delegations{t.tx}.linkNumbered(dir, o)
	}
	if errno := (delegations{t.tx}).mayName(dir); errno != ok {
		return nil, errno
	}
	i, errno := tree{t.tx}.newInode(dir, KindFile, 0o600, Cred{})
	if errno != ok {
		return nil, errno
	}
	i.born(o.Btime)
	tree{t.tx}.addName(dir, o.LinkName, i)
	return i, ok
}

// newContent checks the votes and makes the record of the new content.
func (t publications) newContent(p *publication) syscall.Errno {
	if p.Size == 0 {
		return ok
	}
	p.rec.Content = Content{
		ID: p.Session, Ino: p.Ino, Base: p.Base, Size: p.Size, Holes: p.Holes, Root: p.Root,
		Published: t.head.Index, Policy: p.policy.ID, State: ContentCurrent, Inline: len(p.Inline) > 0,
	}
	if p.inode != nil {
		p.rec.Ino, p.rec.Version = p.inode.Ino, p.inode.Version+1
	}
	if p.rec.Inline {
		if p.policy.Placement != PlaceAll {
			return syscall.EINVAL
		}
		t.set(keyContent(tableInline, p.Session), rawValue(p.Inline))
		return ok
	}
	return t.tally(p)
}

// tally counts the valid votes and records which members are owed.
func (t publications) tally(p *publication) syscall.Errno {
	members, needed := t.members(p)
	valid := 0
	for _, id := range members {
		n := t.cl.node(id)
		if p.votedBy(n) {
			valid++
			continue
		}
		p.res.Owed = append(p.res.Owed, id)
		if n.State == NodeUp { // the others are owed by their range
			p.rec.Owed = append(p.rec.Owed, id)
		}
	}
	var others []NodeID
	if p.policy.Placement == PlaceCopies {
		others = t.votedBeside(p, members, int(p.policy.Copies)-valid)
		p.rec.Placed = members
		for _, id := range others {
			p.rec.Placed = with(p.rec.Placed, id)
		}
	}
	if valid+len(others) < needed {
		return syscall.EIO
	}
	for _, id := range p.rec.Owed {
		t.owe(id, &p.rec.Content, p.reason(id))
	}
	return ok
}

// members is the placement of a new content, and how many of the nodes must hold it. Nodes that stand in for others
// without room belong to it if the writer has asked them. They do not change how many are needed.
func (t publications) members(p *publication) (members []NodeID, needed int) {
	members = t.cl.members(p.policy, p.rec.Ino)
	needed = t.cl.minVotes(p.policy, members)
	var full []NodeID
	for _, m := range p.Missing {
		if m.Reason == OwedFull {
			full = append(full, m.Node)
		}
	}
	if len(full) == 0 {
		return members, needed
	}
	for _, id := range t.cl.membersBeside(p.policy, p.rec.Ino, full) {
		if p.Votes.Has(id) || p.misses(id) != 0 {
			members = with(members, id)
		}
	}
	return members, needed
}

// votedBy reports whether the node has a copy that counts: it is up, and has not restarted since it voted.
func (p *publication) votedBy(n *nodeRecord) bool {
	return n.State == NodeUp && p.Votes.Has(n.ID) && n.BootView <= p.Votes.View
}

// votedBeside lists up to limit nodes that have a copy and are not members: they began to drain while it was on its
// way, or stood in for members that are back, or the writer could not know the number of the inode. Their copies are as
// good as those of members that have none yet. Nodes that are draining come last.
func (t publications) votedBeside(p *publication, members []NodeID, limit int) (out []NodeID) {
	for _, draining := range []bool{false, true} {
		for _, n := range t.cl.nodes {
			if len(out) < limit && p.policy.eligible(n) && n.draining() == draining && p.votedBy(n) && !contains(members, n.ID) {
				out = append(out, n.ID)
			}
		}
	}
	return out
}

// misses is why the entry says that a node has no copy; 0 if it does not say so.
func (p *publication) misses(id NodeID) OwedReason {
	for _, m := range p.Missing {
		if m.Node == id && m.Reason >= OwedDown && m.Reason <= OwedJoined {
			return m.Reason
		}
	}
	return 0
}

func (p *publication) reason(id NodeID) OwedReason {
	if why := p.misses(id); why != 0 {
		return why
	}
	return OwedUnreachable
}

// owe writes the row; the content's record lists the node already.
func (t publications) owe(id NodeID, c *Content, reason OwedReason) {
	t.save(owedKey(id, c.Published), &owedRecord{c.ID, reason, t.now, c.Size})
	t.emit(Event{Kind: EventOwed, Node: id, Content: c.ID})
}

// orphan keeps a content whose inode is gone.
func (t publications) orphan(p *publication) {
	p.res.Orphan, p.res.Ino = true, p.Ino
	if p.Size == 0 {
		return
	}
	p.rec.State, p.rec.Expires, p.rec.Mtime = ContentOrphan, t.now+keepFor, t.now
	p.rec.Reason = "removed while it was written"
	if p.Hint != "" {
		p.rec.Reason += ": " + p.Hint
	}
	contents{t.tx}.addContent(&p.rec)
	contents{t.tx}.keep(&p.rec)
}

// supersede decides what becomes of the version that was current.
func (t publications) supersede(p *publication) {
	cur := p.inode.Content
	p.res.Conflict = cur != p.Base
	if cur.IsZero() {
		return
	}
	old := t.contentRec(cur)
	if old == nil {
		t.fail(errMalformed)
		return
	}
	switch {
	case p.res.Conflict:
		contents{t.tx}.keepLoser(old, "another node wrote from the same base; the later commit won")
	case p.policy.Retain > 0:
		old.State = ContentRetained
		contents{t.tx}.keep(old)
		contents{t.tx}.prune(p.inode.Ino, int(p.policy.Retain))
	default:
		contents{t.tx}.retire(old)
	}
}

// install makes the new content current.
func (t publications) install(p *publication) (Result, syscall.Errno) {
	i := p.inode
	if i.Version > 0 {
		attributes{t.tx}.dropCapability(i)
	}
	i.Version++
	i.Size, i.Holes = p.Size, p.Holes
	i.Mtime = t.now
	prev := i.Content
	i.Content = p.rec.ID
	if errno := (attributes{t.tx}).patchXattrs(i, &p.Attr, 0, false); errno != ok {
		return Result{}, errno
	}
	attributes{t.tx}.patch(i, &p.Attr)
	t.show(i)
	t.saveInode(i)
	if p.Size > 0 {
		p.rec.Mtime = i.Mtime
		contents{t.tx}.addContent(&p.rec)
	}
	t.emit(Event{Kind: EventPublished, Ino: i.Ino, Content: i.Content, Prev: prev, Session: p.Session})
	p.res.Ino, p.res.Inode, p.res.Version = i.Ino, *i, i.Version
	return p.res, ok
}

// show makes a reserved file visible to all.
func (t publications) show(i *Inode) {
	if i.Reserved == (Lease{}) {
		return
	}
	t.del(reservedKey(i.Reserved, i.Ino))
	i.Reserved = Lease{}
	t.save(direntKey(i.Parent, i.Name), &dirent{i.Ino, i.Kind, false})
	t.emit(Event{Kind: EventName, Ino: i.Parent, Name: i.Name})
}

// decided reports whether a session is over.
func (t publications) decided(s ContentID) bool {
	return t.cl.decided(s, func() *progress { return t.progressOf(s.Node) })
}

func (c *cluster) decided(s ContentID, load func() *progress) bool {
	n := c.node(s.Node)
	switch {
	case n == nil || s.Incarnation > n.Incarnation:
		return false
	case s.Incarnation < n.Incarnation || n.State != NodeUp:
		return true
	}
	return load().Decided.has(s.Seq)
}

// decide ends a session. The ranges of decided sessions are bounded: when a node leaves too many gaps, the lowest gap's
// sessions count as aborted.
func (t publications) decide(s ContentID, commit bool) {
	p := t.progressOf(s.Node)
	p.Decided = p.Decided.addRange(IndexRange{s.Seq - 1, s.Seq})
	t.emit(Event{Kind: EventDecided, Session: s, Content: s, Commit: commit})
	if len(p.Decided) <= seqSetMax {
		return
	}
	gap := p.Decided.lowestGap()
	p.Decided = p.Decided.addRange(gap)
	for seq := gap.Lo + 1; seq <= gap.Hi && seq <= gap.Lo+seqSetMax; seq++ {
		lost := ContentID{Node: s.Node, Incarnation: s.Incarnation, Seq: seq}
		t.emit(Event{Kind: EventDecided, Session: lost, Content: lost})
	}
}

func (t publications) abort(o *Abort) (Result, syscall.Errno) {
	s := o.Session
	n := t.cl.node(s.Node)
	if n == nil || s.Seq == 0 || s.Incarnation > n.Incarnation {
		return Result{}, syscall.EINVAL
	}
	if t.decided(s) {
		if t.contentRec(s) != nil {
			return Result{}, syscall.EALREADY
		}
		return Result{}, ok
	}
	t.decide(s, false)
	return Result{}, ok
}
