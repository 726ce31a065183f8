package fs

import (
	"slices"

	"github.com/rdmcfs/rdmcfs/meta"
)

// renamed notes the name that a file has by now, which may have no version: a fence that frees the name makes this node
// reserve it again.
func (s *Siblings) renamed(rec meta.Inode) {
	if rec.Kind != meta.KindFile || rec.Version != 0 {
		return
	}
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	for _, f := range all {
		if n := f.nodes.known(rec.Ino); n != nil {
			f.reserved.renamed(n, rec)
		}
	}
}

func (rs *reservations) renamed(n *node, rec meta.Inode) {
	rs.nodes.mu.Lock()
	l := n.live
	rs.nodes.mu.Unlock()
	if l == nil || !l.wasReserved() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parent, l.name = rec.Parent, rec.Name
}
