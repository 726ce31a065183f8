package fs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
	"golang.org/x/sys/unix"
)

// truncate sets the size of a file, by its handle or by name. By name it is published before it answers.
func (f *fileSystem) truncate(
	ctx context.Context, cancel <-chan struct{}, in *fuse.SetAttrIn, n *node, size int64, patch meta.AttrPatch,
) syscall.Errno {
	if n.kind != meta.KindFile {
		return syscall.EINVAL
	}
	if f.files.follow != nil {
		return syscall.EROFS
	}
	if size < 0 {
		return syscall.EFBIG
	}
	if fh, ok := in.GetFh(); ok {
		if h := f.files.handles.get(fh); h != nil && h.live != nil {
			return f.setSize(ctx, h.live, size, patch)
		}
	}
	h, no := f.retries.acquireToCut(ctx, n, in.Pid, size == 0)
	if no != 0 {
		return no
	}
	defer f.files.release(h)
	if no := f.setSize(ctx, h.live, size, patch); no != 0 {
		return no
	}
	return f.publisher.flush(cancel, in.Pid, h.live, nil)
}

func (f *fileSystem) setSize(ctx context.Context, l *live, size int64, patch meta.AttrPatch) syscall.Errno {
	if err := l.setSize(ctx, size); err != nil {
		return fail(f.log, "truncate", l.node.ino(), err)
	}
	l.touched()
	if patch.Mask&meta.AttrKillPriv != 0 {
		return f.attrs.change(ctx, l.node, meta.AttrPatch{Mask: meta.AttrKillPriv}, newTimes{}, 0)
	}
	return 0
}

// setSize makes a live file longer or shorter.
func (l *live) setSize(ctx context.Context, size int64) error {
	st, err := l.stage.Stat()
	if err != nil {
		return err
	}
	do := func() error { return l.stage.Truncate(size) }
	if size >= st.Size {
		return do() // the kernel lets nobody write meanwhile
	}
	return l.stageReads.cut(ctx, do)
}

// allocate is fallocate(2) on a live file.
func (l *live) allocate(ctx context.Context, mode uint32, offset, length int64) error {
	do := func() error { return l.stage.Allocate(mode, offset, length) }
	if mode&^unix.FALLOC_FL_KEEP_SIZE == 0 {
		return do()
	}
	return l.stageReads.cut(ctx, do)
}
