package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/node"
)

func TestHTTPFlags(t *testing.T) {
	for _, c := range []struct {
		flags httpFlags
		want  node.HTTP
		words []string
	}{
		{httpFlags{}, node.HTTP{}, []string{"--fabric=auto"}},
		{httpFlags{HTTP: "10.0.0.1:7480"}, node.HTTP{Addr: "10.0.0.1:7480"},
			[]string{"--fabric=auto", "--http=10.0.0.1:7480"}},
		{httpFlags{HTTP: "[::1]:https", HTTPPprof: true}, node.HTTP{Addr: "[::1]:https", Pprof: true},
			[]string{"--fabric=auto", "--http=[::1]:https", "--http-pprof"}},
	} {
		got, err := c.flags.http()
		words := daemonFlags{fabricFlags{rdmaFlags: rdmaFlags{Fabric: "auto"}}, c.flags}.words()
		if err != nil || got != c.want || !slices.Equal(words, c.words) {
			t.Errorf("%+v: %+v, %v, %q", c.flags, got, err, words)
		}
	}
}

// What can't be an address is refused before anything is made or started.
func TestHTTPFlagsRefused(t *testing.T) {
	for _, addr := range []string{"7480", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:http2much", "10.0.0.1:65536"} {
		for _, args := range [][]string{{"daemon"}, {"mount", "/mnt"}, {"init", "--listen", "127.0.0.1:7400"},
			{"join", "127.0.0.1:7400", "--token", "rdmcfs1_secret", "--listen", "127.0.0.1:7401"}} {
			expect(t, exitcode.Usage, "want HOST:PORT", append(args, "--http="+addr, "--data", dataDir(t))...)
		}
	}
	expect(t, exitcode.Usage, "give --http too", "daemon", "--http-pprof", "--data", dataDir(t))
	expect(t, exitcode.Usage, "unknown flag --http", "doctor", "--http=127.0.0.1:7480", "--data", dataDir(t))
}

// Flags of a daemon that is not started are refused before anything is made. Those of the environment are for later.
func TestDaemonFlagsWithoutADaemon(t *testing.T) {
	for _, flag := range []string{"--http=127.0.0.1:7480", "--fabric=tcp", "--rdma-device=mlx5_0", "--rdma-gid=0",
		"--registered-memory=64MiB"} {
		name, _, _ := strings.Cut(flag, "=")
		for _, args := range [][]string{{"init", "--listen", "127.0.0.1:7400"},
			{"join", "127.0.0.1:7400", "--token", "rdmcfs1_secret", "--listen", "127.0.0.1:7401"}} {
			dir := dataDir(t)
			expect(t, exitcode.Usage, "no daemon that "+name+" could be for: give it to 'rdmcfs mount'",
				append(args, flag, "--no-start", "--data", dir)...)
			expect(t, exitcode.OK, "", append(args, "--fabric=auto", "--no-start", "--data", dir)...)
		}
	}
	t.Setenv("RDMCFS_HTTP", "127.0.0.1:7480")
	t.Setenv("RDMCFS_HTTP_PPROF", "1")
	t.Setenv("RDMCFS_REGISTERED_MEMORY", "64MiB")
	expect(t, exitcode.OK, "", "init", "--no-start", "--listen", "127.0.0.1:7400", "--data", dataDir(t))
	expect(t, exitcode.Usage, "that --registered-memory could", "init", "--no-start", "--registered-memory=32MiB",
		"--listen", "127.0.0.1:7400", "--data", dataDir(t))
}

// A daemon in the background gets the flags of the command that started it.
func TestHTTPFlagsOfABackgroundDaemon(t *testing.T) {
	dir := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--no-start", "--listen", "127.0.0.1:7400", "--data", dir)
	expect(t, exitcode.OK, "", "mount", "-d", "/mnt/x", "--http=127.0.0.1:7480", "--http-pprof", "--data", dir)
	log, err := os.ReadFile(filepath.Join(dir, logFolder, logFile))
	if err != nil || !strings.Contains(string(log), "addr=127.0.0.1:7480 pprof=true") {
		t.Errorf("%s, %v", log, err)
	}
}
