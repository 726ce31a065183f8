package fs

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

func TestErrno(t *testing.T) {
	for _, c := range []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{errors.New("anything"), syscall.EIO},
		{syscall.ENOTEMPTY, syscall.ENOTEMPTY},
		{fmt.Errorf("fs: rename: %w", syscall.EXDEV), syscall.EXDEV},
		{ErrReadOnly, syscall.EROFS},
		{fmt.Errorf("node: propose: %w", ErrReadOnly), syscall.EROFS},
		{ErrUnknown, syscall.EIO},
		{fmt.Errorf("%w: %w", ErrUnknown, context.Canceled), syscall.EIO},
		{replicate.ErrNoSpace, syscall.ENOSPC},
		{&content.NoSpaceError{}, syscall.ENOSPC},
		{replicate.ErrCopies, syscall.EIO},
		{replicate.ErrDamaged, syscall.EIO},
		{meta.ErrNotFound, syscall.ENOENT},
		{iofs.ErrExist, syscall.EEXIST},
		{iofs.ErrPermission, syscall.EPERM},
		{context.DeadlineExceeded, syscall.EIO},
		{syscall.EINTR, syscall.EIO},         // would make close lose its file
		{syscall.ENOSYS, syscall.EOPNOTSUPP}, // would switch the operation off
		{syscall.ESTALE, syscall.EIO},        // would make the kernel look up again
		{syscall.EAGAIN, syscall.EIO},
		{syscall.ECONNREFUSED, syscall.EIO},
		{syscall.Errno(512), syscall.EIO}, // ERESTARTSYS
	} {
		if got := errno(c.err); got != c.want {
			t.Errorf("errno(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}
