package bench

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// smallCase is small files of one size, written by so many programs at once on one node.
type smallCase struct {
	nodes    int
	rateMbit int // 0: as fast as the machine is
	bytes    int
	writers  int
	limit    time.Duration // median of one file, by one writer on a shaped link; 0: none
}

// smallFiles is how many files are measured, over all writers.
const smallFiles = 40

var smallCases = []smallCase{
	{8, 100, 64 << 10, 1, 60 * time.Millisecond}, {8, 100, 256 << 10, 1, 120 * time.Millisecond},
	{8, 100, 1 << 20, 1, 300 * time.Millisecond}, {8, 100, 256 << 10, 8, 0},
	{4, 100, 64 << 10, 1, 0}, {4, 100, 256 << 10, 1, 0}, {4, 100, 1 << 20, 1, 0}, {4, 100, 256 << 10, 8, 0},
	{8, 0, 64 << 10, 1, 0}, {8, 0, 256 << 10, 1, 0}, {8, 0, 1 << 20, 1, 0}, {8, 0, 256 << 10, 8, 0},
	{4, 0, 256 << 10, 1, 0}, {4, 0, 256 << 10, 8, 0},
}

func (s smallCase) rate() string {
	if s.rateMbit == 0 {
		return "unshaped"
	}
	return fmt.Sprintf("%dMbit", s.rateMbit)
}

// Small files to all nodes: the time from open to a close that has returned, and files a second. Cases of the same
// nodes and rate share a cluster.
func TestSmallFiles(t *testing.T) {
	if !*enabled {
		t.Skip("benchmarks run by 'make bench'") // not a missing piece: timing has no place in tests
	}
	rest := slices.Clone(smallCases)
	for len(rest) > 0 {
		first := rest[0]
		t.Run(fmt.Sprintf("n=%d/%s", first.nodes, first.rate()), func(t *testing.T) {
			opts := cluster.Options{Nodes: first.nodes}
			if first.rateMbit > 0 {
				opts.Rate = strings.ToLower(first.rate())
			}
			c := cluster.Start(t, opts)
			for _, s := range rest {
				if s.nodes == first.nodes && s.rateMbit == first.rateMbit {
					s.run(t, c)
				}
			}
		})
		rest = slices.DeleteFunc(rest, func(s smallCase) bool {
			return s.nodes == first.nodes && s.rateMbit == first.rateMbit
		})
	}
}

func (s smallCase) run(t *testing.T, c *cluster.Cluster) {
	b := make([]byte, s.bytes)
	rand.Read(b)
	write := func(name string) time.Duration {
		begin := time.Now()
		f, err := os.Create(c.Nodes[0].Path(name))
		if err == nil {
			_, err = f.Write(b)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return time.Since(begin)
	}
	prefix := fmt.Sprintf("%d-%d", s.bytes, s.writers)
	for i := range 3 {
		write(fmt.Sprintf("%s-first%d", prefix, i))
	}
	<-time.After(time.Second) // what the first files begin in the background
	cpu, machine := cpuOf(c), readMachine(t)
	begin := time.Now()
	times := make([][]time.Duration, s.writers)
	var all sync.WaitGroup
	for w := range s.writers {
		all.Go(func() {
			for i := range smallFiles / s.writers {
				times[w] = append(times[w], write(fmt.Sprintf("%s-%d-%d", prefix, w, i)))
			}
		})
	}
	all.Wait()
	took := time.Since(begin)
	cpu = (cpuOf(c) - cpu) / smallFiles
	idle := readMachine(t).idleSince(machine)
	list := slices.Sorted(slices.Values(slices.Concat(times...)))
	median, worst := list[len(list)/2], list[len(list)-1]
	t.Logf("RESULT n=%d %s %d KiB by %d: median %.1f ms, worst %.1f ms, %.1f files/s, %.1f ms CPU a file, idle %.0f%%",
		s.nodes, s.rate(), s.bytes>>10, s.writers, median.Seconds()*1e3, worst.Seconds()*1e3,
		smallFiles/took.Seconds(), cpu*1e3, idle*100)
	if s.limit > 0 && median > s.limit && idle >= 0.10 {
		t.Errorf("n=%d %s %d KiB: median %v, at most %v", s.nodes, s.rate(), s.bytes>>10, median, s.limit)
	}
}
