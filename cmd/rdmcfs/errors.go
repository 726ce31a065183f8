package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// exitError gives an error an exit code of its own; without err nothing more is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// withCode is an error with an exit code.
func withCode(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

var adminCodes = map[admin.Code]int{
	admin.CodeInvalid:     exitcode.Usage,
	admin.CodeNotFound:    exitcode.NotFound,
	admin.CodeExists:      exitcode.Exists,
	admin.CodeBusy:        exitcode.Busy,
	admin.CodeTimeout:     exitcode.Timeout,
	admin.CodeUnavailable: exitcode.Unavailable,
	admin.CodeFull:        exitcode.Full,
	admin.CodeDenied:      exitcode.Denied,
	admin.CodeNotRunning:  exitcode.NotRunning,
	admin.CodeNeeded:      exitcode.Needed,
}

// errorCode pairs an error with its exit code.
type errorCode struct {
	err  error
	code int
}

// errorCodes gives the codes of errors that do not come over the admin socket. The first that matches counts.
var errorCodes = []errorCode{
	{credentials.ErrTokenMalformed, exitcode.Denied},
	{credentials.ErrTokenExpired, exitcode.Denied},
	{credentials.ErrForeignCluster, exitcode.Denied},
	{credentials.ErrEvicted, exitcode.Denied},
	{control.ErrTokenUnknown, exitcode.Denied},
	{control.ErrTokenUsed, exitcode.Denied},
	{control.ErrNotReplaceable, exitcode.Denied},
	{control.ErrClock, exitcode.Denied},
	{control.ErrRefused, exitcode.Denied},
	{control.ErrNameTaken, exitcode.Exists},
	{control.ErrAddrTaken, exitcode.Exists},
	{control.ErrSameNode, exitcode.Exists},
	{control.ErrUsage, exitcode.Usage},
	{control.ErrNoNode, exitcode.Unavailable},
	{control.ErrUnavailable, exitcode.Unavailable},
	{control.ErrBusy, exitcode.Unavailable},
	{os.ErrPermission, exitcode.Denied},
	{syscall.ENOSPC, exitcode.Full},
	{syscall.EBUSY, exitcode.Busy},
	{context.DeadlineExceeded, exitcode.Timeout},
	{os.ErrNotExist, exitcode.NotFound},
}

// codeOf is the exit code of an error.
func codeOf(err error) int {
	var own *exitError
	if errors.As(err, &own) {
		return own.code
	}
	var remote *admin.Error
	if errors.As(err, &remote) {
		if code, ok := adminCodes[remote.Code]; ok {
			return code
		}
		return exitcode.Failure
	}
	for _, table := range [][]errorCode{nodeErrors, errorCodes} {
		for _, row := range table {
			if errors.Is(err, row.err) {
				return row.code
			}
		}
	}
	return exitcode.Failure
}
