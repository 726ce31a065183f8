package fs

import (
	"context"
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// ownKey is something that an operation of this mount changes: a name, or an inode when the name is empty.
type ownKey struct {
	ino  meta.Ino
	name string
}

// ownChanges counts changes that are under way. Those of a mount come from its own kernel, which knows of them already:
// their events need drop no cache. The zero value is ready.
type ownChanges struct {
	mu  sync.Mutex
	all map[ownKey]int
}

// begin counts keys until the returned function is called.
func (o *ownChanges) begin(keys ...ownKey) (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[ownKey]int{}
	}
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

func (o *ownChanges) has(k ownKey) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[k] > 0
}

// ownPush counts the keys of a push, whose inode may change on the way.
type ownPush struct {
	pub *publisher
	l   *live

	mu    sync.Mutex
	end   func()
	ended bool // the push has: nothing more is counted
}

// begin counts the keys of a push of an inode.
func (o *ownPush) begin(p replicate.Push) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.end = o.pub.ownPublish(o.l, p)
	}
}

// pause ends the count.
func (o *ownPush) pause() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end != nil {
		o.end()
		o.end = nil
	}
}

// over ends the count for good.
func (o *ownPush) over() {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	o.pause()
}

// rename reserves the name of a file again whose inode went in mid-push, and returns the inode that the file then has.
// A file that a program of this node removed meanwhile has none. Nothing is counted meanwhile: a caller that looks for
// removals under way would wait for the push.
func (o *ownPush) rename(ctx context.Context) (meta.Ino, error) {
	o.pause()
	if err := o.pub.reserved.reserveAgain(ctx, o.l); err != nil {
		return 0, err
	}
	if o.pub.nodes.isRemoved(o.l.node) {
		return 0, errNameless
	}
	ino := o.l.node.ino()
	o.begin(replicate.Push{Ino: ino})
	return ino, nil
}

func (ns *namespace) ownInode(ino meta.Ino) (end func()) { return ns.own.begin(ownKey{ino: ino}) }

func (ns *namespace) ownName(dir meta.Ino, name string) (end func()) {
	return ns.own.begin(ownKey{ino: dir}, ownKey{ino: dir, name: name})
}

// ownPublish also counts the name that appears for others with the first version.
func (pub *publisher) ownPublish(l *live, p replicate.Push) (end func()) {
	keys := []ownKey{{ino: p.Ino}}
	l.mu.Lock()
	if l.reserved {
		keys = append(keys, ownKey{ino: l.parent}, ownKey{ino: l.parent, name: l.name})
	}
	l.mu.Unlock()
	if p.LinkName != "" {
		keys = append(keys, ownKey{ino: p.LinkParent}, ownKey{ino: p.LinkParent, name: p.LinkName})
	}
	return pub.names.own.begin(keys...)
}
