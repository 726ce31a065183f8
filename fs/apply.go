package fs

import "github.com/rdmcfs/rdmcfs/meta"

// effects is what applied entries mean to the kernel's caches.
type effects struct {
	names bool // look up again
	attrs []uint64
}

// applier makes what the log says visible through this mount: to opens and lookups, and to the kernel's caches.
type applier struct {
	names    *namespace
	nodes    *nodeTable
	cache    *kernelCache
	reserved *reservations
	follow   *following // nil if open files keep their versions
}

// apply makes applied entries visible. When it returns, no open or lookup that begins later sees what was before.
func (ap *applier) apply(events []meta.Event) {
	var out effects
	self := ap.names.cluster.Self().Node
	for i := range events {
		ap.effect(&events[i], events[i].Node == self, &out)
	}
	if out.names {
		ap.cache.dropNames()
	}
	for _, id := range out.attrs {
		ap.cache.dropAttr(id)
	}
}

// isOwn reports whether a change by this node comes from this mount. It may also come from another mount of this node
// that is changing the same thing at this time: this mount's kernel knows nothing of that.
func (ap *applier) isOwn(k ownKey) bool {
	return ap.names.own.has(k) && !ap.reserved.siblings.change(k, ap.names.own)
}

func (ap *applier) effect(e *meta.Event, mine bool, out *effects) {
	switch e.Kind {
	case meta.EventName:
		n := ap.nodes.known(e.Ino)
		if n == nil || mine && ap.isOwn(ownKey{ino: e.Ino, name: e.Name}) {
			return
		}
		out.names = true
		out.attrs = append(out.attrs, n.id)
	case meta.EventInode:
		n := ap.nodes.known(e.Ino)
		if n == nil || mine && ap.isOwn(ownKey{ino: e.Ino}) {
			return
		}
		out.attrs = append(out.attrs, n.id)
	case meta.EventPublished:
		if mine && ap.isOwn(ownKey{ino: e.Ino}) {
			if ap.ownIsNewest(e.Ino) {
				return
			}
		}
		ap.superseded(e, out)
	case meta.EventRemoved:
		ap.nodes.mu.Lock()
		defer ap.nodes.mu.Unlock()
		if e.Lost {
			ap.reserved.siblings.given.add(e.Ino)
		}
		if n := ap.nodes.current[e.Ino]; n != nil {
			n.gone, n.last = true, *e.Inode
			n.last.Nlink = 0
			if ap.follow != nil {
				ap.follow.askLocked(n.follow)
			}
			out.attrs = append(out.attrs, n.id)
			if n.live != nil {
				ap.reserved.nameRemoved(n.live)
			}
		} else {
			ap.reserved.reserving.removed(e.Ino, false)
		}
	}
}

// ownIsNewest notes that the live file of an inode was published here. That is noted in the order of the log: until
// the publish returns, the version may be superseded again. It is false if the version is of a live file that opens do
// not join any more: a mapping has outlived its writers.
func (ap *applier) ownIsNewest(ino meta.Ino) bool {
	ap.nodes.mu.Lock()
	defer ap.nodes.mu.Unlock()
	n := ap.nodes.current[ino]
	switch {
	case n == nil:
		return true
	case n.live == nil:
		return n.reading == nil
	case !n.live.isPublishing():
		return false
	}
	n.live.superseded = false
	return true
}

// superseded makes a version that did not come from here the one that is seen. A program that has the file open keeps
// what it has. A program that is writing the file goes on, and its publish is the later one.
func (ap *applier) superseded(e *meta.Event, out *effects) {
	ap.nodes.mu.Lock()
	defer ap.nodes.mu.Unlock()
	n := ap.nodes.current[e.Ino]
	if n == nil {
		return
	}
	out.attrs = append(out.attrs, n.id)
	switch {
	case ap.follow != nil:
		ap.follow.askLocked(n.follow)
		return
	case n.live != nil && n.live.publishedLocked(e.Content):
		return
	case n.live != nil && n.live.users.writers > 0:
		n.live.superseded, n.live.graceOver = true, false
		return
	case n.live == nil && n.reading == nil && n.pins == 0:
		return // nothing open: the node goes on with the new version
	case n.live == nil && n.reading != nil && n.reading.id == e.Content:
		return
	}
	if n.live != nil {
		n.live.superseded = true
	}
	ap.nodes.detachLocked(n)
	out.names = true
}

// dropAll makes the kernel ask again for everything: the whole state may have been replaced.
func (ap *applier) dropAll() {
	ap.nodes.mu.Lock()
	ids := make([]uint64, 0, len(ap.nodes.byID))
	for _, n := range ap.nodes.byID {
		ids = append(ids, n.id)
		if ap.follow != nil {
			ap.follow.askLocked(n.follow)
			continue
		}
		if n.kind == meta.KindFile && !n.detached && n.pins > 0 && (n.live == nil || n.live.users.frozen()) {
			ap.nodes.detachLocked(n)
		}
	}
	ap.nodes.mu.Unlock()
	ap.cache.dropNames()
	for _, id := range ids {
		ap.cache.dropAttr(id)
	}
}
