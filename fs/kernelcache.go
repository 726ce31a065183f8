package fs

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// notifyQueue bounds what handlers may have waiting; what does not fit is only cached a little longer than it should
// be.
const notifyQueue = 1024

// kernelCache is what the kernel may cache of names and attributes. Two notifications, which take no lock of a
// directory or a file, say what it must no longer cache.
type kernelCache struct {
	nodes        *nodeTable
	kernel       atomic.Pointer[Kernel] // nil until it is attached: requests may come before
	queue        chan uint64            // nodeids; never closed
	entryTimeout time.Duration          // of names; 0 where the kernel knows no epochs. Constant from the mount on
}

func newKernelCache(nodes *nodeTable) *kernelCache {
	kc := &kernelCache{nodes: nodes, queue: make(chan uint64, notifyQueue)}
	nodes.dropAttr = kc.dropAttrSoon
	return kc
}

// attach begins to notify a kernel. Names are cached if the kernel can be notified of them and noNames is false.
func (kc *kernelCache) attach(k Kernel, noNames bool) {
	kc.kernel.Store(&k)
	if kc.epoch() && !noNames {
		kc.entryTimeout = cacheForever
	}
}

// epochMessage is FUSE_NOTIFY_INC_EPOCH: length, code, and the unique of a notification.
func epochMessage() []byte {
	code := int32(fuse.NOTIFY_INC_EPOCH)
	b := binary.NativeEndian.AppendUint32(nil, 16)
	b = binary.NativeEndian.AppendUint32(b, uint32(-code))
	return binary.NativeEndian.AppendUint64(b, 0)
}

// epoch makes the kernel look up every name again that it uses from now on. ok is false where it knows no epochs.
func (kc *kernelCache) epoch() (ok bool) {
	k := kc.kernel.Load()
	return k != nil && (*k).Epoch()
}

// dropNames makes the kernel look up all names again, if it caches any. It is not to be called from a handler.
func (kc *kernelCache) dropNames() {
	if kc.entryTimeout > 0 {
		kc.epoch()
	}
}

// notifyAttr drops the cached attributes of a node. A handler may call it only for the node of its own request, which
// the kernel holds. The kernel may not know the node, or not yet.
func (kc *kernelCache) notifyAttr(id uint64) (known bool) {
	k := kc.kernel.Load()
	return k == nil || (*k).InodeNotify(id, -1, 0) != fuse.ENOENT
}

// dropPages drops the cached attributes and pages of a node. It waits for reads of the pages that are under way.
func (kc *kernelCache) dropPages(id uint64) {
	if k := kc.kernel.Load(); k != nil {
		(*k).InodeNotify(id, 0, 0)
	}
}

// dropAttrSoon does the same as notifyAttr soon; a handler may call it.
func (kc *kernelCache) dropAttrSoon(id uint64) {
	select {
	case kc.queue <- id:
	default:
	}
}

// run serves the queue until ctx ends.
func (kc *kernelCache) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-kc.queue:
			if id == allNames {
				kc.epoch()
			} else {
				kc.notifyAttr(id)
			}
		}
	}
}

// allNames in the queue stands for a new epoch; no node has this id.
const allNames = 0

// dropNamesSoon makes the kernel look up all names again soon; a handler may call it.
func (kc *kernelCache) dropNamesSoon() { kc.dropAttrSoon(allNames) }

// cacheForever is how long the kernel may keep what Apply invalidates.
const cacheForever = time.Hour

// dropAttr makes the kernel forget the attributes of a node. It is not to be called from a handler.
func (kc *kernelCache) dropAttr(id uint64) {
	kc.nodes.mu.Lock()
	n := kc.nodes.byID[id]
	var before kernelAttrs
	if n != nil {
		before = n.kernel
	}
	kc.nodes.mu.Unlock()
	known := kc.notifyAttr(id)
	if n == nil {
		return
	}
	// if not known: the answer to its first lookup is on its way, and the name that comes with it has the old epoch
	if !known {
		kc.dropNames()
		return
	}
	kc.nodes.mu.Lock()
	defer kc.nodes.mu.Unlock()
	if n.kernel == before {
		n.kernel.known = false
	}
}
