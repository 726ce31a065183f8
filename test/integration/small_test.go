package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// Many small files, one proposal each; the rate is printed by phase.
func TestManySmallFiles(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 5})
	files := size(2000, 10_000)
	src := filepath.Join(c.Dir, "small")
	for i := range files {
		path := filepath.Join(src, fmt.Sprintf("d%d", i/1000), fmt.Sprintf("f%d", i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		cluster.Random(t, path, 4096, uint64(i))
	}
	leader := leaderOf(t, c)
	before := leader.Status().AppliedIndex
	busy := cpuTimes(t, c)
	begin := time.Now()
	run(t, "cp", "-a", src, leader.Path("small"))
	took := time.Since(begin)
	for i, after := range cpuTimes(t, c) {
		t.Logf("%s: %v of CPU a file", c.Nodes[i].Name(), ((after - busy[i]) / time.Duration(files)).Round(time.Microsecond))
	}
	for _, line := range strings.Split(leader.MustCLI("metrics"), "\n") {
		if rest, ok := strings.CutPrefix(line, "rdmcfs_push_seconds_total{phase="); ok {
			phase, seconds, _ := strings.Cut(rest, "} ")
			spent, err := strconv.ParseFloat(seconds, 64)
			if err != nil {
				t.Fatal(line)
			}
			t.Logf("phase %s: %.0f µs a file", phase, spent*1e6/float64(files))
		}
	}
	t.Logf("all, with cp, the kernel and the names: %.0f µs a file", took.Seconds()*1e6/float64(files))
	entries := leader.Status().AppliedIndex - before
	t.Logf("cp -a of %d files of 4 KiB to 5 nodes: %.1f s, %.0f files/s, %.2f log entries a file",
		files, took.Seconds(), float64(files)/took.Seconds(), float64(entries)/float64(files))
	if limit := uint64(files + files/20 + 4*(files/1000+2) + 50); entries > limit {
		t.Errorf("%d log entries for %d files: more than one proposal a file", entries, files)
	}
	c.AwaitAgreement(60 * time.Second)
	begin = time.Now()
	cluster.SameTrees(t, src, c.Nodes[(leader.Index+1)%5].Path("small"))
	t.Logf("read back on another node: %.1f s", time.Since(begin).Seconds())
	begin = time.Now()
	if err := os.RemoveAll(leader.Path("small")); err != nil {
		t.Fatal(err)
	}
	t.Logf("removed: %.1f s", time.Since(begin).Seconds())
	c.AwaitAgreement(60 * time.Second)
}

// cpuTimes is what each node's process has computed so far, by the scheduler's clock.
func cpuTimes(t *testing.T, c *cluster.Cluster) []time.Duration {
	t.Helper()
	var out []time.Duration
	for _, n := range c.Nodes {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", n.Pid()))
		if err != nil || len(tasks) == 0 {
			t.Fatalf("%s: no threads: %v", n.Name(), err)
		}
		var sum time.Duration
		for _, path := range tasks {
			raw, err := os.ReadFile(path)
			if err != nil {
				continue // that thread has ended
			}
			var ran int64
			if _, err := fmt.Sscan(string(raw), &ran); err == nil {
				sum += time.Duration(ran)
			}
		}
		out = append(out, sum)
	}
	return out
}
