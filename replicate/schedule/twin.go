package schedule

import "math/bits"

// twin is the technical report's pipeline for any size n = 2^d + e: vertex v of a d-cube holds rank v, and
// vertices 1 to e hold a second member, rank v + 2^d - 1, its twin. The root's vertex is never doubled.
//
// Of a doubled vertex one member takes the block that comes from outside (the taker), the other sends the
// block that goes outside (the giver). Whenever the vertex has taken in a newer block the roles change, so
// the giver always holds the newest block. The taker meanwhile hands the giver the one block that the
// giver lacks, one step late; a last step settles the difference.
type twin struct {
	cube
	members, extra int
}

func newTwin(members int) twin {
	dims := bits.Len(uint(members)) - 1
	return twin{cube: cube{dims}, members: members, extra: members - 1<<dims}
}

func (t twin) cubeSteps(k uint64) uint64 { return uint64(t.dims) + k - 1 }

func (t twin) steps(k uint64) uint64 {
	if t.extra > 0 {
		return t.cubeSteps(k) + 1
	}
	return t.cubeSteps(k)
}

func (t twin) vertex(rank int) int {
	if rank < 1<<t.dims {
		return rank
	}
	return rank - 1<<t.dims + 1
}

func (t twin) doubled(v int) bool { return v >= 1 && v <= t.extra }

// takerAndGiver are the ranks of a vertex by their roles in the step; the same rank if it has no twin.
func (t twin) takerAndGiver(v int, step uint64) (taker, giver int) {
	if !t.doubled(v) {
		return v, v
	}
	second := v + 1<<t.dims - 1
	if t.newerBlocks(v, step)%2 == 1 {
		return second, v
	}
	return v, second
}

// newerBlocks counts the steps before the given one that brought the vertex its newest block: the steps along a
// dimension whose bit is set in v.
func (t twin) newerBlocks(v int, step uint64) uint64 {
	rounds, rest := step/uint64(t.dims), step%uint64(t.dims)
	low := v & (1<<rest - 1)
	return rounds*uint64(bits.OnesCount(uint(v))) + uint64(bits.OnesCount(uint(low)))
}

func (t twin) outgoing(rank int, step, k uint64) (Transfer, bool) {
	v := t.vertex(rank)
	taker, giver := t.takerAndGiver(v, step)
	if step >= t.cubeSteps(k) {
		return t.settle(v, rank, taker, giver, k)
	}
	if rank == giver {
		block, ok := t.block(v, step, k)
		target, _ := t.takerAndGiver(t.partner(v, step), step)
		return Transfer{Peer: target, Block: block}, ok
	}
	block, ok := t.handover(step)
	return Transfer{Peer: giver, Block: block}, ok
}

func (t twin) incoming(rank int, step, k uint64) (Transfer, bool) {
	v := t.vertex(rank)
	if v == 0 {
		return Transfer{}, false
	}
	taker, giver := t.takerAndGiver(v, step)
	if step >= t.cubeSteps(k) {
		out, ok := t.settle(v, taker+giver-rank, taker, giver, k)
		return Transfer{Peer: taker + giver - rank, Block: out.Block}, ok
	}
	if rank == taker {
		from := t.partner(v, step)
		block, ok := t.block(from, step, k)
		_, source := t.takerAndGiver(from, step)
		return Transfer{Peer: source, Block: block}, ok
	}
	block, ok := t.handover(step)
	return Transfer{Peer: taker, Block: block}, ok
}

// handover is the block that a taker hands to the giver of its vertex in the step.
func (t twin) handover(step uint64) (uint64, bool) {
	if step < uint64(t.dims)+1 {
		return 0, false
	}
	return step - uint64(t.dims) - 1, true
}

// settle is the last step, in which twins give each other the block that is still missing: the giver its
// newest, the taker the one before.
func (t twin) settle(v, rank, taker, giver int, k uint64) (Transfer, bool) {
	switch {
	case !t.doubled(v):
		return Transfer{}, false
	case rank == giver:
		return Transfer{Peer: taker, Block: k - 1}, true
	case k == 1:
		return Transfer{}, false
	}
	return Transfer{Peer: giver, Block: k - 2}, true
}

func (t twin) links(rank int, yield func(int)) {
	v := t.vertex(rank)
	other := func(peer int) {
		if peer != rank {
			yield(peer)
		}
	}
	both := func(u int) {
		other(u)
		if t.doubled(u) {
			other(u + 1<<t.dims - 1)
		}
	}
	for d := range t.dims {
		both(v ^ 1<<d)
	}
	both(v)
}
