package consensus

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// benchCluster is 3 voters and 2 observers on loopback TCP and the real disk.
func benchCluster(tb testing.TB) (c *cluster, leader, observer ID) {
	c = newCluster(tb, 5, func(c *cluster) { c.real = true; c.tune = Tuning{PolicyInterval: 50 * time.Millisecond} })
	leader = c.waitVoters(3)
	for _, tn := range c.running() {
		if tn.node.Status().Role == RoleObserver {
			observer = tn.id
		}
	}
	c.propose(observer, "warm")
	return c, leader, observer
}

func percentiles(took []time.Duration) (p50, p99 time.Duration) {
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100]
}

func benchPropose(b *testing.B, pick func(leader, observer ID) ID, proposers int, visible bool) {
	c, leader, observer := benchCluster(b)
	node := c.nodes[pick(leader, observer)].node
	payload := make([]byte, 256)
	var mu sync.Mutex
	var all []time.Duration
	var next int
	b.ResetTimer()
	var wg sync.WaitGroup
	for range proposers {
		wg.Go(func() {
			for {
				mu.Lock()
				next++
				i := next
				mu.Unlock()
				if i > b.N {
					return
				}
				began := time.Now()
				command := fmt.Sprintf("%08d%s", i, payload)
				var behind []ID
				var err error
				if visible {
					_, behind, err = proposeVisible(node, command, 5*time.Second)
				} else {
					_, err = node.Propose(context.Background(), []byte(command), ProposeOptions{})
				}
				if err != nil || len(behind) > 0 {
					b.Errorf("propose: %v, behind %v", err, behind)
					return
				}
				mu.Lock()
				all = append(all, time.Since(began))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	if len(all) > 0 {
		p50, p99 := percentiles(all)
		b.ReportMetric(float64(p50.Microseconds()), "p50-µs")
		b.ReportMetric(float64(p99.Microseconds()), "p99-µs")
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	}
}

func BenchmarkProposeLeader(b *testing.B) {
	benchPropose(b, func(l, _ ID) ID { return l }, 1, false)
}

func BenchmarkProposeObserver(b *testing.B) {
	benchPropose(b, func(_, o ID) ID { return o }, 1, false)
}

func BenchmarkProposeObserverVisible(b *testing.B) {
	benchPropose(b, func(_, o ID) ID { return o }, 1, true)
}

func BenchmarkProposeObserver16(b *testing.B) {
	benchPropose(b, func(_, o ID) ID { return o }, 16, false)
}

func BenchmarkProposeObserver16Visible(b *testing.B) {
	benchPropose(b, func(_, o ID) ID { return o }, 16, true)
}

func BenchmarkProposeObserver128(b *testing.B) {
	benchPropose(b, func(_, o ID) ID { return o }, 128, false)
}
