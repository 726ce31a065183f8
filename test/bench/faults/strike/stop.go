package strike

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stop stops a child process and waits until it has stopped as a whole, or ended: its threads stop one after another,
// and on a busy machine some run on for a while.
func stop(ctx context.Context, process *os.Process) error {
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, process.Pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("process %d does not stop: %w", process.Pid, err)
		}
		if info.Signo != 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
