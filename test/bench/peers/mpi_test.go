package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
)

// tuned are the algorithms of Open MPI's component coll/tuned by their numbers, and whether they cut messages in
// segments.
var tuned = []struct {
	number    int
	name      string
	segmented bool
}{
	{1, "linear", false}, {2, "chain", true}, {3, "pipeline", true}, {4, "split binary tree", true},
	{5, "binary tree", true},
	{6, "binomial tree", true}, {7, "knomial tree", true}, {8, "scatter allgather", false},
	{9, "scatter allgather ring", false},
}

const segmentKiB = 256

// openMPI is MPI_Bcast with Open MPI's own decision, and with each algorithm.
func (s *site) openMPI() []program {
	all := []program{{"mpi default", "memory", func(ctx context.Context) (outcome, error) { return s.mpi(ctx) }}}
	for _, a := range tuned {
		if !a.segmented {
			all = append(all, s.tuned("mpi "+a.name, a.number, 0))
			continue
		}
		all = append(all, s.tuned(fmt.Sprintf("mpi %s, %d KiB", a.name, segmentKiB), a.number, segmentKiB<<10))
	}
	return append(all, s.tuned("mpi pipeline, 1 MiB", 3, 1<<20))
}

func (s *site) tuned(name string, algorithm, segment int) program {
	return program{name, "memory", func(ctx context.Context) (outcome, error) {
		return s.mpi(ctx, "--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_bcast_algorithm",
			strconv.Itoa(algorithm),
			"--mca", "coll_tuned_bcast_algorithm_segmentsize", strconv.Itoa(segment))
	}}
}

// mpi runs mpi/bcast.c over TCP, one process per node.
func (s *site) mpi(ctx context.Context, settings ...string) (outcome, error) {
	var hosts []string
	for node := range s.n {
		hosts = append(hosts, s.links.Address(node))
	}
	own := s.links.Cluster + "-0"
	args := []string{"unshare", "--uts", "sh", "-c", `hostname "$0"; exec "$@"`, own, "mpirun", "--allow-run-as-root",
		"--oversubscribe",
		"-np", strconv.Itoa(s.n), "--host", strings.Join(hosts, ","), "--mca", "plm_rsh_agent",
		filepath.Join(s.scripts, "mpi", "agent.sh"),
		"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--mca",
		"oob_tcp_if_include", "eth0",
		"--mca", "mpi_yield_when_idle", "1"}
	args = append(slices.Concat(args, settings), s.bcast, strconv.FormatUint(s.size, 10), strconv.Itoa(*repeat))
	cmd := s.links.Command(ctx, 0, args...)
	cmd.Env = append(cmd.Env, "PEERS_CLUSTER="+s.links.Cluster)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return outcome{}, fmt.Errorf("mpirun: %w: %s", errors.Join(ctx.Err(), err), lastLines(stderr.String()))
	}
	return parseBcast(out)
}

// parseBcast reads what bcast.c prints.
func parseBcast(out []byte) (outcome, error) {
	var r struct {
		Seconds    []float64 `json:"seconds"`
		CPUSeconds float64   `json:"cpu_seconds"`
		Wrong      int       `json:"wrong"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return outcome{}, fmt.Errorf("bcast: %w: %s", err, out)
	}
	if r.Wrong != 0 || len(r.Seconds) == 0 || slices.Min(r.Seconds) <= 0 {
		return outcome{}, fmt.Errorf("bcast: wrong bytes or times: %s", out)
	}
	return outcome{bench.Median(r.Seconds), r.CPUSeconds / float64(len(r.Seconds))}, nil
}

func TestParseBcast(t *testing.T) {
	if o, err := parseBcast([]byte(`{"seconds":[1,0.5,0.25],"cpu_seconds":1.5,"wrong":0}`)); err != nil ||
		o != (outcome{0.5, 0.5}) {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range []string{"", `{"seconds":[0.5],"cpu_seconds":1,"wrong":2}`,
		`{"seconds":[],"cpu_seconds":1,"wrong":0}`} {
		if _, err := parseBcast([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
