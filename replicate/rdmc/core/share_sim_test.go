package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
)

const shareLink = 25e6 // bytes a second

// bigLimits returns the limits of a real group.
func bigLimits(int) Limits {
	return Limits{Slots: 12, Posted: 6, Pins: 3, Sends: 2, Silence: time.Hour, Interval: 100 * time.Millisecond}
}

// sentBetween is what a rank posted in a stretch of time.
func sentBetween(n *simNode, from, to time.Duration) (bytes float64) {
	for _, s := range n.sent {
		if s.at >= from && s.at < to {
			bytes += float64(s.bytes)
		}
	}
	return bytes
}

// compete makes groups of these block sizes send from machine 0 to machines of their own for so long, and returns the
// bytes of each after a first moment.
func compete(t *testing.T, u *universe, classes []share.Priority, blocks []int, members int) (sent []float64) {
	t.Helper()
	const begin, end = 200 * time.Millisecond, 3 * time.Second
	for i, block := range blocks {
		machines := []int{0}
		for m := range members {
			machines = append(machines, 1+m)
		}
		w := u.group(uint64(i), block, classes[i], bigLimits, machines...)
		u.message(w, 1, 1<<30, true)
	}
	if err := u.run(end, never); err != nil {
		t.Fatal(err)
	}
	for _, w := range u.worlds {
		sent = append(sent, sentBetween(w.nodes[0], begin, end)/(end-begin).Seconds())
	}
	return sent
}

func ratio(list []float64) float64 {
	least, most := list[0], list[0]
	for _, v := range list {
		least, most = min(least, v), max(most, v)
	}
	return most / least
}

func sum(list []float64) (s float64) {
	for _, v := range list {
		s += v
	}
	return s
}

// TestSimShares: groups with different block sizes compete for the root's link. It is used, and shared within 10%.
func TestSimShares(t *testing.T) {
	for _, fifo := range []bool{false, true} {
		for _, blocks := range [][]int{{64 << 10, 64 << 10}, {1 << 20, 16 << 10}, {16 << 10, 1 << 20},
			{1 << 20, 256 << 10, 64 << 10, 16 << 10}, {256 << 10, 256 << 10, 256 << 10}} {
			for _, members := range []int{1, 3, 7} {
				if fifo && members == 7 && len(blocks) == 2 && blocks[0] != blocks[1] {
					continue // behind the big blocks in the relays' queues credit comes too seldom: see docs/decisions/018
				}
				t.Run(fmt.Sprintf("fifo=%t/%v/n=%d", fifo, blocks, members+1), func(t *testing.T) {
					u := newUniverse(members+1, 10*shareLink)
					u.net.out[0], u.net.fifo = shareLink, fifo
					sent := compete(t, u, make([]share.Priority, len(blocks)), blocks, members)
					t.Logf("%.3g bytes a second", sent)
					if ratio(sent) > 1.1 || sum(sent) < 0.9*shareLink {
						t.Errorf("shares %.3g of a link of %.3g", sent, shareLink)
					}
				})
			}
		}
	}
}

// TestSimSharesWithout holds that the link of TestSimShares is not fair by itself.
func TestSimSharesWithout(t *testing.T) {
	u := newUniverse(4, 10*shareLink)
	u.net.out[0], u.net.fifo = shareLink, true
	for i, block := range []int{1 << 20, 16 << 10} {
		w := u.group(uint64(i), block, share.PriorityNormal, bigLimits, 0, 1, 2, 3)
		for _, n := range w.nodes {
			n.core.turn.gate = nil
		}
		u.message(w, 1, 1<<30, true)
	}
	if err := u.run(time.Second, never); err != nil {
		t.Fatal(err)
	}
	big, small := sentBetween(u.worlds[0].nodes[0], 0, time.Second), sentBetween(u.worlds[1].nodes[0], 0, time.Second)
	if big < 5*small {
		t.Errorf("without turns big blocks have %.3g, small ones %.3g", big, small)
	}
}

// TestSimShareClasses: a higher class goes ahead, and a lower one does not starve.
func TestSimShareClasses(t *testing.T) {
	for _, fifo := range []bool{false, true} {
		for _, blocks := range [][]int{{64 << 10, 64 << 10, 64 << 10}, {64 << 10, 512 << 10, 64 << 10},
			{256 << 10, 64 << 10, 1 << 20}} {
			u := newUniverse(4, 10*shareLink)
			u.net.out[0], u.net.fifo = shareLink, fifo
			sent := compete(t, u, []share.Priority{share.PriorityHigh, share.PriorityHigh, share.PriorityNormal}, blocks, 3)
			t.Logf("fifo %t, blocks %v: %.3g bytes a second", fifo, blocks, sent)
			part := sent[2] / sum(sent)
			if ratio(sent[:2]) > 1.1 || sum(sent) < 0.9*shareLink || part < 0.8/17 || part > 1.5/17 {
				t.Errorf("fifo %t, blocks %v: %.3g, the lower class has %.3f, want a 17th", fifo, blocks, sent, part)
			}
		}
	}
}

// TestSimShareLowest holds that even the lowest class is not starved by the highest.
func TestSimShareLowest(t *testing.T) {
	u := newUniverse(4, 10*shareLink)
	u.net.out[0] = shareLink
	sent := compete(t, u, []share.Priority{share.PriorityHigh, share.PriorityLow}, []int{64 << 10, 64 << 10}, 3)
	if part := sent[1] / sum(sent); part < 0.5/257 || part > 2.0/257 {
		t.Errorf("the lowest class has %.4f of the link, want a 257th", part)
	}
}

// TestSimShareNothingReserved: a group gets on badly beside one that could take the whole link. The other is not held
// up.
func TestSimShareNothingReserved(t *testing.T) {
	for name, trouble := range map[string]func(u *universe, bad *world){
		"stopped":   func(u *universe, bad *world) { u.net.pair[[2]int{0, 2}] = 1 },
		"slow":      func(u *universe, bad *world) { u.net.pair[[2]int{0, 2}] = shareLink / 20 },
		"no credit": func(u *universe, bad *world) { bad.dead[1] = true },
		"capped": func(u *universe, bad *world) {
			bad.nodes[0].core.limits.Rate = shareLink / 10
			bad.nodes[0].core.turn.bucket = newBucket(shareLink / 10)
		},
	} {
		for _, class := range []share.Priority{share.PriorityLow, share.PriorityNormal, share.PriorityHigh} {
			for _, blocks := range [][2]int{{64 << 10, 64 << 10}, {16 << 10, 1 << 20}, {1 << 20, 16 << 10}} {
				t.Run(fmt.Sprintf("%s/%d/%v", name, class, blocks), func(t *testing.T) {
					u := newUniverse(3, 10*shareLink)
					u.net.out[0] = shareLink
					good := u.group(1, blocks[0], share.PriorityNormal, bigLimits, 0, 1)
					bad := u.group(2, blocks[1], class, bigLimits, 0, 2)
					trouble(u, bad)
					u.message(good, 1, 1<<30, true)
					u.message(bad, 1, 1<<30, true)
					if err := u.run(6*time.Second, never); err != nil {
						t.Fatal(err)
					}
					for _, part := range [][2]time.Duration{{0, 6 * time.Second}, {3 * time.Second, 6 * time.Second}} {
						took := (part[1] - part[0]).Seconds()
						g, b := sentBetween(good.nodes[0], part[0], part[1])/took, sentBetween(bad.nodes[0], part[0], part[1])/took
						t.Logf("from %v: good %.4g, bad %.3g bytes a second", part[0], g, b)
						if g+b < 0.85*shareLink { // the worst is a slow group of small blocks beside large ones; the others lose less
							t.Errorf("from %v: good %.4g, bad %.3g of a link of %.3g", part[0], g, b, shareLink)
						}
					}
				})
			}
		}
	}
}

// TestSimShareRelay: a relay of two groups with a slow link of its own shares it between them, while their roots are
// elsewhere.
func TestSimShareRelay(t *testing.T) {
	u := newUniverse(7, 10*shareLink)
	u.net.out[2] = shareLink
	a := u.group(1, 512<<10, share.PriorityNormal, bigLimits, 0, 2, 3, 4)
	b := u.group(2, 32<<10, share.PriorityNormal, bigLimits, 1, 2, 5, 6)
	u.message(a, 1, 1<<30, true)
	u.message(b, 1, 1<<30, true)
	const begin, end = 300 * time.Millisecond, 4 * time.Second
	if err := u.run(end, never); err != nil {
		t.Fatal(err)
	}
	sent := []float64{sentBetween(a.nodes[1], begin, end), sentBetween(b.nodes[1], begin, end)}
	t.Logf("%.3g bytes", sent)
	if ratio(sent) > 1.1 || sum(sent) < 0.85*shareLink*(end-begin).Seconds() {
		t.Errorf("a relay's groups send %.3g bytes, its link takes %.3g", sent, shareLink*(end-begin).Seconds())
	}
}

// TestSimShareLateComer: a group comes when the other has long been under way, and one comes back after a pause.
// Neither is owed anything.
func TestSimShareLateComer(t *testing.T) {
	u := newUniverse(4, 10*shareLink)
	u.net.out[0] = shareLink
	a := u.group(1, 64<<10, share.PriorityNormal, bigLimits, 0, 1, 2, 3)
	b := u.group(2, 256<<10, share.PriorityNormal, bigLimits, 0, 1, 2, 3)
	u.message(b, 1, 5<<20, true)
	u.message(a, 1, 1<<30, true)
	if err := u.run(2*time.Second, never); err != nil {
		t.Fatal(err)
	}
	u.message(b, 2, 1<<30, true)
	if err := u.run(3*time.Second, never); err != nil {
		t.Fatal(err)
	}
	sent := []float64{sentBetween(a.nodes[0], 2*time.Second, 3*time.Second),
		sentBetween(b.nodes[0], 2*time.Second, 3*time.Second)}
	if ratio(sent) > 1.1 {
		t.Errorf("in the second after the pause: %.3g", sent)
	}
}
