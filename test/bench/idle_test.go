package bench

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

const (
	idleSettle = 20 * time.Second // what a start leaves to do is done by then
	idleTime   = 60 * time.Second
)

// usage is what a process has used so far, and what it holds now.
type usage struct {
	processor time.Duration
	sleeps    int64 // how often a thread has waited: as often one was woken
	resident  int64
	disk      int64
}

// Nodes that nobody uses: processor time, wake-ups, memory and disk of each.
func TestIdle(t *testing.T) {
	if !*enabled {
		t.Skip("benchmarks run by 'make bench'") // not a missing piece: timing has no place in tests
	}
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("n=%d", nodes), func(t *testing.T) {
			c := cluster.Start(t, cluster.Options{Nodes: nodes})
			<-time.After(idleSettle)
			var before []usage
			began := time.Now()
			for _, n := range c.Nodes {
				before = append(before, usageOf(t, n))
			}
			<-time.After(idleTime)
			for i, n := range c.Nodes {
				now, lasted := usageOf(t, n), time.Since(began)
				t.Logf("node %d: %.3f%% of a processor, %.1f wake-ups/s, %.1f MB of memory, %.1f MB of disk", i+1,
					100*float64(now.processor-before[i].processor)/float64(lasted),
					float64(now.sleeps-before[i].sleeps)/lasted.Seconds(), float64(now.resident)/1e6, float64(now.disk)/1e6)
			}
		})
	}
}

// usageOf sums over the threads of a node's process.
func usageOf(t *testing.T, n *cluster.Node) (u usage) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", n.Pid())
	tasks, err := os.ReadDir(filepath.Join(proc, "task"))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		dir := filepath.Join(proc, "task", task.Name())
		u.processor += time.Duration(number(t, filepath.Join(dir, "schedstat"), ""))
		u.sleeps += number(t, filepath.Join(dir, "status"), "voluntary_ctxt_switches:")
	}
	u.resident = number(t, filepath.Join(proc, "status"), "VmRSS:") << 10
	u.disk = diskOf(t, n.Data)
	return u
}

// number is the number after a word that begins a line of a file.
func number(t *testing.T, path, after string) int64 {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, after); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatalf("%s: %q: %v", path, line, err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %q", path, after)
	return 0
}

// diskOf is the disk space of the files below a directory, holes left out.
func diskOf(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		bytes += st.Blocks * 512
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
