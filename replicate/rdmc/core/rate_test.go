package core

import (
	"testing"
	"time"
)

// TestSimSendRate caps the root, a relay, or all: no member exceeds its cap in any stretch of time, the capped ones use
// it up, and everything arrives.
func TestSimSendRate(t *testing.T) {
	const (
		k    = 400
		wire = simBlock + TrailerSize
		rate = wire * 100_000 // a block each 10 µs; uncapped they take under 1 µs each
		n    = 8
	)
	for name, capped := range map[string]func(rank int) bool{
		"root":  func(rank int) bool { return rank == 0 },
		"relay": func(rank int) bool { return rank == 3 },
		"all":   func(int) bool { return true },
	} {
		w := newWorld(1, simPlan(n), func(rank int) Limits {
			l := simLimits(rank)
			if capped(rank) {
				l.Rate = rate
			}
			return l
		})
		for _, node := range w.nodes {
			node.core.now = simStart
			node.core.turn.bucket.depth, node.core.turn.bucket.tokens = 4*wire, 4*wire // not 10 ms worth: the run takes 4
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
