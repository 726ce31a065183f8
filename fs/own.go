package fs

import (
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// ownKey is something that an operation of this mount changes: a name, or an inode when the name is empty.
type ownKey struct {
	ino  meta.Ino
	name string
}

// ownOps counts the changes that come from this mount's own kernel, which knows of them already: their events
// need drop no cache.
type ownOps struct {
	mu  sync.Mutex
	all map[ownKey]int
}

func newOwnOps() *ownOps { return &ownOps{all: map[ownKey]int{}} }

// begin counts keys until the returned function is called.
func (o *ownOps) begin(keys ...ownKey) (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range keys {
		o.all[k]++
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, k := range keys {
			if o.all[k]--; o.all[k] == 0 {
				delete(o.all, k)
			}
		}
	}
}

func (o *ownOps) has(k ownKey) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[k] > 0
}

func (f *fileSystem) ownInode(ino meta.Ino) (end func()) { return f.own.begin(ownKey{ino: ino}) }

func (f *fileSystem) ownName(dir meta.Ino, name string) (end func()) {
	return f.own.begin(ownKey{ino: dir}, ownKey{ino: dir, name: name})
}

// ownPublish also counts the name that appears for others with the first version.
func (f *fileSystem) ownPublish(l *live, p replicate.Push) (end func()) {
	keys := []ownKey{{ino: p.Ino}}
	l.mu.Lock()
	if l.reserved {
		keys = append(keys, ownKey{ino: l.parent}, ownKey{ino: l.parent, name: l.name})
	}
	l.mu.Unlock()
	if p.LinkName != "" {
		keys = append(keys, ownKey{ino: p.LinkParent}, ownKey{ino: p.LinkParent, name: p.LinkName})
	}
	return f.own.begin(keys...)
}
