// Package integration runs scenarios on clusters of real nodes: processes, kernel mounts, network namespaces.
//
// The sizes are those of `make test`; -long takes the full ones of docs/TESTING.md.
//
// A test that bounds times closely, or counts bytes, runs alone. The others call t.Parallel: they wait for processes,
// links and timers most of the time, and bound only how long they wait for what has to come.
package integration

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	long          = flag.Bool("long", false, "full sizes")
	noPassthrough = flag.Bool("no-passthrough", false, "mount without FUSE passthrough, as in a container")
)

func TestMain(m *testing.M) {
	if dirs := os.Getenv(lockClientsEnv); dirs != "" {
		began, err := strconv.ParseInt(os.Getenv(lockBeganEnv), 10, 64)
		if err = errors.Join(err, runLockClients(strings.Split(dirs, ":"), time.Unix(0, began))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "integration: mounts and network namespaces need root: run make as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// size picks the full or the reduced size of a test.
func size[T any](reduced, full T) T {
	if *long {
		return full
	}
	return reduced
}
