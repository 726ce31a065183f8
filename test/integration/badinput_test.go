package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// refused fails the test unless a command ends with the exit code and says on one line what to do.
func refused(t *testing.T, n *cluster.Node, code int, says string, args ...string) {
	t.Helper()
	out, errs, err := n.CLI(args...)
	checkRefusal(t, strings.Join(args, " "), out+errs, err, code, says)
}

func checkRefusal(t *testing.T, what, printed string, err error, code int, says string) {
	t.Helper()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != code || !strings.Contains(printed, says) {
		t.Errorf("%.200s: %v, want exit code %d and %q in:\n%s", what, err, code, says, printed)
	}
	if strings.Contains(printed, "panic") || strings.Contains(printed, "goroutine ") {
		t.Errorf("%.200s: a stack:\n%s", what, printed)
	}
}

// diesSaying fails the test unless the daemon of a node ends by itself with the exit code and the words.
func diesSaying(t *testing.T, n *cluster.Node, limit time.Duration, code int, says string) {
	t.Helper()
	select {
	case <-n.Exited():
		checkRefusal(t, "daemon of "+n.Name(), n.Log(), n.ExitErr(), code, says)
	case <-time.After(limit):
		t.Errorf("%s runs after %v, want exit code %d and %q\n%s", n.Name(), limit, code, says, n.Log())
		n.Kill()
	}
}

// worksEverywhere fails the test unless a file written on any node is on all running ones.
func worksEverywhere(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	src := filepath.Join(c.Dir, "src-"+name)
	cluster.Random(t, src, 1<<20+3, uint64(len(name)))
	for _, n := range c.Nodes {
		if n.Running() {
			run(t, "cp", src, n.Path(name+n.Name()))
			sameEverywhere(t, c, src, name+n.Name())
		}
	}
}

// joinArgs is the command by which a node joins through another one.
func joinArgs(n, seed *cluster.Node, token string, more ...string) []string {
	return append([]string{"join", seed.Addr, "--token", token, "--listen", n.Addr, "--name", n.Name(), "--no-start"},
		more...)
}

func newToken(t *testing.T, n *cluster.Node, args ...string) string {
	t.Helper()
	var token admin.Token
	out := n.MustCLI(append([]string{"token", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &token); err != nil || token.Token == "" {
		t.Fatalf("token printed %q: %v", out, err)
	}
	return token.Token
}

// Wrong, used and expired tokens, other clusters. A refused machine can join with a good token.
func TestJoinRefused(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4, Manual: true})
	one, two, three, foreign := c.Nodes[0], c.Nodes[1], c.Nodes[2], c.Nodes[3]
	one.Init()
	one.Start()
	foreign.Init()
	foreign.Start()
	good := newToken(t, one)
	parsed, err := credentials.ParseToken(good)
	if err != nil {
		t.Fatal(err)
	}
	unknown := credentials.NewToken(parsed.Cluster, parsed.KeyHash, time.Now().Add(time.Hour)).String()
	refused(t, two, exitcode.Denied, "copy the whole word", joinArgs(two, one, good[:len(good)-1])...)
	refused(t, two, exitcode.Denied, "copy the whole word", joinArgs(two, one, "nonsense")...)
	refused(t, two, exitcode.Denied, "make one with 'rdmcfs token'", joinArgs(two, one, unknown)...)
	refused(t, two, exitcode.Denied, "another cluster", joinArgs(two, one, newToken(t, foreign))...)
	refused(t, two, exitcode.Denied, "another cluster", joinArgs(two, foreign, good)...)
	refused(t, two, exitcode.Denied, "rdmcfs token --replace", joinArgs(two, one, good, "--replace")...)
	refused(t, two, exitcode.Exists, "choose another --name", append(joinArgs(two, one, good), "--name", one.Name())...)
	short := newToken(t, one, "--ttl", "1ms")
	c.Await(60*time.Second, "token over", func() (bool, string) {
		p, err := credentials.ParseToken(short)
		return err == nil && time.Now().After(p.Expires), "not yet"
	})
	refused(t, two, exitcode.Denied, "expired", joinArgs(two, one, short)...)
	refused(t, two, exitcode.NotFound, "rdmcfs join", "daemon") // nothing was made
	refused(t, two, exitcode.Exists, one.Name()+" is at "+one.Addr, append(joinArgs(two, one, good), "--advertise",
		one.Addr)...)
	if _, err := os.Stat(two.Data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused join leaves %s: %v", two.Data, err)
	}
	must(t, os.Mkdir(two.Data, 0o700))
	refused(t, two, exitcode.Denied, "make one with 'rdmcfs token'", joinArgs(two, one, unknown)...)
	if left, err := os.ReadDir(two.Data); err != nil || len(left) > 0 {
		t.Errorf("a refused join leaves %v in an empty directory: %v", left, err)
	}

	two.MustCLI(joinArgs(two, one, good)...)
	refused(t, three, exitcode.Denied, "has been used", joinArgs(three, one, good)...)
	refused(t, two, exitcode.Exists, "--data", joinArgs(two, one, newToken(t, one))...)
	refused(t, two, exitcode.Exists, "--data", "init", "--listen", two.Addr, "--no-start")
	two.Start()
	three.MustCLI(joinArgs(three, one, newToken(t, one))...)
	three.Start()
	foreign.Stop()
	c.AwaitUp(one, two, three)
	worksEverywhere(t, c, "after")
}

// A join whose answer was lost is repeated at another member: the machine is known by its key, and its token, good for
// one, lets nobody else in.
func TestJoinAnswerLost(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 5, Manual: true})
	for i, n := range c.Nodes[:3] {
		if i == 0 {
			n.Init()
		} else {
			n.Join()
		}
		n.Start()
	}
	first, second, late, thief := c.Nodes[0], c.Nodes[1], c.Nodes[3], c.Nodes[4]
	c.AwaitUp(c.Nodes[:3]...)
	c.Await(60*time.Second, "signing key at another member", func() (bool, string) {
		_, err := os.Stat(filepath.Join(second.Data, "tls", "ca.key"))
		return err == nil, fmt.Sprint(err)
	})
	token := newToken(t, first)
	if err := os.Mkdir(late.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	req, err := credentials.Dir(filepath.Join(late.Data, "tls")).JoinRequest()
	if err != nil {
		t.Fatal(err)
	}
	onHost(t, c, late, func() error { // and then the machine crashes
		_, err := control.Join(t.Context(), control.JoinConfig{Addr: first.Addr, Token: token, Request: req,
			Listen: late.Addr, Name: late.Name(), Now: time.Now})
		return err
	})
	first.Kill()
	refused(t, thief, exitcode.Denied, "has been used", joinArgs(thief, second, token)...)
	refused(t, thief, exitcode.Denied, "has been used", append(joinArgs(thief, second, token), "--name", late.Name())...)
	late.MustCLI(joinArgs(late, second, token)...)
	late.Start()
	first.Start()
	c.AwaitUp(c.Nodes[:4]...)
	if got := len(first.Status().Nodes); got != 4 {
		t.Errorf("the cluster has %d nodes, want 4: the join was taken twice", got)
	}
	worksEverywhere(t, c, "after")
}

// A member is called where none is, or where something else answers.
func TestJoinAtAWrongAddress(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2, Manual: true})
	one, two := c.Nodes[0], c.Nodes[1]
	one.Init()
	one.Start()
	token := newToken(t, one)
	args := func(addr string) []string {
		return []string{"join", addr, "--token", token, "--listen", two.Addr, "--name", two.Name(), "--no-start"}
	}
	host := strings.TrimSuffix(one.Addr, ":7400")
	refused(t, two, exitcode.Unavailable, "check the address", args(host+":7401")...)
	refused(t, two, exitcode.Unavailable, "check the address", args("10.99.0.200:7400")...)
	refused(t, two, exitcode.Usage, "HOST:PORT", args(host)...)
	refused(t, two, exitcode.Usage, "--listen", "join", one.Addr, "--token", token, "--listen", "0.0.0.0:7400",
		"--no-start")
	two.MustCLI(args(one.Addr)...)
}

// Names of 255 and 256 bytes.
func TestLongNames(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	longest, over := strings.Repeat("é", 127)+"x", strings.Repeat("é", 128)
	n := c.Nodes[1]
	if err := os.WriteFile(n.Path(longest), []byte("bytes"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.Path("d"+longest[1:]), 0o755); err == nil {
		defer os.Remove(n.Path("d" + longest[1:]))
	} else {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"create":  os.WriteFile(n.Path(over), nil, 0o644),
		"mkdir":   os.Mkdir(n.Path(over), 0o755),
		"symlink": os.Symlink("x", n.Path(over)),
		"link":    os.Link(n.Path(longest), n.Path(over)),
		"rename":  os.Rename(n.Path(longest), n.Path(over)),
		"stat":    func() error { _, err := os.Stat(n.Path(over)); return err }(),
		"unlink":  os.Remove(n.Path(over)),
	} {
		if !errors.Is(err, syscall.ENAMETOOLONG) {
			t.Errorf("%s of a name of 256 bytes: %v, want ENAMETOOLONG", name, err)
		}
	}
	for _, n := range c.Nodes {
		if got, err := os.ReadFile(n.Path(longest)); err != nil || string(got) != "bytes" {
			t.Errorf("%s: %q, %v", n.Name(), got, err)
		}
	}
	c.AwaitAgreement(60 * time.Second)
}

// Busy, non-empty and missing mount points; a second daemon on one directory.
func TestMountPointsAndSecondDaemons(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 1})
	n := c.Nodes[0]
	dir := func(name string) string { return filepath.Join(c.Dir, name) }
	run(t, "mkdir", dir("full"), dir("empty"), dir("taken"))
	run(t, "touch", dir("full/file"), dir("file"))
	run(t, "mount", "-t", "tmpfs", "none", dir("taken"))
	t.Cleanup(func() { exec.Command("umount", dir("taken")).Run() })
	trouble := func() {
		t.Helper()
		refused(t, n, exitcode.Usage, "make it first", "mount", "-d", dir("missing"))
		refused(t, n, exitcode.Usage, "move its files away", "mount", "-d", dir("full"))
		refused(t, n, exitcode.Usage, "not a directory", "mount", "-d", dir("file"))
		refused(t, n, exitcode.Exists, "unmount it or choose", "mount", "-d", dir("taken"))
		refused(t, n, exitcode.Usage, "choose another", "mount", "-d", n.Data)
		refused(t, n, exitcode.Usage, "not known", "mount", "-d", dir("empty"), "-o", "nonsense")
	}
	trouble()
	refused(t, n, exitcode.Exists, "mounted already", "mount", "-d", n.Mount)
	refused(t, n, exitcode.Exists, "rdmcfs stop", "daemon")
	refused(t, n, exitcode.Exists, "--data", "init", "--listen", n.Addr, "--no-start")
	refused(t, n, exitcode.NotFound, "not mounted", "umount", dir("empty"))

	f, err := os.Create(n.Path("open"))
	if err != nil {
		t.Fatal(err)
	}
	refused(t, n, exitcode.Busy, "open", "umount", n.Mount)
	if _, err := f.WriteString("still works"); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	worksEverywhere(t, c, "with")

	n.Stop() // the same in the foreground, where the mount is the daemon
	for _, bad := range []struct {
		dir, says string
		code      int
	}{{"missing", "make it first", exitcode.Usage}, {"full", "move its files away", exitcode.Usage},
		{"taken", "unmount it", exitcode.Exists}} {
		refused(t, n, bad.code, bad.says, "mount", dir(bad.dir))
	}
	refused(t, n, exitcode.NotRunning, "", "status")
	n.Start()
	worksEverywhere(t, c, "again")

	// By another program: the daemon that was the mount ends in order, and says why. With -f that does not depend on
	// who else has the mount in a namespace of its own.
	run(t, "umount", "-f", n.Mount)
	select {
	case <-n.Exited():
		if log := n.Log(); n.ExitErr() != nil || !strings.Contains(log, "unmounted by another program") {
			t.Errorf("the daemon ended with %v\n%s", n.ExitErr(), log)
		}
	case <-time.After(60 * time.Second):
		t.Error("the daemon goes on without its mount")
	}
}

// A process that truncates and extends a file in a loop while others close it. Nobody gets SIGBUS, no
// daemon dies, and in the end all nodes show one version.
func TestTruncatedWhileClosed(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	path := c.Nodes[0].Path("shaken")
	run(t, "sh", "-c", fmt.Sprintf("head -c 8M /dev/urandom > %q", path))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		for i := int64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, bytes := range []int64{0, 8 << 20, i % 4096, 3<<20 + i} {
				if err := f.Truncate(bytes); err != nil {
					t.Errorf("truncate: %v", err)
					return
				}
			}
		}
	})
	for i := range size(20, 200) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(fmt.Sprintf("close %d", i)), int64(i)<<18); err != nil {
			t.Errorf("write: %v", err)
		}
		if err := f.Close(); err != nil {
			t.Errorf("close %d: %v", i, err)
		}
	}
	close(stop)
	wg.Wait()
	for _, n := range c.Nodes {
		if !n.Running() {
			t.Errorf("%s died: %v", n.Name(), n.ExitErr())
		}
	}
	sameEverywhere(t, c, path, "shaken")
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
}
