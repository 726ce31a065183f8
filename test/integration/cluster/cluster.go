// Package cluster runs real nodes for tests and benchmarks: processes of the built binary, each with its
// own data directory, kernel mount and, as root, network namespace behind a shaped link.
//
// Nodes are numbered from 0 in tests; node i is number i+1 of the cluster. Everything that a test starts is
// ended by its cleanup, by pid, also when the test fails.
package cluster

import (
	"context"
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

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/netns"
)

// Options say what to start. The zero value means 3 unshaped nodes.
type Options struct {
	Nodes int
	// Rate shapes each node's link both ways, in tc(8) syntax; "" = unshaped.
	Rate string
	// Env is added to the environment of each node.
	Env []string
	// MountArgs are added to each `rdmcfs mount`.
	MountArgs []string
	// MemoryMax puts each node into a memory cgroup of that many bytes; 0 = none.
	MemoryMax int64
	// Patience multiplies the bounds of all waits, for machines that are emulated; 0 = 1.
	Patience int
	// Manual leaves the nodes unmade: the test calls Init, Join and Start.
	Manual bool
}

// Cluster is a set of nodes that belong together.
type Cluster struct {
	TB    testing.TB
	Dir   string
	Nodes []*Node
	opts  Options
	net   *netns.Net
	join  []string // the line that init printed, as arguments
}

// Node is one node: a data directory, a mount point, and the process that serves them.
type Node struct {
	Index   int
	Data    string
	Mount   string
	Addr    string
	Env     []string // for the next start
	Program string   // of the next start and of commands; "" = Binary
	cluster *Cluster

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	err  error
}

const (
	startTimeout = 60 * time.Second
	cliTimeout   = 60 * time.Second
	pollInterval = 20 * time.Millisecond
	port         = 7400
)

// Start makes a cluster and waits until each node is up and mounted.
func Start(t testing.TB, opts Options) *Cluster {
	t.Helper()
	if opts.Nodes == 0 {
		opts.Nodes = 3
	}
	c := &Cluster{TB: t, Dir: workDir(t), opts: opts}
	c.net = netns.New(t, opts.Nodes, opts.Rate)
	for i := range opts.Nodes {
		n := &Node{Index: i, cluster: c, Addr: fmt.Sprintf("%s:%d", c.net.IP(i), port)}
		n.Data = filepath.Join(c.Dir, fmt.Sprintf("n%d", i+1))
		n.Mount = filepath.Join(c.Dir, fmt.Sprintf("m%d", i+1))
		if err := os.MkdirAll(n.Mount, 0o755); err != nil {
			t.Fatal(err)
		}
		c.Nodes = append(c.Nodes, n)
		t.Cleanup(n.cleanup)
	}
	if opts.Manual {
		return c
	}
	c.Nodes[0].Init()
	c.Nodes[0].Start()
	for _, n := range c.Nodes[1:] {
		n.Join()
		n.Start()
	}
	c.AwaitUp(c.Nodes...)
	return c
}

// patient is the bound of a wait.
func (c *Cluster) patient(d time.Duration) time.Duration {
	return d * time.Duration(max(1, c.opts.Patience))
}

// Binary is the program under test: $RDMCFS_BIN, or bin/rdmcfs of this tree.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("RDMCFS_BIN"); path != "" {
		return path
	}
	path := filepath.Join(Root(t), "bin", "rdmcfs")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run 'make build' first", err)
	}
	return path
}

func (n *Node) program() string {
	if n.Program != "" {
		return n.Program
	}
	return Binary(n.cluster.TB)
}

// BuildNext builds the program as the next release would be: it knows one format more. It returns its path.
func (c *Cluster) BuildNext() string {
	c.TB.Helper()
	path := filepath.Join(c.Dir, "rdmcfs-next")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "nextformat", "-ldflags", "-X main.version=next", "-o", path,
		"./cmd/rdmcfs")
	cmd.Dir, cmd.Env = Root(c.TB), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		c.TB.Fatalf("build of the next release: %v\n%s", err, out)
	}
	return path
}

// Root is the top of this tree.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above the working directory")
	return ""
}

// workDir is a new directory on a real disk, with a short path for sockets: below $RDMCFS_TEST_DIR, or /var/tmp.
func workDir(t testing.TB) string {
	t.Helper()
	base := os.Getenv("RDMCFS_TEST_DIR")
	if base == "" {
		base = "/var/tmp"
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(base, "rdmcfs-t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if keep := os.Getenv("RDMCFS_TEST_KEEP"); keep == "always" || keep != "" && t.Failed() {
			t.Logf("kept %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	return dir
}

// Init makes the cluster on this node and remembers the join line for the others.
func (n *Node) Init() {
	t := n.cluster.TB
	t.Helper()
	out := n.MustCLI("init", "--no-start", "--listen", n.Addr, "--name", n.Name(), "--json")
	var token admin.Token
	if err := json.Unmarshal([]byte(out), &token); err != nil || token.Token == "" {
		t.Fatalf("init --json printed %q: %v", out, err)
	}
	n.cluster.join = []string{"join", token.Listen, "--token", token.Token}
}

// Join makes this node a member, with the token that Init printed.
func (n *Node) Join() {
	n.cluster.TB.Helper()
	args := append(append([]string{}, n.cluster.join...), "--no-start", "--listen", n.Addr, "--name", n.Name())
	n.MustCLI(args...)
}

// JoinAt makes this node a member through another one, with a new token.
func (n *Node) JoinAt(at *Node) {
	t := n.cluster.TB
	t.Helper()
	out := at.MustCLI("token", "--json")
	var token admin.Token
	if err := json.Unmarshal([]byte(out), &token); err != nil || token.Token == "" {
		t.Fatalf("token --json printed %q: %v", out, err)
	}
	n.MustCLI("join", token.Listen, "--token", token.Token, "--no-start", "--listen", n.Addr, "--name", n.Name())
}

// Net is the network between the nodes.
func (c *Cluster) Net() *netns.Net { return c.net }

// Name is the node's name in the cluster.
func (n *Node) Name() string { return fmt.Sprintf("node%d", n.Index+1) }

// Path is a path on the node's mount.
func (n *Node) Path(elem ...string) string {
	return filepath.Join(append([]string{n.Mount}, elem...)...)
}

// Start runs the node with its mount, in the foreground of a process of its own, and waits until it serves.
func (n *Node) Start() {
	n.cluster.TB.Helper()
	n.Launch()
	ctx, cancel := context.WithTimeout(context.Background(), n.cluster.patient(startTimeout))
	defer cancel()
	n.AwaitMounted(ctx)
}

// Launch starts the node's process and does not wait.
func (n *Node) Launch() {
	t := n.cluster.TB
	t.Helper()
	args := append([]string{"mount", n.Mount, "--data", n.Data}, n.cluster.opts.MountArgs...)
	if level := os.Getenv("RDMCFS_TEST_LOG_LEVEL"); level != "" {
		args = append(args, "--log-level", level)
	}
	cmd := n.Command(n.program(), args...)
	cmd.Env = append(append(os.Environ(), n.cluster.opts.Env...), n.Env...)
	logf, err := os.OpenFile(n.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer logf.Close()
	cmd.Stdout, cmd.Stderr = logf, logf
	if n.cluster.opts.MemoryMax > 0 {
		useCgroup(t, cmd, fmt.Sprintf("rdmcfs-%d-%d", os.Getpid(), n.Index), n.cluster.opts.MemoryMax)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	n.mu.Lock()
	n.cmd, n.done, n.err = cmd, done, nil
	n.mu.Unlock()
	go func() {
		err := cmd.Wait()
		n.mu.Lock()
		n.err = err
		n.mu.Unlock()
		close(done)
	}()
}

// Command prepares a command in the node's network namespace.
func (n *Node) Command(name string, args ...string) *exec.Cmd {
	cmd := n.cluster.net.Command(n.Index, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// AwaitMounted waits until the node says that its mount answers; the test fails when it does not.
func (n *Node) AwaitMounted(ctx context.Context) {
	t := n.cluster.TB
	t.Helper()
	client := n.Admin()
	for {
		st, err := client.Status(ctx)
		if err == nil {
			for _, m := range st.Mounts {
				if m.State == "mounted" {
					return
				}
			}
		}
		select {
		case <-n.Exited():
			t.Fatalf("%s ended while starting: %v\n%s", n.Name(), n.ExitErr(), n.Log())
		case <-ctx.Done():
			t.Fatalf("%s is not mounted in time: %v\n%s", n.Name(), err, n.Log())
		case <-time.After(pollInterval):
		}
	}
}

// Exited is closed when the node's process has ended.
func (n *Node) Exited() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.done == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return n.done
}

// ExitErr is how the process ended.
func (n *Node) ExitErr() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// Running reports whether the node's process lives.
func (n *Node) Running() bool {
	select {
	case <-n.Exited():
		return false
	default:
		return true
	}
}

// Pid is the node's process, 0 if it never ran.
func (n *Node) Pid() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return 0
	}
	return n.cmd.Process.Pid
}

// Signal sends a signal to the node's process, if it lives.
func (n *Node) Signal(sig syscall.Signal) {
	if n.Running() {
		syscall.Kill(n.Pid(), sig)
	}
}

// StandStill stops the node's process (SIGSTOP) and returns the function that makes it go on. After the time most,
// another process makes it go on: this one may not be able to. Each program that this process starts begins with its
// open files; those of the stopped node's mount are closed on the way, which waits for the node, and nothing else can
// be started meanwhile.
func (n *Node) StandStill(most time.Duration) (goOn func()) {
	n.cluster.TB.Helper()
	pid := fmt.Sprint(n.Pid())
	watch := exec.Command("sh", "-c", `sleep "$1"; kill -CONT "$2"`, "sh", fmt.Sprint(most.Seconds()), pid)
	watch.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := watch.Start(); err != nil {
		n.cluster.TB.Fatalf("%s: %v", n.Name(), err)
	}
	n.Signal(syscall.SIGSTOP)
	goOn = sync.OnceFunc(func() {
		n.Signal(syscall.SIGCONT)
		syscall.Kill(-watch.Process.Pid, syscall.SIGKILL)
		watch.Wait()
	})
	n.cluster.TB.Cleanup(goOn)
	return goOn
}

// Kill ends the process at once, as a crash would, and waits for its end. Its mount is left as the crash leaves it.
func (n *Node) Kill() {
	n.Signal(syscall.SIGKILL)
	<-n.Exited()
}

// Stop ends the node in order and fails the test if it does not end in time.
func (n *Node) Stop() {
	t := n.cluster.TB
	t.Helper()
	n.Signal(syscall.SIGTERM)
	select {
	case <-n.Exited():
	case <-time.After(n.cluster.patient(startTimeout)):
		n.Signal(syscall.SIGQUIT)
		t.Fatalf("%s does not end on SIGTERM\n%s", n.Name(), n.Log())
	}
}

// Restart stops and starts the node.
func (n *Node) Restart() {
	n.cluster.TB.Helper()
	n.Stop()
	n.Start()
}

func (n *Node) logPath() string { return n.Data + ".log" }

// Log is the end of what the node printed.
func (n *Node) Log() string {
	raw, err := os.ReadFile(n.logPath())
	if err != nil {
		return err.Error()
	}
	const tail = 16 << 10
	if len(raw) > tail {
		raw = raw[len(raw)-tail:]
	}
	return string(raw)
}

// cleanup kills the node: an orderly end, which is up to a test, waits for seconds for the others, which are gone too.
func (n *Node) cleanup() {
	if n.cluster.TB.Failed() {
		n.cluster.TB.Logf("log of %s:\n%s", n.Name(), n.Log())
	}
	n.Kill()
	for detach(n.Mount) == nil {
	}
}

// detach unmounts one layer at dir, lazily; an error means that there is none.
func detach(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) }

// Admin is a client of the node's socket.
func (n *Node) Admin() *admin.Client { return admin.NewClient(admin.SocketPath(n.Data)) }

// Status asks the node; the test fails if it does not answer.
func (n *Node) Status() admin.Status {
	n.cluster.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), n.cluster.patient(cliTimeout))
	defer cancel()
	st, err := n.Admin().Status(ctx)
	if err != nil {
		n.cluster.TB.Fatalf("status of %s: %v\n%s", n.Name(), err, n.Log())
	}
	return st
}

// CLI runs the program with the node's data directory and returns what it printed, and its exit error.
func (n *Node) CLI(args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), n.cluster.patient(cliTimeout))
	defer cancel()
	cmd := n.Command(n.program(), append(args, "--data", n.Data)...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		return "", "", err
	}
	stop := context.AfterFunc(ctx, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer stop()
	err = cmd.Wait()
	if ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return out.String(), errs.String(), err
}

// MustCLI is CLI for commands that have to succeed; it returns the standard output.
func (n *Node) MustCLI(args ...string) string {
	n.cluster.TB.Helper()
	out, errs, err := n.CLI(args...)
	if err != nil {
		n.cluster.TB.Fatalf("%s: rdmcfs %s: %v\n%s%s\n%s", n.Name(), strings.Join(args, " "), err, out, errs, n.Log())
	}
	return out
}

// Run runs a program in the node's network namespace and returns its combined output.
func (n *Node) Run(name string, args ...string) (string, error) {
	out, err := n.Command(name, args...).CombinedOutput()
	return string(out), err
}

// MustRun is Run for programs that have to succeed.
func (n *Node) MustRun(name string, args ...string) string {
	n.cluster.TB.Helper()
	out, err := n.Run(name, args...)
	if err != nil {
		n.cluster.TB.Fatalf("%s: %s %s: %v\n%s", n.Name(), name, strings.Join(args, " "), err, out)
	}
	return out
}
