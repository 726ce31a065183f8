package schedule

import "math/bits"

// cube is a hypercube of 2^dims vertices; vertex 0 holds the root.
type cube struct{ dims int }

// block is what vertex v sends along the dimension of the step, or false for nothing. It is the rule of section 4.4 of
// the paper, where the shift must be applied to the sending vertex.
//
// Turned right by the step's dimension, a vertex reads 0 for the root and 1 for the one whose partner is the root.
// Otherwise the number of trailing zeros says how many steps ago, cyclically, the vertex last took in a new block: the
// fewer, the older the newest block it holds.
func (c cube) block(v int, step, k uint64) (uint64, bool) {
	if v == 0 {
		return min(step, k-1), true
	}
	turned := c.turnRight(v, int(step%uint64(c.dims)))
	if turned == 1 {
		return 0, false
	}
	newest := step + uint64(bits.TrailingZeros(uint(turned)))
	if newest < uint64(c.dims) {
		return 0, false // this vertex has nothing yet
	}
	return min(newest-uint64(c.dims), k-1), true
}

// partner is the vertex at the other end of the step's dimension.
func (c cube) partner(v int, step uint64) int { return v ^ 1<<(step%uint64(c.dims)) }

func (c cube) turnRight(v, by int) int {
	return (v>>by | v<<(c.dims-by)) & (1<<c.dims - 1)
}

// hypercube is the binomial pipeline for 2^l members, one on each vertex.
type hypercube struct{ cube }

func newHypercube(members int) hypercube { return hypercube{cube{ceilLog2(members)}} }

func (h hypercube) steps(k uint64) uint64 { return uint64(h.dims) + k - 1 }

func (h hypercube) outgoing(rank int, step, k uint64) (Transfer, bool) {
	block, ok := h.block(rank, step, k)
	return Transfer{Peer: h.partner(rank, step), Block: block}, ok
}

func (h hypercube) incoming(rank int, step, k uint64) (Transfer, bool) {
	if rank == 0 {
		return Transfer{}, false
	}
	source := h.partner(rank, step)
	block, ok := h.block(source, step, k)
	return Transfer{Peer: source, Block: block}, ok
}

func (h hypercube) links(rank int, yield func(int)) {
	for d := range h.dims {
		yield(rank ^ 1<<d)
	}
}
