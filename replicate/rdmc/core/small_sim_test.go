package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// actSmall carries out what a core says of small messages.
func (w *world) actSmall(n *simNode, a Action) {
	switch a.Kind {
	case ActSmallLoad:
		n.smalls[a.Slot] = smallTrailer(a.Seq, a.Block, a.Length)
		w.after(w.delay(a.Kind), func() { w.run(n, func() { n.core.small.Loaded(a.Block, nil) }) })
	case ActSmallHand:
		if got := n.smalls[a.Slot]; got.Seq != a.Seq {
			w.fault("rank %d is given message %d from a buffer with %d", n.rank, a.Seq, got.Seq)
		}
		n.handed[a.Seq]++
		n.order = append(n.order, a.Seq)
		w.after(w.delay(a.Kind), func() {
			if n.smalls[a.Slot].Seq != a.Seq {
				w.fault("rank %d: message %d changed in the application's hands", n.rank, a.Seq)
			}
			w.run(n, func() { n.core.small.Taken(a.Block, nil) })
		})
	case ActSmallPost:
		n.ctl[a.Lane] = append(n.ctl[a.Lane], a.Slot)
	case ActSmallSend:
		w.sendSmall(n, a)
	}
}

func smallTrailer(seq, count uint64, wire int) Trailer {
	length := wire - TrailerSize
	return Trailer{Seq: seq, Block: count, Size: uint64(length), Epoch: 7, Length: uint32(length)}
}

func (w *world) sendSmall(n *simNode, a Action) {
	peer := w.nodes[n.core.lanes.all[a.Lane].peer]
	back := peer.core.lanes.of[n.rank]
	got := n.smalls[a.Slot]
	n.lastCtl[a.Lane] = max(n.lastCtl[a.Lane], w.now) + w.delay(ActControl)
	w.at(n.lastCtl[a.Lane], func() {
		if n.smalls[a.Slot] != got {
			w.fault("rank %d: small message %d changed under a send", n.rank, got.Seq)
		}
		if w.dead[peer.rank] || w.dead[n.rank] {
			return
		}
		buffer := w.takeControl(n, peer)
		peer.smalls[buffer] = got
		w.after(w.delay(ActPostRecv), func() { w.run(n, func() { n.core.small.Sent(a.Block) }) })
		w.run(peer, func() { peer.core.small.Received(back, buffer, got, nil) })
	})
}

// putSmall is what SendSmall does; it reports whether there was room.
func (w *world) putSmall(n *simNode, size int) bool {
	place := n.core.small.Room()
	if place < 0 {
		return false
	}
	n.smalls[place] = smallTrailer(n.core.messages.Next(), n.core.small.next, size+TrailerSize)
	w.run(n, func() { n.core.small.Send(size) })
	return true
}

// TestSimSmallMessages mixes small and large messages in one group, with random delays and small windows: each member
// is given each message once and in order, and the closing barrier holds.
func TestSimSmallMessages(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		if err := simSmallOnce(seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func simSmallOnce(seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 12))
	n := 1 + rng.IntN(24) // the root's own star up to 16, the tree beyond
	plan, err := schedule.NewPlan(schedule.BinomialPipeline, n)
	if err != nil {
		return err
	}
	plain, inOrder, window := rng.IntN(2) == 0, rng.IntN(2) == 0, 1+rng.IntN(5)
	pools := tiny(rng)
	w := newWorldOf(seed, plan, plain, func(rank int) Limits {
		l := pools(rank)
		l.SmallBytes, l.SmallWindow, l.SmallInOrder = 500, window, inOrder
		return l
	})
	large := make(map[uint64]Announcement)
	root := w.nodes[0]
	total := 1 + rng.IntN(30)
	var send func()
	send = func() {
		switch {
		case total == 0:
			w.run(root, root.core.CloseWhenDone)
			return
		case rng.IntN(4) == 0:
			size := uint64(rng.IntN(20*simBlock) + 1)
			a := Announcement{Seq: root.core.messages.Next(), Size: size, Blocks: AllBlocks(BlockCount(size, simBlock))}
			large[a.Seq] = a
			if plain {
				w.run(root, func() { root.core.Announce(a, nil) })
			} else {
				w.announceNow(a)
			}
			total--
		case plain && rng.IntN(2) == 0:
			w.run(root, func() { root.core.small.Queue(1 + rng.IntN(500)) })
			total--
		case w.putSmall(root, 1+rng.IntN(500)):
			total--
		}
		w.after(time.Duration(rng.IntN(1500)), send)
	}
	send()
	w.loop(func() bool { return false })
	last := root.core.messages.first - 1
	for _, node := range w.nodes {
		for seq := uint64(1); seq <= last; seq++ {
			if want := node.rank > 0 && large[seq].Seq == 0; (node.handed[seq] == 1) != want || node.handed[seq] > 1 ||
				!node.done[seq] {
				w.fault("rank %d: message %d handed %d times, done %t", node.rank, seq, node.handed[seq], node.done[seq])
			}
		}
		if inOrder && !slices.IsSorted(node.order) {
			w.fault("rank %d: order %v", node.rank, node.order)
		}
		if !node.closed || !node.settled {
			w.fault("rank %d: closed %t settled %t", node.rank, node.closed, node.settled)
		}
	}
	for _, a := range large {
		w.verify(a, none(BlockCount(a.Size, simBlock)))
	}
	if w.err != nil {
		return fmt.Errorf("n=%d plain %t in order %t window %d: %w", n, plain, inOrder, window, w.err)
	}
	return nil
}

// announceNow announces at the root at once and elsewhere later.
func (w *world) announceNow(a Announcement) {
	w.run(w.nodes[0], func() {
		if err := w.nodes[0].core.Announce(a, nil); err != nil {
			w.fault("announce: %v", err)
		}
	})
	for _, n := range w.nodes[1:] {
		w.after(time.Duration(w.rng.IntN(3000)), func() {
			w.run(n, func() {
				if err := n.core.Announce(a, NewBitmap(BlockCount(a.Size, simBlock))); err != nil {
					w.fault("announce: %v", err)
				}
			})
		})
	}
}

// TestSimSmallRefused: a member gets small messages that it must refuse: wrong place, number, size, epoch, lane. It
// fails, with the sender as the suspect, and does not panic.
func TestSimSmallRefused(t *testing.T) {
	good := smallTrailer(1, 0, 100+TrailerSize)
	for name, change := range map[string]func(*Trailer){
		"count":  func(t *Trailer) { t.Block = 1 },
		"number": func(t *Trailer) { t.Seq = 0 },
		"far":    func(t *Trailer) { t.Seq = MaxQueued + 1 },
		"size":   func(t *Trailer) { t.Size, t.Length = 501, 501 },
		"part":   func(t *Trailer) { t.Size = 200 },
		"epoch":  func(t *Trailer) { t.Epoch = 6 },
	} {
		c := smallCore(t)
		got := good
		change(&got)
		c.small.Received(c.parent, 0, got, nil)
		if c.failure == nil || c.failure.Reason != ReasonCorrupt || !slices.Equal(c.failure.Suspects, []int{0}) {
			t.Errorf("%s: %+v", name, c.failure)
		}
	}
	c := smallCore(t)
	c.small.Received(c.lanes.of[3], 0, good, nil)
	if c.failure == nil || !slices.Equal(c.failure.Suspects, []int{3}) {
		t.Errorf("from another than the parent: %+v", c.failure)
	}
	c = smallCore(t)
	c.small.Received(c.parent, 0, good, nil)
	c.small.Received(c.parent, 1, good, nil)
	if c.failure == nil {
		t.Error("twice: no failure")
	}
}

func smallCore(t *testing.T) *Member {
	plan, err := schedule.NewPlan(schedule.BinomialPipeline, 4)
	if err != nil {
		t.Fatal(err)
	}
	l := simLimits(1)
	l.SmallBytes, l.SmallWindow, l.SmallInOrder = 500, 4, true
	return New(Config{Plan: plan, Rank: 1, BlockSize: simBlock, Epoch: 7, Limits: l})
}
