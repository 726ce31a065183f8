package schedule

// single is the binomial pipeline with separate trees for messages of one block. The pipeline's order is that of
// ascending skips (or dimensions); the trees go by the largest skip first, so that relays are far from the root in
// rank. If neighbours are roots of groups that overlap, each with the next members in turn, other machines than theirs
// then relay the most. In groups of odd size, where that is still uneven, every other message goes by the smallest skip
// first (docs/decisions/018).
type single struct {
	rule
	trees []moves // that messages take in turn, each a tree
}

func newSingle(members int) rule {
	s := single{rule: pipeline(members)}
	skips := make([]int, ceilLog2(members))
	for d := range skips {
		skips[d] = 1 << d
	}
	if c, ok := s.rule.(*circulant); ok {
		copy(skips, c.skips)
	}
	order := make([]int, 0, len(skips))
	for i := len(skips) - 1; i >= 0; i-- {
		order = append(order, skips[i])
	}
	s.trees = append(s.trees, newTree(members, order))
	if members%2 == 1 {
		last := len(order) - 1
		s.trees = append(s.trees, newTree(members, append([]int{order[last]}, order[:last]...)))
	}
	return s
}

// of is the tree that a message of one block takes.
func (s single) of(message uint64) moves { return s.trees[message%uint64(len(s.trees))] }

// tree brings one block to all: in step i each rank that has the block sends it to the rank that is skips[i] higher, if
// that rank is to take it in this step. The sums of skips reach all ranks.
type tree struct {
	skips []int
	taken []int // by rank: in which it takes the block in; -1 for the root
}

func newTree(members int, skips []int) tree {
	t := tree{skips: skips, taken: make([]int, members)}
	for rank := range t.taken {
		t.taken[rank] = len(skips)
	}
	t.taken[0] = -1
	for step, skip := range skips {
		for rank := range members {
			if to := rank + skip; t.taken[rank] < step && to < members && t.taken[to] > step {
				t.taken[to] = step
			}
		}
	}
	return t
}

func (t tree) steps(uint64) uint64 { return uint64(len(t.skips)) }

func (t tree) outgoing(rank int, step, _ uint64) (Transfer, bool) {
	to := rank + t.skips[step]
	return Transfer{Peer: to}, to < len(t.taken) && t.taken[rank] < int(step) && t.taken[to] == int(step)
}

func (t tree) incoming(rank int, step, _ uint64) (Transfer, bool) {
	return Transfer{Peer: rank - t.skips[step]}, t.taken[rank] == int(step)
}
