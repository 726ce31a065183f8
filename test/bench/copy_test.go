// Package bench measures whole copies on shaped links: cp onto the mount of one node until it exits 0, compared with
// the same bytes sent by iperf3 between two of the nodes in the same run.
package bench

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

var (
	rounds  = flag.Int("rounds", 5, "runs of each case")
	enabled = flag.Bool("links", false, "run the benchmarks")
)

// shape is one case: n nodes, a link rate, the bytes of the file.
type shape struct {
	nodes       int
	rateMbit    int
	bytes       int64
	medianLimit float64
}

const worstLimit = 1.2

var shapes = []shape{
	{2, 200, 128 << 20, 1.08},
	{4, 200, 128 << 20, 1.08},
	{8, 200, 128 << 20, 1.08},
	{16, 100, 64 << 20, 1.12},
}

// Ratio of cp to iperf3 on shaped links.
func TestCopyOverShapedLinks(t *testing.T) {
	if !*enabled {
		t.Skip("benchmarks run by 'make bench'") // not a missing piece: timing has no place in tests
	}
	for _, s := range shapes {
		t.Run(fmt.Sprintf("n=%d/%dMbit", s.nodes, s.rateMbit), func(t *testing.T) { s.run(t) })
	}
}

func (s shape) run(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Nodes: s.nodes, Rate: fmt.Sprintf("%dmbit", s.rateMbit)})
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, s.bytes, 1)
	disk := diskRate(t, c.Dir, s.bytes)
	idle := idleDaemonCPU(c, 5*time.Second)
	var ratios, tails []float64
	for round := range *rounds {
		wire := iperf(t, c, s.bytes, "")
		wireCubic := iperf(t, c, s.bytes, "cubic")
		before := cpuOf(c)
		machine := readMachine(t)
		begin := time.Now()
		moved := watchLastByte(c, s.bytes, time.Duration(wire*float64(time.Second)))
		name := fmt.Sprintf("copy%d", round)
		if out, err := exec.Command("cp", src, c.Nodes[0].Path(name)).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: %s", err, out)
		}
		end := time.Now()
		took := end.Sub(begin).Seconds()
		idlePart := readMachine(t).idleSince(machine)
		last := moved(end)
		cpu := (cpuOf(c) - before) / (float64(s.bytes) * float64(s.nodes-1) / 1e9)
		ratio := took / min(wire, wireCubic)
		void := ""
		if idlePart < 0.10 {
			void = " VOID: machine under 10% idle"
		} else {
			ratios = append(ratios, ratio)
			tails = append(tails, last.Seconds())
		}
		t.Logf("round %d: cp %.3f s, iperf3 %.3f s (machine's default), %.3f s (cubic), ratio %.3f, tail after the last "+
			"block %.0f ms, %.2f CPU s/GB, idle %.0f%%%s",
			round+1, took, wire, wireCubic, ratio, last.Seconds()*1e3, cpu, idlePart*100, void)
		if err := os.Remove(c.Nodes[0].Path(name)); err != nil {
			t.Fatal(err)
		}
	}
	if len(ratios) == 0 {
		t.Fatal("every run was void: the machine is busy")
	}
	slices.Sort(ratios)
	slices.Sort(tails)
	median, worst := ratios[len(ratios)/2], ratios[len(ratios)-1]
	t.Logf("RESULT n=%d: ratio median %.3f worst %.3f; tail median %.0f ms; disk fsynced %.0f MB/s; idle daemon %.2f%% "+
		"of a core; sequential would take %.1f",
		s.nodes, median, worst, tails[len(tails)/2]*1e3, disk/1e6, idle*100, float64(s.nodes-1))
	if median > s.medianLimit || worst > worstLimit {
		t.Errorf("n=%d: median %.3f (at most %.2f), worst %.3f (at most %.2f)", s.nodes, median, s.medianLimit, worst,
			worstLimit)
	}
}

// iperf sends bytes from node 0 to node 1 and returns the seconds.
func iperf(t *testing.T, c *cluster.Cluster, bytes int64, congestion string) float64 {
	t.Helper()
	server := c.Nodes[1].Command("iperf3", "-s", "-1", "-p", "5301")
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	server.Args = append(server.Args, "--forceflush")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	stdout.Read(buf) // its first line comes when it listens
	host, _, _ := strings.Cut(c.Nodes[1].Addr, ":")
	args := []string{"-c", host, "-p", "5301", "-n", strconv.FormatInt(bytes, 10), "-J"}
	if congestion != "" {
		args = append(args, "-C", congestion)
	}
	out, err := c.Nodes[0].Run("iperf3", args...)
	server.Wait()
	var report struct {
		End struct {
			Received struct {
				Seconds float64 `json:"seconds"`
				Bytes   int64   `json:"bytes"`
			} `json:"sum_received"`
		} `json:"end"`
		Error string `json:"error"`
	}
	if jerr := json.Unmarshal([]byte(out), &report); err != nil || jerr != nil || report.Error != "" ||
		report.End.Received.Bytes == 0 {
		t.Fatalf("iperf3: %v %v %s", err, jerr, out)
	}
	return report.End.Received.Seconds * float64(bytes) / float64(report.End.Received.Bytes)
}

// watchLastByte follows the copy on the first node; the returned function says how long before end the last
// member had all bytes.
func watchLastByte(c *cluster.Cluster, size int64, expected time.Duration) func(end time.Time) time.Duration {
	begin := time.Now()
	last := make(chan time.Time, 1)
	stop := make(chan struct{})
	go func() {
		at := time.Time{}
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				last <- at
				return
			case <-tick.C:
			}
			if !at.IsZero() || time.Since(begin) < expected*9/10 {
				continue // asking costs the node time that is being measured
			}
			if allMoved(c, size) {
				at = time.Now()
			}
		}
	}()
	return func(end time.Time) time.Duration {
		close(stop)
		at := <-last
		if at.IsZero() {
			return 0
		}
		return end.Sub(at)
	}
}

func allMoved(c *cluster.Cluster, size int64) bool {
	st := c.Nodes[0].Status()
	for _, tr := range st.Transfers {
		if tr.SizeBytes != size || len(tr.Members) == 0 {
			continue
		}
		for _, m := range tr.Members {
			if m.Bytes < size {
				return false
			}
		}
		return true
	}
	return false
}

// diskRate is what one fsynced write of so many bytes reaches here, in bytes a second.
func diskRate(t *testing.T, dir string, bytes int64) float64 {
	t.Helper()
	begin := time.Now()
	path := filepath.Join(dir, "diskrate")
	cluster.Random(t, path, bytes, 2)
	os.Remove(path)
	return float64(bytes) / time.Since(begin).Seconds()
}

// cpuOf sums the CPU seconds that the nodes have used.
func cpuOf(c *cluster.Cluster) float64 {
	total := 0.0
	for _, n := range c.Nodes {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.Pid()))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(raw), ") ")
		f := strings.Fields(rest)
		user, _ := strconv.ParseFloat(f[11], 64)
		system, _ := strconv.ParseFloat(f[12], 64)
		total += (user + system) / 100
	}
	return total
}

// idleDaemonCPU is what part of a core a daemon uses while nothing happens.
func idleDaemonCPU(c *cluster.Cluster, over time.Duration) float64 {
	before := cpuOf(c)
	<-time.After(over)
	return (cpuOf(c) - before) / over.Seconds() / float64(len(c.Nodes))
}

// machineTime is the machine's CPU time so far, in ticks.
type machineTime struct{ idle, total float64 }

func readMachine(t *testing.T) machineTime {
	t.Helper()
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	var m machineTime
	for i, f := range strings.Fields(line)[1:] {
		v, _ := strconv.ParseFloat(f, 64)
		m.total += v
		if i == 3 || i == 4 { // idle, iowait
			m.idle += v
		}
	}
	return m
}

func (m machineTime) idleSince(before machineTime) float64 {
	if m.total == before.total {
		return 1
	}
	return (m.idle - before.idle) / (m.total - before.total)
}
