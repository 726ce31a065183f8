package rdmc

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// TestSimSendRate caps the root, a relay, or all: no member exceeds its cap in any stretch of time, the capped ones use
// it up, and everything arrives.
func TestSimSendRate(t *testing.T) {
	const (
		k    = 400
		wire = simBlock + trailerSize
		rate = wire * 100_000 // a block each 10 µs; uncapped they take under 1 µs each
		n    = 8
	)
	for name, capped := range map[string]func(rank int) bool{
		"root":  func(rank int) bool { return rank == 0 },
		"relay": func(rank int) bool { return rank == 3 },
		"all":   func(int) bool { return true },
	} {
		w := newWorld(1, simPlan(n), func(rank int) coreLimits {
			l := simLimits(rank)
			if capped(rank) {
				l.rate = rate
			}
			return l
		})
		for _, node := range w.nodes {
			node.core.now = simStart
			node.core.bucket.depth, node.core.bucket.tokens = 4*wire, 4*wire // not 10 ms worth: the run takes 4
		}
		a := Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}
		w.announce(a, none(k))
		w.loop(func() bool { return false })
		w.verify(a, none(k))
		if w.err != nil {
			t.Fatalf("%s: %v", name, w.err)
		}
		for _, node := range w.nodes {
			if capped(node.rank) {
				checkRate(t, name, node, rate, 5*wire+1)
			}
		}
		if root := w.nodes[0]; capped(0) {
			took := root.sent[len(root.sent)-1].at.Seconds()
			if least := float64(len(root.sent)) * wire / rate; took > 1.1*least {
				t.Errorf("%s: the root needs %.2f ms, its cap allows %.2f", name, 1e3*took, 1e3*least)
			}
		}
	}
}

// checkRate holds that no stretch of time has more than its share and a burst.
func checkRate(t *testing.T, name string, n *simNode, rate uint64, burst int) {
	t.Helper()
	for i := range n.sent {
		bytes := 0
		for j := i; j < len(n.sent); j++ {
			bytes += n.sent[j].bytes
			allowed := float64(rate)*(n.sent[j].at-n.sent[i].at).Seconds() + float64(burst)
			if float64(bytes) > allowed {
				t.Fatalf("%s: rank %d sends %d bytes from %v to %v, its cap allows %.0f", name, n.rank, bytes, n.sent[i].at,
					n.sent[j].at, allowed)
			}
		}
	}
}

func TestBucket(t *testing.T) {
	b := newBucket(1000)
	now := simStart
	if !b.open(now) {
		t.Fatal("a new bucket is closed")
	}
	b.take(510) // depth 10
	if b.open(now) || !b.opens().After(now.Add(500*time.Millisecond)) || b.opens().After(now.Add(502*time.Millisecond)) {
		t.Fatalf("a debt of 500 at 1000 a second is over at %v", b.opens().Sub(now))
	}
	for step := range 500 {
		if b.open(now.Add(time.Duration(step) * time.Millisecond)) {
			t.Fatalf("open after %d ms", step)
		}
	}
	if !b.open(b.opens()) {
		t.Fatal("closed when it says that it opens")
	}
	if b.open(now.Add(time.Hour)); b.tokens != b.depth {
		t.Fatalf("%d tokens after an hour, want %d", b.tokens, b.depth)
	}
	for _, rate := range []uint64{1, 3, 1 << 20, 1 << 40} {
		b := newBucket(rate)
		b.open(now)
		b.take(1 << 20)
		if opens := b.opens(); !b.open(opens) {
			t.Errorf("rate %d: closed when it says that it opens", rate)
		}
	}
}

// TestSendRate caps the root of a real group: the time is what the cap says, small messages included.
func TestSendRate(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		const size, rate = 400_000, 1_000_000
		groups, _ := smallGroups(t, c, GroupConfig{BlockSize: 4096, SmallBytes: 1000, SendRate: rate})
		began := time.Now()
		transfers, sinks := multicast(t, groups, randomMemory(1, size, 4096))
		verify(t, transfers, sinks)
		var last uint64
		for range 50 {
			last = sendSmall(t, groups[0], make([]byte, 960))
		}
		if err := groups[0].WaitDelivered(testContext(t), last); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began).Seconds()
		// The root sends at least the large message once and each small one twice; a burst of 10 ms and two blocks
		// are free.
		if least := float64(size+2*50*1000)/rate - 0.03; took < least {
			t.Errorf("took %.3f s, the cap allows no less than %.3f", took, least)
		}
		closeAll(t, groups)
	})
}
