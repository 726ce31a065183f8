package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const pollSlice = 200 * time.Millisecond

// StopAndWait ends the daemon and returns when its process is gone, so that another can start on its data
// directory at once.
func (c *Client) StopAndWait(ctx context.Context) error {
	process, err := c.process(ctx)
	if err != nil {
		return err
	}
	defer unix.Close(process)
	if err := c.Stop(ctx); err != nil {
		return err
	}
	for {
		fds := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}} // readable when the process has ended
		n, err := unix.Poll(fds, int(pollSlice.Milliseconds()))
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("admin: wait for the daemon's end: %w", err)
		case ctx.Err() != nil:
			return Errorf(CodeTimeout, "the daemon on %s has not ended yet", c.path)
		}
	}
}

// process opens a pidfd of the process that listens on the socket.
func (c *Client) process(ctx context.Context) (int, error) {
	if _, err := c.Status(ctx); CodeOf(err) == CodeNotRunning {
		return 0, err
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", c.path)
	if err != nil {
		return 0, c.dialled(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("admin: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
			unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("admin: %w", err)
	}
	if credErr != nil {
		return 0, fmt.Errorf("admin: who listens on %s: %w", c.path, credErr)
	}
	pidfd, err := unix.PidfdOpen(int(cred.Pid), 0)
	if err != nil {
		return 0, fmt.Errorf("admin: daemon %d: %w", cred.Pid, err)
	}
	return pidfd, nil
}
