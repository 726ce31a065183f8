package schedule

import "math/bits"

// sequential sends message-wise: all blocks to rank 1, then all to rank 2, and so on.
type sequential struct{ members int }

func (s sequential) steps(k uint64) uint64 { return k * uint64(s.members-1) }

func (s sequential) outgoing(rank int, step, k uint64) (Transfer, bool) {
	return Transfer{Peer: 1 + int(step/k), Block: step % k}, rank == 0
}

func (s sequential) incoming(rank int, step, k uint64) (Transfer, bool) {
	return Transfer{Peer: 0, Block: step % k}, rank != 0 && uint64(rank-1) == step/k
}

func (s sequential) sends(rank int, k uint64) Span {
	if rank != 0 {
		return Span{}
	}
	return Span{End: s.steps(k)}
}

func (s sequential) receives(rank int, k uint64) Span {
	if rank == 0 {
		return Span{}
	}
	return Span{First: uint64(rank-1) * k, End: uint64(rank) * k}
}

func (s sequential) links(rank int, yield func(int)) {
	if rank != 0 {
		yield(0)
		return
	}
	for peer := 1; peer < s.members; peer++ {
		yield(peer)
	}
}

// chain passes each block on from rank r to r+1 in the step after it came.
type chain struct{ members int }

func (c chain) steps(k uint64) uint64 { return k + uint64(c.members) - 2 }

func (c chain) outgoing(rank int, step, k uint64) (Transfer, bool) {
	block := step - uint64(rank) // wraps to a huge number before the first block
	return Transfer{Peer: rank + 1, Block: block}, rank+1 < c.members && block < k
}

func (c chain) incoming(rank int, step, k uint64) (Transfer, bool) {
	block := step - uint64(rank) + 1
	return Transfer{Peer: rank - 1, Block: block}, rank > 0 && block < k
}

func (c chain) links(rank int, yield func(int)) {
	if rank > 0 {
		yield(rank - 1)
	}
	if rank+1 < c.members {
		yield(rank + 1)
	}
}

// binomialTree doubles the holders of the whole message in each round of k steps: in round t rank
// r < 2^t sends to r + 2^t.
type binomialTree struct{ members int }

func (b binomialTree) steps(k uint64) uint64 { return k * uint64(ceilLog2(b.members)) }

func (b binomialTree) outgoing(rank int, step, k uint64) (Transfer, bool) {
	holders := 1 << (step / k)
	return Transfer{Peer: rank + holders, Block: step % k}, rank < holders && rank+holders < b.members
}

func (b binomialTree) incoming(rank int, step, k uint64) (Transfer, bool) {
	holders := 1 << (step / k)
	return Transfer{Peer: rank - holders, Block: step % k}, rank >= holders && rank < 2*holders
}

// sends are the rounds from that in which rank is a holder to that in which there is nobody left at its distance.
func (b binomialTree) sends(rank int, k uint64) Span {
	first, end := bits.Len(uint(rank)), bits.Len(uint(max(b.members-1-rank, 0)))
	return Span{First: uint64(first) * k, End: uint64(max(first, end)) * k}
}

func (b binomialTree) receives(rank int, k uint64) Span {
	if rank == 0 {
		return Span{}
	}
	round := uint64(bits.Len(uint(rank)) - 1)
	return Span{First: round * k, End: (round + 1) * k}
}

func (b binomialTree) links(rank int, yield func(int)) {
	if rank > 0 {
		yield(rank - 1<<(bits.Len(uint(rank))-1))
	}
	for holders := 1; rank+holders < b.members; holders *= 2 {
		if rank < holders {
			yield(rank + holders)
		}
	}
}
