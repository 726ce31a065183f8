package peers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/test/bench/links"
)

const unshaped = "unshaped"

// site is where programs run: nodes, and files in memory. Node 0 sends.
type site struct {
	links    *links.Links
	n        int
	size     uint64
	block    int     // ours; 0: chosen
	mbit     float64 // 0: unshaped
	dir      string  // on the nodes the same, since they share this machine's file systems
	scripts  string
	digest   []byte
	bcast    string // the compiled bcast.c
	torrents int
}

func newSite(t *testing.T, n int, rate, cc string, block int) *site {
	t.Helper()
	s := &site{n: n, size: uint64(*sizeMiB) << 20, block: block}
	var err error
	if rate != unshaped {
		if s.mbit, err = strconv.ParseFloat(strings.TrimSuffix(rate, "mbit"), 64); err != nil {
			t.Fatalf("-rates %q: want numbers with mbit, or unshaped", rate)
		}
	}
	if s.scripts, err = filepath.Abs("."); err != nil {
		t.Fatal(err)
	}
	if s.dir, err = os.MkdirTemp("/dev/shm", "peers"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(s.dir) })
	s.links = links.New(t, n, rate, cc)
	s.prepare(t)
	return s
}

// prepare makes the file, routes for IP multicast, and the MPI program.
func (s *site) prepare(t *testing.T) {
	t.Helper()
	f, err := os.Create(s.file(0))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8([32]byte{7}), int64(s.size)); err != nil {
		t.Fatal(err)
	}
	s.digest = h.Sum(nil)
	for i := range s.n {
		route := s.links.Command(t.Context(), i, "ip", "route", "replace", "224.0.0.0/4", "dev", "eth0")
		if out, err := route.CombinedOutput(); err != nil {
			t.Fatalf("route: %v: %s", err, out)
		}
	}
	s.bcast = filepath.Join(s.dir, "bcast")
	if out, err := exec.Command("mpicc", "-O2", "-o", s.bcast, "mpi/bcast.c").CombinedOutput(); err != nil {
		t.Fatalf("mpicc: %v: %s", err, out)
	}
}

func (s *site) peers() []program {
	all := s.openMPI()
	return append(all,
		program{"uftp", "file", s.uftp},
		program{"udpcast", "file", s.udpcast},
		program{"rsync, parallel", "file", s.rsyncParallel},
		program{"rsync, sequential", "file", s.rsyncSequential},
		program{"aria2", "file", s.aria2},
	)
}

// patience bounds a run: a program that sends to one node after the other takes so long at two thirds of the rate,
// and some minutes.
func (s *site) patience() time.Duration {
	rate := 1000.0 // of links that are not shaped
	if s.mbit > 0 {
		rate = s.mbit
	}
	bits := 8 * float64(s.size) * float64(s.n-1) * float64(*repeat)
	return startTimeout + time.Duration(1.5*bits/rate*float64(time.Microsecond))
}

// ours is one multicast; options that are not given are chosen as by rdmcfs bench multicast.
func (s *site) ours(ctx context.Context) (outcome, error) {
	plan := bench.Plan{Members: s.n, Sizes: []uint64{s.size}, BlockSizes: []int{s.block},
		Algorithms: []string{bench.Auto}, Senders: []string{"one"}, Rounds: *repeat, Batch: 1}
	var result bench.Result
	err := bench.Local(ctx, plan, []string{os.Args[0], childFlag}, s.links.Links, func(r bench.Result) { result = r })
	return outcome{result.Median, result.CPUPerGB * float64(s.size) * float64(s.n-1) / 1e9}, err
}

// iperf is one TCP stream between two nodes.
func (s *site) iperf(ctx context.Context) (outcome, error) {
	took, err := s.links.Iperf(ctx, 0, 1, s.size, "cubic")
	return outcome{seconds: took.Seconds()}, err
}

// file is the node's file of a name; node 0 has the one that is sent.
func (s *site) file(node int) string {
	dir := filepath.Join(s.dir, strconv.Itoa(node))
	os.MkdirAll(dir, 0o755) // its error shows when the file is opened
	return filepath.Join(dir, "message")
}

func (s *site) folder(node int) string { return filepath.Dir(s.file(node)) }

// verify compares what the receivers got, and removes it.
func (s *site) verify() error {
	for node := 1; node < s.n; node++ {
		got, err := os.ReadFile(s.file(node))
		if err != nil {
			return err
		}
		if sum := sha256.Sum256(got); !bytes.Equal(sum[:], s.digest) {
			return fmt.Errorf("node %d got other bytes, %d of %d", node, len(got), s.size)
		}
		if err := os.RemoveAll(s.folder(node)); err != nil {
			return err
		}
	}
	return nil
}

// crew is the processes of one run.
type crew struct {
	site *site
	ctx  context.Context
	end  context.CancelFunc
	mu   sync.Mutex
	cpu  float64 // of processes that have ended
	work sync.WaitGroup
}

func (s *site) newCrew(ctx context.Context) *crew {
	c := &crew{site: s}
	c.ctx, c.end = context.WithCancel(ctx)
	return c
}

// disband ends what still runs and returns the processor seconds of all.
func (c *crew) disband() float64 {
	c.end()
	c.work.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cpu
}

// start runs a command on a node. wait returns when it has ended; disband ends it.
func (c *crew) start(node int, args ...string) (pid int, wait func() error, err error) {
	cmd := c.site.links.Command(c.ctx, node, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Second
	cmd.Dir = c.site.dir
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	done := make(chan struct{})
	var result error
	c.work.Go(func() {
		defer close(done)
		err := cmd.Wait()
		if err != nil {
			result = fmt.Errorf("%s on node %d: %w: %s", args[0], node, err, lastLines(output.String()))
		}
		c.mu.Lock()
		c.cpu += (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
		c.mu.Unlock()
	})
	return cmd.Process.Pid, func() error { <-done; return result }, nil
}

// run is start and wait.
func (c *crew) run(node int, args ...string) error {
	_, wait, err := c.start(node, args...)
	if err != nil {
		return err
	}
	return wait()
}

// daemon starts a command that stays, and waits until it listens on a port of udp or tcp.
func (c *crew) daemon(node int, proto string, port int, args ...string) (wait func() error, err error) {
	pid, wait, err := c.start(node, args...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !listens(pid, proto, port) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.end()
			return nil, errors.Join(fmt.Errorf("%s on node %d does not listen at %s port %d", args[0], node, proto, port),
				wait())
		}
	}
	return wait, nil
}

// listens reports whether a socket is bound to the port in the network namespace of the process.
func listens(pid int, proto string, port int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, proto))
	return err == nil && hasPort(string(raw), proto, port)
}

// hasPort looks for a local address in /proc/net/udp or tcp: "0: 0100007F:0414 00000000:0000 07 ..."; 0A is LISTEN.
func hasPort(table, proto string, port int) bool {
	want := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], want) && (proto != "tcp" || f[3] == "0A") {
			return true
		}
	}
	return false
}

func lastLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-4):], "; ")
}

func TestHasPort(t *testing.T) {
	const udp = "  sl  local_address rem_address st\n  77: 00000000:0414 00000000:0000 07 0\n"
	const tcp = "  sl  local_address rem_address st\n  0: 00000000:1B39 00000000:0000 0A 0\n  1: 00000000:1B3A " +
		"01010101:0010 01 0\n"
	if !hasPort(udp, "udp", 1044) || hasPort(udp, "udp", 1045) || !hasPort(tcp, "tcp", 6969) || hasPort(tcp, "tcp", 6970) {
		t.Error("ports are not found as they should")
	}
}
