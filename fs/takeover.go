package fs

import (
	"context"
	"errors"
	"syscall"

	"github.com/rdmcfs/rdmcfs/meta"
)

// prepareTaken stages the version that programs of this node read, so that they see what is written from now on. If it
// can't be staged so, the node is detached, and the readers keep their version.
func (o *openFiles) prepareTaken(ctx context.Context, l *live, v *version, last meta.Inode, trunc bool) syscall.Errno {
	n := l.node
	rec, err := o.names.state().Inode(n.ino())
	if errors.Is(err, meta.ErrNotFound) {
		rec, err = last, nil
	}
	if err == nil && (rec.Content != v.id || rec.Size != v.size) {
		err = errSuperseded
	}
	if err == nil {
		o.pass.decide(v.backing, v.fd())
		l.taken, l.backing = v, v.backing
		err = o.stageFrom(ctx, l, v, rec, trunc)
	}
	o.nodes.mu.Lock()
	defer o.nodes.mu.Unlock()
	if err != nil {
		o.log.Debug("readers of this node keep the version that they have", "inode", uint64(n.ino()), "reason", err)
		l.taken, l.base, l.backing = nil, nil, new(backing) // they stay the readers'
		l.users.read = true
		o.nodes.detachLocked(n)
		return syscall.ESTALE
	}
	l.users.takeReaders(v.handles)
	v.live.Store(l)
	n.reading = nil
	return 0
}

// errSuperseded says that a newer version came between the look at a file and its open.
var errSuperseded = errors.New("fs: there is a newer version")
