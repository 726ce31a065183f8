package integration

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G9: init and join take their port, and try RDMA that is demanded, before they write or ask anything. No node lives on
// a mount of rdmcfs.
func TestNothingIsMadeForANodeThatCannotServe(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2, Manual: true})
	one, two := c.Nodes[0], c.Nodes[1]
	one.Init()
	one.Start()
	token := newToken(t, one)
	host, _, err := net.SplitHostPort(one.Addr)
	must(t, err)

	join := func(listen string) []string {
		return []string{"join", one.Addr, "--token", token, "--name", two.Name(), "--no-start", "--listen", listen}
	}
	refused(t, two, exitcode.Usage, "this machine does not have that address", join(net.JoinHostPort(host, "7400"))...)
	refused(t, two, exitcode.Usage, "this machine does not have that address", "init", "--no-start", "--listen",
		"192.0.2.1:7400")
	refused(t, two, exitcode.Usage, "no-such-host.invalid", join("no-such-host.invalid:7400")...)
	isAbsent(t, two.Data)
	if got := len(one.Status().Nodes); got != 1 {
		t.Errorf("the cluster has %d nodes after joins that were refused, want 1", got)
	}

	refusedAt := func(data string, code int, says string, args ...string) {
		t.Helper()
		printed, err := one.Run(cluster.Binary(t), append(args, "--data", data)...)
		checkRefusal(t, args[0]+" at "+data, printed, err, code, says)
	}
	onMount, beside, why := one.Path("below", "data"), net.JoinHostPort(host, "7500"),
		"rdmcfs can't keep its own data on rdmcfs"
	refusedAt(onMount, exitcode.Usage, why, "init", "--no-start", "--listen", beside)
	refusedAt(onMount, exitcode.Usage, why, join(beside)...)
	isAbsent(t, filepath.Dir(onMount))
	run(t, "cp", "-r", filepath.Join(one.Data, "tls"), filepath.Join(one.Data, "node.json"), one.Mount)
	refusedAt(one.Mount, exitcode.Usage, why, "daemon")

	busy := filepath.Join(c.Dir, "busy")
	refusedAt(busy, exitcode.Exists, "another program uses this port", "init", "--no-start", "--listen", one.Addr)
	refusedAt(busy, exitcode.Exists, "another program uses this port", "init", "--http", one.Addr, "--listen", beside)
	refusedAt(busy, exitcode.Usage, "this machine does not have that address", "init", "--http", "192.0.2.1:7480",
		"--listen", beside)
	isAbsent(t, busy)

	started := func(more ...string) []string {
		return append([]string{"join", one.Addr, "--token", token, "--name", two.Name(), "--listen", two.Addr}, more...)
	}
	refused(t, two, exitcode.Usage, "at least 8.00 MiB", started("--registered-memory=1")...)
	refused(t, two, exitcode.Usage, "want an address such as", started("--rdma-gid=no-gid")...)
	refused(t, two, exitcode.Problem, "no RDMA, which was asked for", started("--fabric=verbs",
		"--rdma-device=no-device")...)
	refused(t, two, exitcode.Denied, "malformed join token", "join", one.Addr, "--token", token+"x", "--listen", two.Addr)
	refused(t, two, exitcode.Usage, "want HOST:PORT", "join", host, "--token", token, "--listen", two.Addr)
	isAbsent(t, two.Data)
	if got := len(one.Status().Nodes); got != 1 {
		t.Errorf("the cluster has %d nodes after joins that were refused, want 1", got)
	}

	two.MustCLI(join(two.Addr)...) // the token is as good as new
	two.Start()
	c.AwaitUp(one, two)
}

func isAbsent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was made: %v", path, err)
	}
}
