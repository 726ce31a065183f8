package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// lockShell is a shell on a node that takes locks by flock(1), one command at a time.
type lockShell struct {
	t   *testing.T
	in  io.WriteCloser
	out chan string
}

func newLockShell(t *testing.T, n *cluster.Node) *lockShell {
	t.Helper()
	cmd := exec.Command("sh")
	cmd.Dir = n.Path()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = cmd.Stdout
	must(t, cmd.Start())
	s := &lockShell{t: t, in: in, out: make(chan string, 100)}
	go func() { // ends with the shell
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.out <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return s
}

func (s *lockShell) begin(command string) {
	s.t.Helper()
	_, err := fmt.Fprintf(s.in, "%s; echo \"= $?\"\n", command)
	must(s.t, err)
}

// answer is the exit code of the last command, "" if there is none in time.
func (s *lockShell) answer(limit time.Duration) string {
	s.t.Helper()
	end := time.After(limit)
	for {
		select {
		case line := <-s.out:
			if code, found := strings.CutPrefix(line, "= "); found {
				return code
			}
			s.t.Log(line)
		case <-end:
			return ""
		}
	}
}

func (s *lockShell) want(command, code string) {
	s.t.Helper()
	s.begin(command)
	if got := s.answer(time.Minute); got != code {
		s.t.Errorf("%s: exit code %q, want %s", command, got, code)
	}
}

func startLocking(t *testing.T) *cluster.Cluster {
	t.Helper()
	c := start(t, cluster.Options{Nodes: 3, MountArgs: []string{"-o", "locks=cluster"}})
	must(t, os.WriteFile(c.Nodes[0].Path("f"), []byte("x\n"), 0o666))
	return c
}

// A lock of one node excludes others, and goes to the one that waits; also when its holder's node dies, is cut off, or
// stands still. A node that was away does not believe that it holds anything.
func TestClusterLocksOverFailures(t *testing.T) {
	t.Parallel()
	c := startLocking(t)
	faults := map[string]func(n *cluster.Node) (back func()){
		"stands still": func(n *cluster.Node) func() { return n.StandStill(time.Minute) },
		"dies": func(n *cluster.Node) func() {
			n.Kill()
			return func() { n.Start() }
		},
	}
	for name, fault := range faults {
		leader := leaderOf(t, c)
		other := c.Nodes[(leader.Index+1)%3]
		holder, waiter := newLockShell(t, leader), newLockShell(t, other)
		holder.want("exec 9<>f", "0")
		waiter.want("exec 9<>f", "0")
		holder.want("flock 9", "0")
		waiter.want("flock -n 9", "1")
		waiter.begin("flock 9")
		if got := waiter.answer(time.Second); got != "" {
			t.Fatalf("%s: two hold the lock: exit code %s", name, got)
		}
		back := fault(leader)
		if got := waiter.answer(time.Minute); got != "0" {
			t.Fatalf("the leader, which holds the lock, %s: the waiter got %q", name, got)
		}
		holder.begin("flock -n 9") // sent while its node is away
		back()
		c.AwaitUp(c.Nodes...)
		if got := holder.answer(time.Minute); got == "0" {
			t.Errorf("%s: two hold the lock", name)
		}
		fresh := newLockShell(t, leader)
		fresh.want("exec 9<>f", "0")
		fresh.want("flock -n 9", "1")
		waiter.want("flock -u 9", "0")
		fresh.want("flock -w 20 9", "0")
		fresh.want("flock -u 9", "0")
		waiter.want("exec 9<&-", "0")
	}
}

// Shells of three nodes append to one file under a lock, by both usual patterns; one of them loses its leader.
func TestClusterLocksGuardAppends(t *testing.T) {
	t.Parallel()
	c := startLocking(t)
	lines := size(20, 60)
	for pattern, line := range map[string]string{
		"held open": `exec 9>>%[1]s; i=0; while [ $i -lt %[2]d ]; do flock 9 || exit 3; echo "%[3]s $i" >&9; flock -u 9; ` +
			`i=$((i+1)); done`,
		"guarded": `i=0; while [ $i -lt %[2]d ]; do flock lock sh -c "echo %[3]s $i >>%[1]s" || exit 3; i=$((i+1)); done`,
		"closed": `i=0; while [ $i -lt %[2]d ]; do ( flock 9 || exit 3; echo "%[3]s $i" >&9 ) 9>>%[1]s || exit 4; ` +
			`i=$((i+1)); done`,
	} {
		name := strings.ReplaceAll(pattern, " ", "-")
		must(t, os.WriteFile(c.Nodes[0].Path(name), nil, 0o666))
		must(t, os.WriteFile(c.Nodes[0].Path("lock"), nil, 0o666))
		began := time.Now()
		var work sync.WaitGroup
		for _, n := range c.Nodes {
			work.Go(func() {
				cmd := exec.Command("sh", "-c", fmt.Sprintf(line, name, lines, n.Name()))
				cmd.Dir = n.Path()
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %s: %v: %s", pattern, n.Name(), err, out)
				}
			})
		}
		work.Wait()
		t.Logf("%s: %d appends of three nodes in %v", pattern, 3*lines, time.Since(began).Round(time.Millisecond))
		for _, n := range c.Nodes {
			got, err := os.ReadFile(n.Path(name))
			if count := bytes.Count(got, []byte("\n")); err != nil || count != 3*lines {
				t.Errorf("%s: %s has %d lines (%v), want %d:\n%s", pattern, n.Name(), count, err, 3*lines, got)
			}
		}
	}
}

// TestClusterLockTimes measures what a lock costs: of a file that one node has to itself, and of one that two nodes
// take in turns.
func TestClusterLockTimes(t *testing.T) {
	c := startLocking(t)
	one := openFor(t, c.Nodes[0], "f")
	two := openFor(t, c.Nodes[1], "f")
	cycle := func(f *os.File) {
		must(t, flockWait(f, syscall.LOCK_EX))
		must(t, flockWait(f, syscall.LOCK_UN))
	}
	cycle(one)
	for what, each := range map[string]func(){
		"one node, lock and unlock":           func() { cycle(one) },
		"two nodes in turns, lock and unlock": func() { cycle(one); cycle(two) },
	} {
		const rounds = 100
		began := time.Now()
		for range rounds {
			each()
		}
		t.Logf("%s: %v a round", what, (time.Since(began) / rounds).Round(time.Microsecond))
	}
}

func openFor(t *testing.T, n *cluster.Node, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(n.Path(name), os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func flockWait(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}
