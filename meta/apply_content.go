package meta

import (
	"bytes"
	"sort"
	"syscall"
)

// contentsPerEntry bounds what one Held, Unheld or Release names.
const contentsPerEntry = 1024

// expiredPerEntry bounds what one Expire retires.
const expiredPerEntry = freePerSweep / 4

func (t *tx) contentRec(id ContentID) *contentRecord {
	r := new(contentRecord)
	if !t.load(keyContent(tableContent, id), r) {
		return nil
	}
	return r
}

func (t *tx) saveContent(r *contentRecord) { t.save(keyContent(tableContent, r.ID), r) }

// contents is the part of apply that records which versions are kept, which nodes hold them, and until when.
type contents struct{ *tx }

// addContent stores a new content and indexes it by its publish.
func (t contents) addContent(r *contentRecord) {
	if !r.Inline {
		id := r.ID.Bytes()
		t.set(key64(tableIndex, r.Published), id[:])
		t.count(r, 1)
	}
	t.saveContent(r)
	t.head.Bytes += uint64(r.Size)
}

// count keeps the bucket of a content's publish index.
func (t contents) count(r *contentRecord, by int) {
	key := bucketKey(r.Policy, r.Published>>bucketBits)
	var b bucketRecord
	t.load(key, &b)
	b.Contents += uint64(by)
	b.Bytes += uint64(by) * uint64(r.Size)
	if b.Contents == 0 {
		t.del(key)
		return
	}
	t.save(key, &b)
}

// keep lists a content that is not current, under its inode and by expiry, and stores it.
func (t contents) keep(r *contentRecord) {
	t.set(versionKey(r.Ino, r.ID), []byte{byte(r.State)})
	if r.Expires > 0 {
		t.set(keptKey(r.Expires, r.ID), present)
	}
	t.saveContent(r)
}

// unkeep takes it off the lists again.
func (t contents) unkeep(r *contentRecord) {
	t.del(versionKey(r.Ino, r.ID))
	if r.Expires > 0 {
		t.del(keptKey(r.Expires, r.ID))
	}
}

// keepLoser keeps a displaced current version for a while.
func (t contents) keepLoser(r *contentRecord, why string) {
	r.State, r.Expires, r.Reason = ContentConflict, t.now+keepFor, why
	t.keep(r)
}

// retire forgets a content with everything owed of it.
func (t contents) retire(r *contentRecord) {
	for _, n := range r.Owed {
		t.del(owedKey(n, r.Published))
		t.emit(Event{Kind: EventOwed, Node: n, Content: r.ID})
	}
	if r.State != ContentCurrent {
		t.unkeep(r)
	}
	if r.Inline {
		t.del(keyContent(tableInline, r.ID))
	} else {
		t.del(key64(tableIndex, r.Published))
		t.count(r, -1)
	}
	t.del(keyContent(tableContent, r.ID))
	t.head.Bytes -= uint64(r.Size)
	t.emit(Event{Kind: EventRetired, Ino: r.Ino, Content: r.ID})
}

// retireAll retires what a removed inode had, except versions that are kept until a time.
func (t contents) retireAll(i *Inode) {
	if !i.Content.IsZero() {
		if r := t.contentRec(i.Content); r != nil {
			t.retire(r)
		}
	}
	for _, r := range t.retained(i.Ino) {
		t.retire(r)
	}
}

// retained lists the versions kept by policy, newest first.
func (t contents) retained(ino Ino) []*contentRecord {
	var out []*contentRecord
	t.scan(key64(tableVersion, uint64(ino)), func(key, value []byte) bool {
		if bytes.Equal(value, []byte{byte(ContentRetained)}) {
			if r := t.contentRec(tailContent(key)); r != nil {
				out = append(out, r)
			}
		}
		return true
	})
	sort.Slice(out, func(i, j int) bool { return out[i].Version > out[j].Version })
	return out
}

// prune retires retained versions beyond the newest keep.
func (t contents) prune(ino Ino, keep int) {
	if all := t.retained(ino); len(all) > keep {
		for _, r := range all[keep:] {
			t.retire(r)
		}
	}
}

// reporter checks that the node that Held, Unheld or Release is about is the proposer.
func (t contents) reporter(id NodeID, contents []ContentID) syscall.Errno {
	if id != t.entry.Node || len(contents) > contentsPerEntry {
		return syscall.EINVAL
	}
	return ok
}

func (t contents) held(o *Held) (Result, syscall.Errno) {
	if errno := t.reporter(o.Node, o.Contents); errno != ok {
		return Result{}, errno
	}
	if t.entry.Seq < t.progressOf(o.Node).LastUnheld {
		return Result{}, syscall.EAGAIN // made before a loss that is applied already
	}
	for _, id := range o.Contents {
		if r := t.contentRec(id); r != nil {
			t.holds(o.Node, r)
		}
	}
	n := *t.cl.node(o.Node)
	// nothing is owed to a draining node: what it saw settles nothing
	if upTo := min(o.UpTo, t.head.Index-1); upTo > 0 && !n.draining() {
		n.Backlog = seqSet(n.Backlog).dropUpTo(upTo)
		if o.View >= n.RecheckView {
			n.Recheck.Lo = max(n.Recheck.Lo, upTo)
		}
		if n.Recheck.Lo >= n.Recheck.Hi {
			n.Recheck = IndexRange{}
		}
		t.saveNode(n)
	}
	t.emit(Event{Kind: EventOwed, Node: o.Node})
	return Result{}, ok
}

// holds records that a node has a content.
func (t contents) holds(id NodeID, r *contentRecord) {
	if contains(r.Owed, id) {
		r.Owed = without(r.Owed, id)
		t.del(owedKey(id, r.Published))
	}
	if p := t.cl.policy(r.Policy); p != nil && p.Placement == PlaceCopies && p.eligible(t.cl.node(id)) {
		r.Placed = with(r.Placed, id)
	}
	t.saveContent(r)
}

func (t contents) unheld(o *Unheld) (Result, syscall.Errno) {
	if errno := t.reporter(o.Node, o.Contents); errno != ok {
		return Result{}, errno
	}
	if o.Reason < OwedDown || o.Reason > OwedJoined {
		return Result{}, syscall.EINVAL
	}
	for _, id := range o.Contents {
		if t.contentRec(id) == nil && !(publications{t.tx}).decided(id) {
			return Result{}, syscall.ENOENT // it may still be published with this node's vote: say it again then
		}
	}
	p := t.progressOf(o.Node)
	p.LastUnheld = max(p.LastUnheld, t.entry.Seq)
	lost := false
	for _, id := range o.Contents {
		r := t.contentRec(id)
		if r == nil || r.Inline || contains(r.Owed, o.Node) {
			continue
		}
		if n := t.cl.node(o.Node); !t.cl.assigned(n, r) {
			if !t.cl.owes(n, r) {
				continue
			}
			r.Placed = with(r.Placed, o.Node) // a change of the members made it one: the row is what is left of that
		}
		r.Owed = with(r.Owed, o.Node)
		t.saveContent(r)
		publications{t.tx}.owe(o.Node, &r.Content, o.Reason)
		lost = true
	}
	if lost {
		t.head.View++ // nodes that counted on that copy look again
	}
	return Result{}, ok
}

// release lets a node drop contents that their present members all hold.
func (t contents) release(o *Release) (Result, syscall.Errno) {
	if errno := t.reporter(o.Node, o.Contents); errno != ok {
		return Result{}, errno
	}
	p := t.progressOf(o.Node)
	p.LastUnheld = max(p.LastUnheld, t.entry.Seq) // a Held made before may come later
	released := false
	for _, id := range o.Contents {
		r := t.contentRec(id)
		if r == nil || !contains(r.Placed, o.Node) || !t.dispensable(o.Node, r) {
			continue
		}
		r.Placed = without(r.Placed, o.Node)
		if contains(r.Owed, o.Node) {
			r.Owed = without(r.Owed, o.Node)
			t.del(owedKey(o.Node, r.Published))
		}
		t.saveContent(r)
		t.emit(Event{Kind: EventRetired, Ino: r.Ino, Content: r.ID, Node: o.Node})
		released = true
	}
	if released {
		t.head.View++ // nodes that counted on that copy look again
	}
	return Result{}, ok
}

// dispensable reports whether the node is no member for the content now and every member holds it.
func (t contents) dispensable(id NodeID, r *contentRecord) bool {
	p := t.cl.policy(r.Policy)
	if p == nil || p.Placement != PlaceCopies {
		return false
	}
	members := t.cl.members(p, r.Ino)
	for _, m := range members {
		if m == id || !t.cl.believes(t.cl.node(m), r) {
			return false
		}
	}
	return len(members) > 0
}

// expire retires what was kept until now and goes on freeing dead reservations.
func (t *tx) expire() (Result, syscall.Errno) {
	var due [][]byte
	t.scan([]byte{tableKept}, func(key, _ []byte) bool {
		if int64(keyNumber(key, 1)) > t.now || len(due) >= expiredPerEntry {
			return false
		}
		due = append(due, key)
		return true
	})
	retired := 0
	for _, key := range due {
		if retired += (removals{t}).expireRow(key); retired >= expiredPerEntry {
			break
		}
	}
	if t.head.Freeing {
		membership{t}.freeDead(freePerSweep)
	}
	membership{t}.expireTokens()
	return Result{Retired: retired}, ok
}

func (t contents) restore(o *Restore) (Result, syscall.Errno) {
	r := t.contentRec(o.Content)
	if r == nil {
		return Result{}, syscall.ENOENT
	}
	i := t.inode(o.Ino)
	switch {
	case i == nil:
		return t.revive(o, r)
	case i.Kind != KindFile || r.Ino != o.Ino:
		return Result{}, syscall.EINVAL
	case r.State == ContentCurrent:
		return Result{Ino: i.Ino, Inode: *i, Version: i.Version}, ok
	}
	prev := i.Content
	if !prev.IsZero() {
		old := t.contentRec(prev)
		if old == nil {
			t.fail(errMalformed)
			return Result{}, syscall.EIO
		}
		t.keepLoser(old, "displaced by a restore")
	}
	return t.makeCurrent(i, r, prev), ok
}

// revive brings a content whose inode is gone back under a new name.
func (t contents) revive(o *Restore, r *contentRecord) (Result, syscall.Errno) {
	if r.State == ContentCurrent || r.State == ContentRemoved { // with what else is kept: see Undelete
		return Result{}, syscall.EINVAL
	}
	dir, errno := tree{t.tx}.dir(o.Parent, o.Name)
	if errno != ok {
		return Result{}, errno
	}
	if d, _ := (tree{t.tx}).entryOf(dir, o.Name); d.Ino != 0 {
		return Result{}, syscall.EEXIST
	}
	if t.inode(r.Ino) != nil {
		return Result{}, syscall.EINVAL // not an orphan: restore it in its inode
	}
	if errno := (delegations{t.tx}).mayName(dir); errno != ok {
		return Result{}, errno
	}
	i, errno := tree{t.tx}.newInode(dir, KindFile, 0o600, o.Cred)
	if errno != ok {
		return Result{}, errno
	}
	i.Policy = r.Policy
	tree{t.tx}.addName(dir, o.Name, i)
	return t.makeCurrent(i, r, ContentID{}), ok
}

// makeCurrent turns a kept content into an inode's current version.
func (t contents) makeCurrent(i *Inode, r *contentRecord, prev ContentID) Result {
	t.unkeep(r)
	attributes{t.tx}.dropCapability(i)
	i.Version++
	i.Content, i.Size, i.Holes, i.Mtime, i.Ctime = r.ID, r.Size, r.Holes, t.now, t.now
	publications{t.tx}.show(i)
	t.saveInode(i)
	r.Ino, r.Version, r.State, r.Reason, r.Expires = i.Ino, i.Version, ContentCurrent, "", 0
	t.saveContent(r)
	t.emit(Event{Kind: EventPublished, Ino: i.Ino, Content: r.ID, Prev: prev})
	return Result{Ino: i.Ino, Inode: *i, Version: i.Version}
}
