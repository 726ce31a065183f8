package schedule

import "fmt"

// hybrid is the DSN paper's hybrid (section 4.3): one binomial pipeline among the leaders of the racks, and one in
// each rack with its leader as the root. Blocks are relayed one by one: the rack's pipeline takes up a block in the
// step after the one by which it has reached all leaders.
//
// A leader has two jobs and one link, so the two levels take turns: even steps belong to the leaders, odd ones to the
// racks. Step 2j is step j of the leaders' pipeline, and step 2j+1 is step j-d of each rack's pipeline, whose root
// then sends block j-d. d is the most steps that a block takes to all leaders after the step in which the root can
// first send it: log2 r if the number of racks r is a power of two above 2, 0 for two racks, and below 2ceil(log2 r)
// for other numbers.
//
// So it takes 2(k-1+ceil(log2 m)+d) steps, m being the size of the largest rack: a leader has to send each block
// about twice, and nothing can be faster by much if only leaders send between racks. What it saves is the links
// between the racks: each block crosses them r-1 times, where a pipeline that knows no racks has up to n-1 crossings.
type hybrid struct {
	leaders level   // of all racks, the root's first
	racks   []level // the leader first
	rackOf  []int   // by rank
	placeOf []int   // by rank: its place in its rack
	lag     uint64  // d
}

// level is a pipeline among some of the members.
type level struct {
	rule
	ranks []int // by place in the pipeline
}

// NewHybridPlan prepares the hybrid algorithm for a group whose rank r is in rack racks[r]. Racks may have any
// numbers and sizes; a rack's leader is its lowest rank.
func NewHybridPlan(racks []int) (*Plan, error) {
	members := len(racks)
	if members < 1 || members > MaxMembers {
		return nil, fmt.Errorf("%w: %d members, want 1 to %d", ErrInvalid, members, MaxMembers)
	}
	p := &Plan{algorithm: Hybrid, members: members, rule: alone{}}
	if members > 1 {
		p.rule = newHybrid(racks)
	}
	return p, nil
}

func newHybrid(racks []int) rule {
	h := &hybrid{rackOf: make([]int, len(racks)), placeOf: make([]int, len(racks))}
	index := make(map[int]int)
	for rank, rack := range racks {
		i, known := index[rack]
		if !known {
			i = len(h.racks)
			index[rack] = i
			h.racks = append(h.racks, level{})
			h.leaders.ranks = append(h.leaders.ranks, rank)
		}
		h.rackOf[rank], h.placeOf[rank] = i, len(h.racks[i].ranks)
		h.racks[i].ranks = append(h.racks[i].ranks, rank)
	}
	h.leaders.rule = pipeline(len(h.racks))
	for i := range h.racks {
		h.racks[i].rule = pipeline(len(h.racks[i].ranks))
	}
	if len(h.racks) == 1 || len(h.racks) == len(racks) {
		return pipeline(len(racks)) // one level only, and the ranks are its places
	}
	h.lag = delay(h.leaders.rule)
	return h
}

// delay is the most steps that a block takes to any member after the step with its own number.
func delay(r rule) uint64 {
	switch r := r.(type) {
	case hypercube:
		if r.dims > 1 {
			return uint64(r.dims)
		}
	case *circulant:
		most := 0
		for _, row := range r.rows[1:] {
			for round, block := range row {
				most = max(most, round-block)
			}
		}
		return uint64(most)
	}
	return 0
}

// pipeline is the binomial pipeline for a number of members.
func pipeline(members int) rule {
	switch {
	case members == 1:
		return alone{}
	case isPowerOfTwo(members):
		return newHypercube(members)
	}
	return newCirculant(members)
}

func (h *hybrid) steps(k uint64) uint64 {
	var longest uint64
	for i := range h.racks {
		longest = max(longest, h.racks[i].steps(k))
	}
	return 2 * (longest + h.lag)
}

// turn is the pipeline that the step belongs to for a rank, with the rank's place and the step in it; false if there
// is none.
func (h *hybrid) turn(rank int, step, k uint64) (l *level, place int, at uint64, ok bool) {
	rack, place := h.rackOf[rank], h.placeOf[rank]
	if step%2 == 0 {
		return &h.leaders, rack, step / 2, place == 0 && step/2 < h.leaders.steps(k)
	}
	l = &h.racks[rack]
	return l, place, step/2 - h.lag, step/2 >= h.lag && step/2-h.lag < l.steps(k)
}

func (h *hybrid) outgoing(rank int, step, k uint64) (Transfer, bool) {
	l, place, at, ok := h.turn(rank, step, k)
	if !ok {
		return Transfer{}, false
	}
	t, ok := l.outgoing(place, at, k)
	return l.named(t, ok)
}

func (h *hybrid) incoming(rank int, step, k uint64) (Transfer, bool) {
	l, place, at, ok := h.turn(rank, step, k)
	if !ok {
		return Transfer{}, false
	}
	t, ok := l.incoming(place, at, k)
	return l.named(t, ok)
}

// named is a transfer with the peer's place replaced by its rank.
func (l *level) named(t Transfer, ok bool) (Transfer, bool) {
	if ok {
		t.Peer = l.ranks[t.Peer]
	}
	return t, ok
}

func (h *hybrid) links(rank int, yield func(int)) {
	rack, place := h.rackOf[rank], h.placeOf[rank]
	if place == 0 {
		h.leaders.links(rack, func(other int) { yield(h.leaders.ranks[other]) })
	}
	l := &h.racks[rack]
	l.links(place, func(other int) { yield(l.ranks[other]) })
}
