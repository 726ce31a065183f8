package fs_test

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(runChild(mode, os.Getenv(childPath)))
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("os/signal.loop"),
		goleak.IgnoreAnyFunction("github.com/rdmcfs/rdmcfs/fs.userUnder.func1")) // waits for foreign processes
}

// eventually waits until a condition holds, at most a minute: a late machine does not take so long.
func eventually(t testing.TB, cond func() error) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}

func isErrno(err error, no syscall.Errno) bool {
	var got syscall.Errno
	return errors.As(err, &got) && got == no
}

func skipWithout(t testing.TB, program string) {
	t.Helper()
	for _, dir := range []string{"/bin/", "/usr/bin/", "/usr/local/bin/"} {
		if _, err := os.Stat(dir + program); err == nil {
			return
		}
	}
	t.Skipf("%s is not installed", program)
}
