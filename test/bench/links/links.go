// Package links has the nodes of the benchmarks: network namespaces with a shaped link each, what is done to the links,
// and what iperf3 makes of them.
package links

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
)

// Links are nodes, as 'rdmcfs bench' has them, whose links can be changed.
type Links struct {
	*bench.Links
	// Cluster is the prefix of the namespaces' names.
	Cluster string
	script  string
}

var made atomic.Int32

// New makes n nodes, which the test's end removes, for a test in a folder of test/bench. The rate is in tc(8) syntax,
// or unshaped. An empty congestion control leaves the machine's. It needs root.
func New(tb testing.TB, n int, rate, congestion string) *Links {
	tb.Helper()
	script, err := filepath.Abs("../../netns/netns.sh")
	if err != nil {
		tb.Fatal(err)
	}
	l := &Links{Cluster: fmt.Sprintf("b%d-%d", os.Getpid(), made.Add(1)), script: script}
	if l.Links, err = bench.NewLinks(tb.Context(), script, l.Cluster, n, rate, congestion); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
	})
	return l
}

// Slow bounds what one node sends to another, in tc(8) syntax; the bound may be the rate of the link. A node can have
// one such bound.
func (l *Links) Slow(ctx context.Context, from, to int, rate string) error {
	return l.change(ctx, "slow", strconv.Itoa(from), strconv.Itoa(to), rate)
}

// Cut cuts a node's link, without notice to anybody.
func (l *Links) Cut(ctx context.Context, node int) error {
	return l.change(ctx, "cut", strconv.Itoa(node))
}

func (l *Links) change(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, l.script, args...)
	cmd.Env = append(os.Environ(), "CLUSTER="+l.Cluster)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("links: %v: %w: %s", args, err, out)
	}
	return nil
}

// Iperf sends bytes by one TCP stream of iperf3 from one node to another, with the given congestion control (empty:
// the node's default), and returns the receiver's time for them. iperf3 stops its clocks when the last byte has been
// handed to the sender's kernel, up to some hundred KB before the receiver has it; so the time is that of what was
// received, scaled to all.
func (l *Links) Iperf(ctx context.Context, from, to int, size uint64, congestion string) (time.Duration, error) {
	args := []string{"-n", strconv.FormatUint(size, 10)}
	if congestion != "" {
		args = append(args, "-C", congestion)
	}
	r, err := bench.Iperf(ctx, l.Links, from, to, args...)
	if err != nil {
		return 0, err
	}
	return timeOf(r, size), nil
}

// timeOf is the time of so many bytes at the pace of those received.
func timeOf(r bench.IperfResult, size uint64) time.Duration {
	return time.Duration(r.Seconds * float64(size) / float64(r.Bytes) * float64(time.Second))
}
