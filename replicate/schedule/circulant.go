package schedule

// circulant is a pipeline for any group size on a circulant graph, after Jesper Larsson Träff: in round c of a phase of
// q = ceil(log2 n) steps every rank r sends to r+skip[c] and receives from r-skip[c] (mod n). In each phase a rank
// takes in exactly one block that is new in this phase, at its base, and q-1 blocks of earlier phases; its row of the
// receive table says which.
type circulant struct {
	members, q int
	skips      []int   // q+1 of them; the last is the group size
	rows       [][]int // by rank and round: the block received, relative to the running phase; row 0 is empty
}

func newCirculant(members int) *circulant {
	c := &circulant{members: members, q: ceilLog2(members)}
	c.skips = make([]int, c.q+1)
	c.skips[c.q] = members
	for i := c.q - 1; i >= 0; i-- {
		c.skips[i] = (c.skips[i+1] + 1) / 2
	}
	c.rows = make([][]int, members)
	for rank := 1; rank < members; rank++ {
		c.rows[rank] = receiveRow(c.skips, rank)
	}
	return c
}

func (c *circulant) steps(k uint64) uint64 { return k - 1 + uint64(c.q) }

// place finds the phase and round of a step. Phases end flush with the last step, so the first phase
// has empty leading rounds; lead is how many.
func (c *circulant) place(step, k uint64) (phase uint64, round int, lead uint64) {
	q := uint64(c.q)
	lead = (q - (k-1)%q) % q
	return (step + lead) / q, int((step + lead) % q), lead
}

// received is the block that rank takes in during the step, or false if none.
func (c *circulant) received(rank int, step, k uint64) (uint64, bool) {
	if rank == 0 {
		return 0, false
	}
	phase, round, lead := c.place(step, k)
	block := int64(phase)*int64(c.q) + int64(c.rows[rank][round]) - int64(lead)
	if block < 0 {
		return 0, false
	}
	return min(uint64(block), k-1), true
}

func (c *circulant) outgoing(rank int, step, k uint64) (Transfer, bool) {
	_, round, _ := c.place(step, k)
	target := (rank + c.skips[round]) % c.members
	block, ok := c.received(target, step, k)
	return Transfer{Peer: target, Block: block}, ok
}

func (c *circulant) incoming(rank int, step, k uint64) (Transfer, bool) {
	_, round, _ := c.place(step, k)
	block, ok := c.received(rank, step, k)
	return Transfer{Peer: (rank - c.skips[round] + c.members) % c.members, Block: block}, ok
}

func (c *circulant) links(rank int, yield func(int)) {
	for _, skip := range c.skips[:c.q] {
		if target := (rank + skip) % c.members; target != 0 {
			yield(target)
		}
		if rank != 0 {
			yield((rank - skip + c.members) % c.members)
		}
	}
}

// receiveRow computes one rank's row of the receive table in O(log n) expected steps of search.
//
// A block reaches rank r along a path from the root whose skips sum to r modulo n. The base is the last
// skip of r's greedy decomposition: the round in which r takes in a block of the running phase. For the other
// rounds a depth-first walk looks for the paths with sums just below n+r, largest skips first, each
// round taking the next free skip.
func receiveRow(skips []int, rank int) []int {
	q := len(skips) - 1
	base := lastSkip(skips, rank)
	w := newRowWalk(skips, skips[q]+rank)
	w.take(base)
	w.descend(0, 2*skips[q], q)
	row := make([]int, q)
	for round, skip := range w.found {
		if skip == q {
			row[round] = base
		} else {
			row[round] = skip - q
		}
	}
	return row
}

// lastSkip decomposes rank greedily into skips, the largest first, and returns the index of the last.
func lastSkip(skips []int, rank int) int {
	sum := 0
	for i := len(skips) - 2; i >= 0; i-- {
		if sum+skips[i] <= rank {
			sum += skips[i]
		}
		if sum == rank {
			return i
		}
	}
	panic("schedule: the skips do not reach a rank") // tidy: skips are made so that their sums reach each rank
}

// rowWalk is the state of the search: the skips not yet given to a round, linked from the largest down.
type rowWalk struct {
	skips []int
	goal  int
	next  []int // by skip index: the next smaller free one, -1 at the end
	prev  []int // by skip index + 1: the next larger free one
	found []int // by round: index of the skip that its path ends with
}

func newRowWalk(skips []int, goal int) *rowWalk {
	w := &rowWalk{skips: skips, goal: goal, next: make([]int, len(skips)), prev: make([]int, len(skips)+1)}
	for i := range skips {
		w.next[i] = i - 1
	}
	for i := range w.prev {
		w.prev[i] = i
	}
	return w
}

// take removes a skip from the free ones.
func (w *rowWalk) take(i int) {
	larger, smaller := w.prev[i+1], w.next[i]
	if larger < len(w.next) {
		w.next[larger] = smaller
	}
	w.prev[smaller+1] = larger
}

func (w *rowWalk) full() bool { return len(w.found) == len(w.skips)-1 }

// descend extends a path with sum at by free skips from index i down; sums stay below limit.
func (w *rowWalk) descend(at, limit, i int) {
	for ; i >= 0 && !w.full(); i = w.next[i] {
		sum := at + w.skips[i]
		if sum > w.goal-w.skips[len(w.found)] || sum >= limit {
			continue
		}
		if sum <= w.goal-w.skips[len(w.found)+1] {
			w.descend(sum, limit, i) // longer paths first
		}
		if w.full() || at > w.goal-w.skips[len(w.found)+1] {
			return
		}
		limit = sum
		w.found = append(w.found, i)
		w.take(i)
	}
}
