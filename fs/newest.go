package fs

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// errNotInPlace says that a staged file can't be brought to another version under the programs that have it open.
var errNotInPlace = errors.New("fs: the staged file can't be brought to the newest version")

// newest brings a live file to the newest version, when a program has taken a lock of it: another node may have changed
// the file under that lock. What a program of this node has written meanwhile stays, and its publish is the later one.
func (o *openFiles) newest(ctx context.Context, h *handle) syscall.Errno {
	l := h.staged()
	if l == nil {
		return 0
	}
	o.nodes.mu.Lock()
	old := l.superseded && l.node.live == l
	o.nodes.mu.Unlock()
	if !old {
		return 0
	}
	err := o.moveTo(ctx, l)
	if err == nil {
		return 0
	}
	return fail(o.log, "bring to the newest version", l.node.ino(), err)
}

// moveTo replaces the bytes of a live file that holds nothing unpublished.
func (o *openFiles) moveTo(ctx context.Context, l *live) error {
	if err := l.awaitRounds(ctx); err != nil {
		return err
	}
	c, err := l.changes()
	c.end(meta.ContentID{}, false)
	if err != nil || c.any {
		return err
	}
	v, rec, err := o.openVersion(ctx, l.node.ino(), meta.Inode{})
	if err != nil {
		return err
	}
	defer o.closeVersion(v)
	sums, err := sumsOf(v, v.size)
	if err == nil && l.stage.Fd() < 0 {
		err = errNotInPlace
	}
	if err == nil {
		err = l.stageReads.cut(ctx, func() error { return copyInto(l.stage, v) })
	}
	if err == nil {
		err = l.stage.SetTimes(&rec.Atime, &rec.Mtime)
	}
	if err != nil {
		return err
	}
	st, err := l.stage.Stat()
	if err != nil {
		return err
	}
	o.movedTo(l, rec, st, sums)
	o.publisher.noteOver(l)
	return nil
}

// awaitRounds waits until no publish is under way.
func (l *live) awaitRounds(ctx context.Context) error {
	for {
		l.mu.Lock()
		r := l.rounds.last()
		l.mu.Unlock()
		if r == nil {
			return nil
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// copyInto makes a staged file hold the bytes of a version.
func copyInto(to Staged, v *version) error {
	buf := make([]byte, min(max(v.size, 1), copyChunk))
	for off := int64(0); off < v.size; {
		n, err := readFull(v, buf[:min(int64(len(buf)), v.size-off)], off)
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err == nil {
			_, err = to.WriteAt(buf[:n], off)
		}
		if err != nil {
			return err
		}
		off += int64(n)
	}
	return to.Truncate(v.size)
}

// movedTo notes that a live file holds a version, and makes the kernel forget what it knows of the bytes before.
func (o *openFiles) movedTo(l *live, rec meta.Inode, st StageStat, sums *leafSums) {
	o.nodes.mu.Lock()
	l.node.last = rec
	now, err := o.names.state().Inode(rec.Ino)
	l.superseded = err == nil && now.Content != rec.Content
	l.mu.Lock()
	l.current, l.sums, l.published = rec.Content, sums, sample(st, l.dirty)
	l.mu.Unlock()
	o.nodes.mu.Unlock()
	o.cache.notifyBytes(l.node.id)
}

// notifyBytes drops what the kernel has of a file's bytes and attributes. A handler may call it only for the node of
// its own request, if the kernel holds no page of it for that.
func (kc *kernelCache) notifyBytes(id uint64) {
	if k := kc.kernel.Load(); k != nil {
		(*k).InodeNotify(id, 0, 0)
	}
}

// place is where a write goes. One that appends goes to the end: where the kernel does not write by itself, it takes
// the end for where it was when it last asked, and another node may have moved it before the lock was taken.
func (f *fileSystem) place(l *live, in *fuse.WriteIn) int64 {
	at := int64(in.Offset)
	if in.Flags&syscall.O_APPEND == 0 || in.WriteFlags&fuse.WRITE_CACHE != 0 || f.siblings.locks.cluster == nil {
		return at
	}
	st, err := l.stage.Stat()
	if err != nil || st.Size == at {
		return at
	}
	f.life.work.Go(func() { // after the answer: the kernel holds the pages until then
		timer := time.NewTimer(time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-f.life.ctx.Done():
		}
		f.cache.notifyBytes(l.node.id)
	})
	return st.Size
}
