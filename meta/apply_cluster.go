package meta

import (
	"fmt"
	"maps"
	"strings"
	"syscall"
	"time"
)

// Bounds of what cluster operations store.
const (
	nodesMax     = 4096
	policiesMax  = 4096
	labelsMax    = 64
	stringMax    = 1024
	minCopiesMax = nodesMax
)

// membership is the part of apply that lets nodes in, declares them down, and removes them, and that ends what
// incarnations had.
type membership struct{ *tx }

func (t membership) join(o *Join) (Result, syscall.Errno) {
	if o.Name == "" || len(o.Name) > NameMax || len(o.Addr) > stringMax || !labelsFit(o.Labels) ||
		len(o.Program.Version) > stringMax {
		return Result{}, syscall.EINVAL
	}
	if t.head.LastNode > 0 && !o.Program.Formats.Has(t.head.format()) {
		return Result{}, syscall.EPROTONOSUPPORT
	}
	known := t.named(o.Name)
	token, errno := t.token(o)
	if errno != ok {
		if errno == syscall.EALREADY && askedAgain(known, o) && (o.KeyHash != [32]byte{} || token.UsedBy == known.ID) {
			return Result{Node: known.ID, Existed: true, View: t.head.View}, ok // asked again
		}
		return Result{}, errno
	}
	n := nodeRecord{Node: Node{Name: o.Name}}
	switch {
	case token != nil && askedAgain(known, o):
		return Result{Node: known.ID, Existed: true, View: t.head.View}, ok // asked again
	case known != nil && !o.Replace:
		return Result{}, syscall.EEXIST
	case t.addressInUse(known, o.Addr):
		return Result{}, syscall.EADDRINUSE
	case known != nil && !electorateOf(t.tx).quorumWithout(known.ID, t.cl):
		return Result{}, syscall.EAGAIN // its store, which votes, would end
	case known != nil:
		n = *known
	case t.head.LastNode >= nodesMax:
		return Result{}, syscall.ENOSPC
	default:
		t.head.LastNode++
		n.ID = t.head.LastNode
	}
	t.admit(n, o)
	if token != nil {
		token.UsedBy = n.ID
		token.Left--
		t.save(tokenKey(o.TokenHash), token)
	} else {
		t.dateRoot()
		t.found(o.Program.Formats.Said().Newest)
	}
	return Result{Node: n.ID, View: t.head.View}, ok
}

// addressInUse reports whether a node that is up, other than the one that is replaced, has an address: the others would
// dial it and find the wrong node.
func (t membership) addressInUse(replaced *nodeRecord, addr string) bool {
	for _, n := range t.cl.nodes {
		if n != nil && n.State == NodeUp && strings.EqualFold(n.Addr, addr) && (replaced == nil || n.ID != replaced.ID) {
			return addr != ""
		}
	}
	return false
}

// askedAgain reports whether a join comes from a node that has joined already and did not hear of it: the same key, or,
// if neither has one, the same address.
func askedAgain(known *nodeRecord, o *Join) bool {
	return known != nil && known.State == NodeJoined && known.JoinKey == o.KeyHash &&
		(o.KeyHash != [32]byte{} || known.Addr == o.Addr)
}

// admit stores the record of a node that joined: it holds nothing and has no store yet. The store that it had before is
// remembered: a boot of that store may still be on its way.
func (t membership) admit(n nodeRecord, o *Join) {
	fenced := n.Incarnation
	if n.Store != [16]byte{} {
		t.set(formerKey(n.ID, n.Store), present)
	}
	n.Addr, n.Labels, n.State, n.Reason = o.Addr, maps.Clone(o.Labels), NodeJoined, ""
	n.Store, n.BootNonce, n.JoinKey, n.DrainIndex = [16]byte{}, 0, o.KeyHash, 0
	n.Program = o.Program
	n.JoinIndex, n.DownIndex = t.head.Index, t.head.Index
	if n.Voter {
		e := electorateOf(t.tx)
		e.replace(n.ID)
		t.save(votersKey, &e)
		n.Voter = false
	}
	n.Backlog, n.Recheck = []IndexRange{{0, t.head.Index}}, IndexRange{}
	t.changed(n)
	if fenced > 0 {
		t.fence(n.ID, fenced)
	}
}

// token finds the token of a join; none is needed for the first node.
func (t membership) token(o *Join) (*tokenRecord, syscall.Errno) {
	if o.TokenHash == [32]byte{} {
		if t.head.LastNode == 0 {
			return nil, ok
		}
		return nil, syscall.EACCES
	}
	k := new(tokenRecord)
	switch found := t.load(tokenKey(o.TokenHash), k); {
	case !found:
		return nil, syscall.EACCES
	case k.Left == 0:
		return k, syscall.EALREADY
	case k.Expires <= t.now:
		return k, syscall.ETIMEDOUT
	case o.Replace && !k.Replace:
		return k, syscall.EPERM
	}
	return k, ok
}

// tokensKept is how long a token is remembered after its end: for that time a join with it learns whether the token was
// used or came too late.
const tokensKept = int64(24 * time.Hour)

// expireTokens forgets tokens that are over.
func (t membership) expireTokens() {
	t.scan([]byte{tableToken}, func(key, value []byte) bool {
		var k tokenRecord
		if err := decodeRecord(value, &k); err != nil {
			t.fail(fmt.Errorf("meta: record %x: %w", key, err))
			return false
		}
		if k.Expires <= t.now-tokensKept {
			t.del(key)
		}
		return true
	})
}

func (t membership) named(name string) *nodeRecord {
	for _, n := range t.cl.nodes {
		if n != nil && n.State != NodeEvicted && n.Name == name {
			return n
		}
	}
	return nil
}

// dateRoot gives the root directory its times with the first node.
func (t membership) dateRoot() {
	if root := t.inode(RootIno); root != nil && root.Ctime == 0 {
		root.Atime, root.Mtime, root.Ctime, root.Btime = t.now, t.now, t.now, t.now
		t.saveInode(root)
	}
}

// changed stores a node record whose change matters to votes or placement.
func (t membership) changed(n nodeRecord) {
	t.head.View++
	t.saveNode(n)
	t.emit(Event{Kind: EventNode, Node: n.ID, Incarnation: n.Incarnation})
}

func (t membership) boot(o *Boot) (Result, syscall.Errno) {
	old := t.cl.node(o.Node)
	switch {
	case old == nil:
		return Result{}, syscall.ENOENT
	case old.State == NodeEvicted:
		return Result{}, syscall.EPERM
	case o.Store == [16]byte{} || len(o.Addr) > stringMax || len(o.Program.Version) > stringMax:
		return Result{}, syscall.EINVAL
	case !o.Program.Formats.Has(t.head.format()):
		return Result{}, syscall.EPROTONOSUPPORT
	case old.Store != [16]byte{} && old.Store != o.Store, t.former(o.Node, o.Store):
		return Result{}, syscall.EEXIST
	case old.BootNonce == o.Nonce && o.Nonce != 0:
		// asked again: answered even if the node was declared down since, as the process must not find two incarnations
		return t.booted(old), ok
	case o.Next != 0 && o.Next != uint64(old.Incarnation)+1:
		return t.booted(old), syscall.EAGAIN
	}
	n := *old
	if n.State != NodeUp {
		n.Backlog = seqSet(n.Backlog).addRange(IndexRange{n.DownIndex, t.head.Index})
	}
	n.State, n.Reason, n.DownIndex = NodeUp, "", 0
	n.Store, n.BootNonce, n.Program = o.Store, o.Nonce, o.Program
	n.Voter = n.Voter || firstVoter(t.tx)
	n.Incarnation++
	n.BootView = t.head.View + 1 // the number that changed gives this change
	if o.Addr != "" {
		n.Addr = o.Addr
	}
	t.changed(n)
	if old.Incarnation > 0 {
		t.fence(n.ID, old.Incarnation)
	}
	t.restart(n.ID, n.Incarnation)
	return t.booted(&n), ok
}

// found makes a new cluster use the newest format that the program of its first node knows.
func (t membership) found(newest uint64) {
	if newest > t.head.format() {
		t.head.Raised = newest
	}
}

// raise makes the cluster use the next format, if each node that may come back knows it, also those that are down.
func (t membership) raise(o *RaiseFormat) (Result, syscall.Errno) {
	if o.To == t.head.format() {
		return Result{Existed: true}, ok // asked again
	}
	if o.To != t.head.format()+1 {
		return Result{}, syscall.EDOM
	}
	for _, n := range t.cl.nodes {
		if n != nil && n.State != NodeEvicted && !n.Program.Formats.Has(o.To) {
			return Result{Node: n.ID}, syscall.EBUSY
		}
	}
	t.head.Raised = o.To
	return Result{}, ok
}

// former reports whether a store belonged to a node before it was replaced.
func (t membership) former(id NodeID, store [16]byte) (found bool) {
	t.scan(formerKey(id, store), func(_, _ []byte) bool {
		found = true
		return false
	})
	return found
}

func (t membership) booted(n *nodeRecord) Result {
	return Result{Node: n.ID, Incarnation: n.Incarnation, View: n.BootView}
}

// restart begins the exactly-once window and the sessions of a new incarnation.
func (t membership) restart(id NodeID, incarnation uint32) {
	t.scan(key32(tableResult, uint32(id)), func(key, _ []byte) bool { t.del(key); return true })
	p := t.progressOf(id)
	*p = progress{Incarnation: incarnation, LastIno: p.LastIno}
}

func (t membership) down(o *Down) (Result, syscall.Errno) {
	old := t.cl.node(o.Node)
	switch {
	case old == nil:
		return Result{}, syscall.ENOENT
	case old.State != NodeUp || old.Incarnation != o.Incarnation:
		return Result{}, syscall.ESTALE
	}
	n := *old
	n.State, n.DownIndex, n.Reason = NodeDown, t.head.Index, clip(o.Reason)
	t.changed(n)
	t.fence(n.ID, n.Incarnation)
	return Result{Node: n.ID, Incarnation: n.Incarnation, View: t.head.View}, ok
}

func (t membership) evict(o *Evict) (Result, syscall.Errno) {
	old := t.cl.node(o.Node)
	switch {
	case old == nil:
		return Result{}, syscall.ENOENT
	case old.State == NodeEvicted:
		return Result{Node: o.Node, View: t.head.View}, ok
	case !electorateOf(t.tx).quorumWithout(o.Node, t.cl):
		return Result{}, syscall.EAGAIN
	}
	n := *old // it counts as a voter until the voters are changed
	n.State, n.Reason, n.Backlog, n.Recheck = NodeEvicted, clip(o.Reason), nil, IndexRange{}
	n.DrainIndex = 0
	t.changed(n)
	if n.Incarnation > 0 {
		t.fence(n.ID, n.Incarnation)
	}
	if t.head.HasCopies {
		t.recheckAll()
	}
	return Result{Node: n.ID, View: t.head.View}, ok
}

// recheckAll makes every node look for contents that it is now a member for because another node left.
func (t membership) recheckAll() {
	for _, m := range t.cl.nodes {
		if m == nil || m.State == NodeEvicted {
			continue
		}
		n := *m
		n.Recheck, n.RecheckView = IndexRange{0, t.head.Index}, t.head.View
		t.saveNode(n)
		t.emit(Event{Kind: EventOwed, Node: n.ID})
	}
}

// fence ends all sessions and reservations of a node up to an incarnation.
func (t membership) fence(id NodeID, incarnation uint32) {
	t.emit(Event{Kind: EventFenced, Node: id, Incarnation: incarnation})
	t.set(key32(tableFree, uint32(id)), present)
	t.head.Freeing = true
	t.freeDead(freePerSweep)
}

// freeDead removes up to limit files reserved under dead leases, and locks that such leases have. A fenced lease is
// dead at once for every reader and operation; this only reclaims, a bounded number at a time.
func (t membership) freeDead(limit int) {
	more := false
	t.scan([]byte{tableFree}, func(key, _ []byte) bool {
		owner := key[1:5]
		t.scan(append([]byte{tableReserved}, owner...), func(key, _ []byte) bool {
			lease, ino := splitReserved(key)
			if t.cl.alive(lease) {
				return false // incarnations ascend: no dead one follows
			}
			if limit--; limit < 0 {
				more = true
				return false
			}
			t.freeReserved(ino)
			return true
		})
		if !more {
			limit, more = lockTable{t.tx}.sweep(owner, limit)
		}
		if !more {
			limit, more = delegations{t.tx}.sweep(owner, limit)
		}
		if !more {
			t.del(key)
		}
		return !more
	})
	t.head.Freeing = more
}

func (t membership) freeReserved(ino Ino) {
	i := t.inode(ino)
	if i == nil || i.Reserved == (Lease{}) {
		t.fail(errMalformed)
		return
	}
	dir := t.inode(i.Parent)
	if dir == nil {
		t.fail(errMalformed)
		return
	}
	tree{t.tx}.dropName(dir, i.Name, dirent{i.Ino, i.Kind, true})
}

func splitReserved(key []byte) (Lease, Ino) {
	v := ContentIDFromBytes([16]byte(key[1:17]))
	return Lease{v.Node, v.Incarnation}, Ino(v.Seq)
}

func samePolicy(a, b Policy) bool {
	return a.Placement == b.Placement && a.Copies == b.Copies && a.MinCopies == b.MinCopies &&
		a.AckLocal == b.AckLocal && a.Retain == b.Retain && a.KeepRemoved == b.KeepRemoved &&
		a.SendRate == b.SendRate && a.Priority == b.Priority && maps.Equal(a.Labels, b.Labels)
}

func labelsFit(labels map[string]string) bool {
	for k, v := range labels {
		if k == "" || len(k) > NameMax || len(v) > NameMax {
			return false
		}
	}
	return len(labels) <= labelsMax
}

func (t membership) addToken(o *AddToken) (Result, syscall.Errno) {
	key := tokenKey(o.Hash)
	if o.Hash == [32]byte{} {
		return Result{}, syscall.EINVAL
	}
	if t.get(key) != nil {
		return Result{}, syscall.EEXIST
	}
	t.save(key, &tokenRecord{Expires: o.Expires, Replace: o.Replace, Left: max(1, o.Uses)})
	return Result{}, ok
}

func clip(s string) string { return s[:min(len(s), stringMax)] }
