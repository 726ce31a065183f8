package fs

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/internal/clusterlock"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Siblings are the mounts of one node. The names of files without a version belong to the node, not to a mount: each
// shows them, and none gives back one that another one uses. The log tells the changes of nodes apart, not those of
// their mounts: these are told apart here. Locks of files hold between them. The zero value is ready.
type Siblings struct {
	given    givenBack
	locks    fileLocks
	tmpInos  atomic.Uint64 // numbers for files without a name that were given; locks are kept by them
	creating ownChanges    // names of files that any mount is creating, until somebody has them open

	applied atomic.Pointer[clusterlock.Locks] // locks, if they hold between nodes

	mu      sync.Mutex
	sharing int // mounts that have the same locks
	all     []*fileSystem
	spaces  uint64 // numbers for owners of locks that were given to mounts
}

func (s *Siblings) join(f *fileSystem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, f)
	s.spaces++
	f.space = s.spaces
	f.nodes.space = f.space
}

func (s *Siblings) leave(f *fileSystem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.all)
	s.all = slices.DeleteFunc(s.all, func(o *fileSystem) bool { return o == f })
	s.locks.closedSpace(f.space)
	s.sharing -= before - len(s.all)
}

func (s *Siblings) any(is func(f *fileSystem) bool) bool {
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	return slices.ContainsFunc(all, is)
}

// uses tells whether a file is open by any mount; last is the live file that does not count.
func (s *Siblings) uses(ino meta.Ino, last *live) bool {
	return s.any(func(f *fileSystem) bool { return f.nodes.uses(ino, last) })
}

// change tells whether a mount other than the one with own is changing something.
func (s *Siblings) change(k ownKey, own *ownChanges) bool {
	return s.any(func(f *fileSystem) bool { return f.names.own != own && f.names.own.has(k) })
}

// uses tells whether a file is open; last is the live file that does not count.
func (t *nodeTable) uses(ino meta.Ino, last *live) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.current[ino]
	return n != nil && n.live != nil && n.live != last && !n.live.users.ended
}
