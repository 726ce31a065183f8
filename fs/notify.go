package fs

import (
	"context"
	"encoding/binary"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// notifyQueue bounds what handlers may have waiting; what does not fit is only cached a little longer than it should
// be.
const notifyQueue = 1024

// notifier tells the kernel what not to cache. The two notifications it uses take no lock of a directory or a file.
type notifier struct {
	kernel atomic.Pointer[Kernel] // nil until it is attached: requests may come before
	queue  chan uint64            // nodeids; never closed
}

func (n *notifier) attach(k Kernel) { n.kernel.Store(&k) }

// backing is the kernel that backing files are registered with: passthrough is only switched on after it is attached.
func (n *notifier) backing() Kernel { return *n.kernel.Load() }

// epochMessage is FUSE_NOTIFY_INC_EPOCH: length, code, and the unique of a notification.
func epochMessage() []byte {
	code := int32(fuse.NOTIFY_INC_EPOCH)
	b := binary.NativeEndian.AppendUint32(nil, 16)
	b = binary.NativeEndian.AppendUint32(b, uint32(-code))
	return binary.NativeEndian.AppendUint64(b, 0)
}

// epoch makes the kernel look up every name again that it uses from now on. ok is false where it knows no epochs.
func (n *notifier) epoch() (ok bool) {
	k := n.kernel.Load()
	return k != nil && (*k).Epoch()
}

// attrNow drops the cached attributes of a node. A handler may call it only for the node of its own request, which
// the kernel holds. The kernel may not know the node, or not yet.
func (n *notifier) attrNow(id uint64) (known bool) {
	k := n.kernel.Load()
	return k == nil || (*k).InodeNotify(id, -1, 0) != fuse.ENOENT
}

// attr does the same soon; a handler may call it.
func (n *notifier) attr(id uint64) {
	select {
	case n.queue <- id:
	default:
	}
}

// run serves the queue until ctx ends.
func (n *notifier) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-n.queue:
			if id == allNames {
				n.epoch()
			} else {
				n.attrNow(id)
			}
		}
	}
}

// allNames in the queue stands for a new epoch; no node has this id.
const allNames = 0

// names makes the kernel look up all names again soon; a handler may call it.
func (n *notifier) names() { n.attr(allNames) }

// effects is what applied entries mean to the kernel's caches.
type effects struct {
	names bool // look up again
	attrs []uint64
}

// apply makes applied entries visible. When it returns, no open or lookup that begins later sees what was before.
func (f *fileSystem) apply(events []meta.Event) {
	var out effects
	self := f.cluster.Self().Node
	for i := range events {
		f.effect(&events[i], events[i].Node == self, &out)
	}
	if out.names && f.entryTimeout > 0 {
		f.notifier.epoch()
	}
	for _, id := range out.attrs {
		f.dropAttr(id)
	}
}

func (f *fileSystem) effect(e *meta.Event, mine bool, out *effects) {
	switch e.Kind {
	case meta.EventName:
		n := f.nodes.known(e.Ino)
		if n == nil || mine && f.own.has(ownKey{ino: e.Ino, name: e.Name}) {
			return
		}
		out.names = true
		out.attrs = append(out.attrs, n.id)
	case meta.EventInode:
		n := f.nodes.known(e.Ino)
		if n == nil || mine && f.own.has(ownKey{ino: e.Ino}) {
			return
		}
		out.attrs = append(out.attrs, n.id)
	case meta.EventPublished:
		if mine && f.own.has(ownKey{ino: e.Ino}) {
			return
		}
		f.superseded(e, out)
	case meta.EventRemoved:
		f.nodes.mu.Lock()
		defer f.nodes.mu.Unlock()
		if n := f.nodes.current[e.Ino]; n != nil {
			n.gone, n.last = true, *e.Inode
			n.last.Nlink = 0
			out.attrs = append(out.attrs, n.id)
			if n.live != nil {
				f.nameRemoved(n.live)
			}
		} else {
			f.reserving.removed(e.Ino, false)
		}
	}
}

// superseded makes a version that did not come from here the one that is seen. Who has the file open keeps what
// he has; who is writing it goes on, and his publish is the later one.
func (f *fileSystem) superseded(e *meta.Event, out *effects) {
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	n := f.nodes.current[e.Ino]
	if n == nil {
		return
	}
	out.attrs = append(out.attrs, n.id)
	switch {
	case n.live != nil && n.live.publishedLocked(e.Content):
		return
	case n.live != nil && !n.live.frozenLocked():
		n.live.superseded, n.live.graceOver = true, false
		return
	case n.live == nil && n.reading == nil && n.pins == 0:
		return // nothing open: the node goes on with the new version
	case n.live == nil && n.reading != nil && n.reading.id == e.Content:
		return
	}
	f.nodes.detachLocked(n)
	out.names = true
}

// publishedLocked reports whether a live file was published as that content. table.mu is held.
func (l *live) publishedLocked(id meta.ContentID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.published.valid && l.current == id
}

// dropAll makes the kernel ask again for everything: the whole state may have been replaced.
func (f *fileSystem) dropAll() {
	f.nodes.mu.Lock()
	ids := make([]uint64, 0, len(f.nodes.byID))
	for _, n := range f.nodes.byID {
		ids = append(ids, n.id)
		if n.kind == meta.KindFile && !n.detached && n.pins > 0 && (n.live == nil || n.live.frozenLocked()) {
			f.nodes.detachLocked(n)
		}
	}
	f.nodes.mu.Unlock()
	if f.entryTimeout > 0 {
		f.notifier.epoch()
	}
	for _, id := range ids {
		f.dropAttr(id)
	}
}
