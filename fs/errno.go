package fs

import (
	"context"
	"errors"
	iofs "io/fs"
	"log/slog"
	"syscall"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// Errors of Cluster.Propose and Publish that callers of the file system can distinguish.
var (
	// ErrReadOnly says that there is no quorum: nothing can change now.
	ErrReadOnly = errors.New("fs: read only: no quorum")
	// ErrUnknown says that a change may or may not have happened.
	ErrUnknown = replicate.ErrUnknown
)

// UnknownError is ErrUnknown for a change whose outcome the node is still trying to learn.
type UnknownError struct {
	Err error
	// Outcome gets the result when it is known, and is closed; it is closed without one when nobody will know.
	Outcome <-chan meta.Result
}

func (e *UnknownError) Error() string { return e.Err.Error() }

// Unwrap makes errors.Is(err, ErrUnknown) true.
func (e *UnknownError) Unwrap() error { return e.Err }

// outcomeOf is the outcome of a change that was not known yet; nil if an error says nothing of one.
func outcomeOf(err error) <-chan meta.Result {
	var unknown *UnknownError
	if !errors.As(err, &unknown) {
		return nil
	}
	return unknown.Outcome
}

// errno maps an error to what the caller of a system call gets. Unknown errors are EIO.
func errno(err error) syscall.Errno {
	var no syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrReadOnly):
		return syscall.EROFS
	case errors.Is(err, ErrUnknown):
		return syscall.EIO
	case errors.Is(err, replicate.ErrNoSpace):
		return syscall.ENOSPC
	case errors.As(err, &no):
		return known(no)
	case errors.Is(err, meta.ErrNotFound), errors.Is(err, iofs.ErrNotExist):
		return syscall.ENOENT
	case errors.Is(err, iofs.ErrExist):
		return syscall.EEXIST
	case errors.Is(err, iofs.ErrPermission):
		return syscall.EPERM
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return syscall.EIO
	}
	return syscall.EIO
}

// known keeps errnos that would mislead the kernel from reaching it: EINTR and ERESTART would be retried for ever or
// make close lose its file, ENOSYS switches an operation off for the life of the mount, ESTALE and EAGAIN mean
// something else there.
func known(no syscall.Errno) syscall.Errno {
	switch no {
	case syscall.EINTR, syscall.EAGAIN, syscall.ESTALE, syscall.ENOTCONN, syscall.ECONNREFUSED, syscall.ECONNRESET,
		syscall.ETIMEDOUT, syscall.EPIPE:
		return syscall.EIO
	case syscall.ENOSYS:
		return syscall.EOPNOTSUPP
	}
	if no >= 512 {
		return syscall.EIO
	}
	return no
}

// fail logs what a caller only sees as an errno and gives that errno.
func fail(log *slog.Logger, what string, ino meta.Ino, err error) syscall.Errno {
	no := errno(err)
	if no == syscall.EIO && !errors.Is(err, context.Canceled) {
		log.Error(what, "inode", uint64(ino), "err", err)
	}
	return no
}
