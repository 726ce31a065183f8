package fs

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// prepare stages the node's current bytes.
func (o *openFiles) prepare(ctx context.Context, l *live, trunc bool) {
	defer close(l.ready)
	n := l.node
	o.nodes.mu.Lock()
	last, readers := n.last, n.shareLocked()
	o.nodes.mu.Unlock()
	if readers != nil {
		defer o.release(readers)
		l.err = o.prepareTaken(ctx, l, readers.version, last, trunc)
		return
	}
	v, rec, err := o.openVersion(ctx, n.ino(), last)
	if errors.Is(err, errGone) || err == nil && !trunc && o.kernelHasOther(n, v) {
		l.err = syscall.ESTALE
		return
	}
	if err == nil {
		err = o.stageFrom(ctx, l, v, rec, trunc)
	}
	if err != nil {
		l.err = fail(o.log, "stage", n.ino(), err)
	}
}

func (o *openFiles) stageFrom(ctx context.Context, l *live, v *version, rec meta.Inode, trunc bool) error {
	info := StageInfo{Ino: rec.Ino, Parent: rec.Parent, Path: o.names.path(rec), Base: rec.Content, Holes: rec.Holes}
	if err := o.stageBytes(ctx, l, v, info, trunc); err != nil {
		return err
	}
	l.mu.Lock()
	l.reserved, l.lease = rec.Version == 0, rec.Reserved
	l.parent, l.name = rec.Parent, rec.Name
	l.current = rec.Content
	emptied := trunc && rec.Size != 0
	if emptied {
		l.published = state{valid: !l.reserved, size: rec.Size} // differs from what is staged
	}
	l.mu.Unlock()
	if emptied {
		return nil
	}
	if err := l.settleNew(rec); err != nil || !trunc {
		return err
	}
	l.touched()
	now := time.Now().UnixNano()
	return l.stage.SetTimes(nil, &now)
}

// stageBytes makes the staged file, and takes over a version that nobody reads.
func (o *openFiles) stageBytes(ctx context.Context, l *live, v *version, info StageInfo, trunc bool) (err error) {
	switch {
	case l.taken != nil && l.backing.on():
		l.stage, err = o.staging.TakeOver(info, v.reader)
		if err == nil && trunc {
			err = l.stage.Truncate(0)
		}
	case trunc || v.reader == nil:
		l.stage, err = o.staging.Create(info)
	default:
		l.stage, err = o.staging.CopyUp(ctx, info, v.reader)
	}
	switch {
	case !trunc && err == nil:
		l.base = v.reader
	case l.taken == nil:
		if closeErr := v.close(); err == nil {
			err = closeErr
		}
	}
	return err
}

// settleNew gives a staged copy the times of what it was made from and remembers it as unchanged.
func (l *live) settleNew(rec meta.Inode) error {
	if rec.Version == 0 {
		return nil // it is reserved
	}
	if err := l.stage.SetTimes(&rec.Atime, &rec.Mtime); err != nil {
		return err
	}
	st, err := l.stage.Stat()
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.published = sample(st, 0)
	l.mu.Unlock()
	return nil
}

// stageNew makes the live file of a reserved inode, referenced by the kernel.
func (o *openFiles) stageNew(rec meta.Inode, name string) (*handle, syscall.Errno) {
	n := o.nodes.looked(rec)
	l, mine, no := o.joinOrBegin(n)
	if no != 0 || !mine {
		o.nodes.forget(n.id, 1)
		return nil, syscall.EIO // nobody can have had it open
	}
	l.reserved, l.lease = true, rec.Reserved
	l.parent, l.name = rec.Parent, name
	stage, err := o.staging.Create(StageInfo{Ino: rec.Ino, Parent: rec.Parent, Path: o.names.path(rec)})
	h := &handle{node: n, live: l, writer: true}
	if err != nil {
		l.err = fail(o.log, "stage", rec.Ino, err)
		close(l.ready)
		o.release(h)
		o.reserved.unreserve(l)
		o.nodes.forget(n.id, 1)
		return nil, l.err
	}
	l.stage = stage
	close(l.ready)
	return h, 0
}

// publishEmpty gives a reserved file its first version without bytes.
func (o *openFiles) publishEmpty(
	cancel <-chan struct{}, pid uint32, rec meta.Inode, attr meta.AttrPatch,
) syscall.Errno {
	h, no := o.stageNew(rec, rec.Name)
	if no != 0 {
		return no
	}
	defer o.nodes.forget(h.node.id, 1)
	defer o.release(h)
	h.live.begin(attr, false)
	return o.publisher.flush(cancel, pid, h.live, nil)
}

// begin gives a new file the attributes of its first version. Others may have opened and changed it since it was ready.
func (l *live) begin(attr meta.AttrPatch, mayMap bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mayMap = l.mayMap || mayMap
	l.attrs.waiting = mergePatch(attr, l.attrs.waiting)
}
