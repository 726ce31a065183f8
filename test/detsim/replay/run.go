package replay

import (
	"context"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// SeedVariable of the environment tells a program its seed, and TraceVariable whether to print what it did: 0 or 1.
const (
	SeedVariable  = "REPLAY_SEED"
	TraceVariable = "REPLAY_TRACE"
)

// noRandomAddresses is ADDR_NO_RANDOMIZE of personality(2): addresses are keys of maps.
const noRandomAddresses = 0x0040000

// Command is a run of a program that Build has made, by a seed, in a directory of its own for its files. Its
// arguments and its environment lie in its memory, so they are the same for all runs of a seed on all machines,
// except for one digit.
func Command(ctx context.Context, program, seed, dir string, trace bool, args ...string) *exec.Cmd {
	digit := "0"
	if trace {
		digit = "1"
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Args[0] = "replay"
	cmd.Dir = dir
	cmd.Env = []string{SeedVariable + "=" + seed, TraceVariable + "=" + digit, "TMPDIR=" + dir, "PWD=" + dir,
		"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=off", // a collection begins when the program says so
		"GODEBUG=asyncpreemptoff=1,gcstoptheworld=2,memprofilerate=0"}
	return cmd
}

// Output runs a command and gives what it has printed. Its addresses are the same each time.
func Output(cmd *exec.Cmd) ([]byte, error) {
	type result struct {
		out []byte
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its personality with it
		if _, _, errno := unix.Syscall(unix.SYS_PERSONALITY, noRandomAddresses, 0, 0); errno != 0 {
			done <- result{err: errno}
			return
		}
		out, err := cmd.CombinedOutput()
		done <- result{out, err}
	}()
	r := <-done
	return r.out, r.err
}
