package fs

import (
	"slices"
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
)

// Siblings are the mounts of one node. The names of files without a version belong to the node, not to a mount: each
// shows them, and none gives back one that another one uses. The zero value is ready.
type Siblings struct {
	given givenBack

	mu     sync.Mutex
	tables []*nodeTable
}

func (s *Siblings) join(t *nodeTable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tables = append(s.tables, t)
}

func (s *Siblings) leave(t *nodeTable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tables = slices.DeleteFunc(s.tables, func(o *nodeTable) bool { return o == t })
}

// uses tells whether a file is open by any mount; last is the live file that does not count.
func (s *Siblings) uses(ino meta.Ino, last *live) bool {
	s.mu.Lock()
	tables := slices.Clone(s.tables)
	s.mu.Unlock()
	return slices.ContainsFunc(tables, func(t *nodeTable) bool { return t.uses(ino, last) })
}

// uses tells whether a file is open; last is the live file that does not count.
func (t *nodeTable) uses(ino meta.Ino, last *live) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.current[ino]
	return n != nil && n.live != nil && n.live != last && !n.live.users.ended
}
