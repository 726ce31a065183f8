package schedule

import "math/bits"

// Each rule's schedule read backwards: the step in which a block comes, and how many came from a peer before a step.

func (alone) arrival(int, uint64, uint64) uint64     { return 0 }
func (alone) before(int, int, uint64, uint64) uint64 { return 0 }

func (s sequential) arrival(rank int, block, k uint64) uint64 { return uint64(rank-1)*k + block }

func (s sequential) before(rank, peer int, step, k uint64) uint64 {
	if rank == 0 || peer != 0 {
		return 0
	}
	return since(step, uint64(rank-1)*k, k)
}

func (c chain) arrival(rank int, block, _ uint64) uint64 { return uint64(rank-1) + block }

func (c chain) before(rank, peer int, step, k uint64) uint64 {
	if rank == 0 || peer != rank-1 {
		return 0
	}
	return since(step, uint64(rank-1), k)
}

// round is the one in which a rank that is not the root receives.
func (b binomialTree) round(rank int) int { return bits.Len(uint(rank)) - 1 }

func (b binomialTree) arrival(rank int, block, k uint64) uint64 {
	return uint64(b.round(rank))*k + block
}

func (b binomialTree) before(rank, peer int, step, k uint64) uint64 {
	if rank == 0 || peer != rank-1<<b.round(rank) {
		return 0
	}
	return since(step, uint64(b.round(rank))*k, k)
}

// since is how many of k blocks, one a step from first on, came before the step.
func since(step, first, k uint64) uint64 {
	if step < first {
		return 0
	}
	return min(step-first, k)
}

// A block of a hypercube crosses its dimensions in the log2 n steps from its own on.
func (h hypercube) arrival(rank int, block, k uint64) uint64 {
	return search(h, rank, block, uint64(h.dims), k)
}

func (h hypercube) before(rank, peer int, step, k uint64) uint64 {
	return counted(h, rank, peer, min(step, h.steps(k)), uint64(h.dims), k)
}

func (c *circulant) arrival(rank int, block, k uint64) uint64 {
	return search(c, rank, block, 2*uint64(c.q), k)
}

func (c *circulant) before(rank, peer int, step, k uint64) uint64 {
	return counted(c, rank, peer, min(step, c.steps(k)), uint64(c.q), k)
}

// A block reaches a vertex as in the hypercube, and the other of twins up to two steps later.
func (t twin) arrival(rank int, block, k uint64) uint64 {
	return search(t, rank, block, uint64(t.dims)+2, k)
}

// The roles of twins come back after two rounds of the dimensions, at the latest; the last step is not like the others.
func (t twin) before(rank, peer int, step, k uint64) uint64 {
	step = min(step, t.steps(k))
	even := min(step, t.cubeSteps(k))
	return counted(t, rank, peer, even, 2*uint64(t.dims), k) + scan(t, rank, peer, even, step, k)
}

func (h *hybrid) arrival(rank int, block, k uint64) uint64 {
	rack, place := h.rackOf[rank], h.placeOf[rank]
	if place == 0 {
		return 2 * h.leaders.arrival(rack, block, k)
	}
	return 2*(h.racks[rack].arrival(place, block, k)+h.lag) + 1
}

func (h *hybrid) before(rank, peer int, step, k uint64) uint64 {
	rack, place := h.rackOf[rank], h.placeOf[rank]
	if h.rackOf[peer] == rack {
		turns := step / 2
		return h.racks[rack].before(place, h.placeOf[peer], turns-min(turns, h.lag), k)
	}
	if place != 0 || h.placeOf[peer] != 0 {
		return 0
	}
	return h.leaders.before(rack, h.rackOf[peer], (step+1)/2, k)
}

// search finds the step in which a block comes in a pipeline, at most late steps after its own.
func search[R rule](r R, rank int, block, late, k uint64) uint64 {
	for step := block; step <= block+late; step++ {
		if t, ok := r.incoming(rank, step, k); ok && t.Block == block {
			return step
		}
	}
	panic("schedule: a block that never comes") // tidy: each block comes to each rank, which the exhaustive tests hold
}

// counted counts what rank receives from peer in the steps before the given one. A pipeline repeats itself: from its third period on
// each is like the one before.
func counted[R rule](r R, rank, peer int, step, period, k uint64) uint64 {
	filled := min(step, 2*period)
	n := scan(r, rank, peer, 0, filled, k)
	if whole := (step - filled) / period; whole > 0 {
		n += whole * scan(r, rank, peer, filled, filled+period, k)
		filled += whole * period
	}
	return n + scan(r, rank, peer, filled, step, k)
}

// scan counts one by one.
func scan[R rule](r R, rank, peer int, from, to, k uint64) (n uint64) {
	for step := from; step < to; step++ {
		if t, ok := r.incoming(rank, step, k); ok && t.Peer == peer {
			n++
		}
	}
	return n
}

func (t tree) arrival(rank int, _, _ uint64) uint64 { return uint64(t.taken[rank]) }

func (t tree) before(rank, peer int, step, _ uint64) uint64 {
	taken := t.taken[rank]
	if taken >= 0 && uint64(taken) < step && rank-t.skips[taken] == peer {
		return 1
	}
	return 0
}
