package core

// slotState is what a slot is used for.
type slotState uint8

const (
	slotFree    slotState = iota
	slotPosted            // a receive is posted for its block
	slotLoading           // its block is being read from the source or sink
	slotFull              // holds its block, checked
	slotEarly             // holds the first block of a message that cannot begin yet
)

// slot is one block buffer. A full slot is idle, and may be used for another block, when it is not being stored or sent
// and no prepared send has pinned it.
type slot struct {
	state   slotState
	m       *message
	pos     uint64 // position of the block in the message
	storing bool
	sending int
	pins    int
	early   Trailer // in slotEarly: what the block says of itself
	used    uint64  // slots.uses when it was last filled or sent
}

// block is the block that the slot is for.
func (s *slot) block() uint64 { return s.m.blocks.At(s.pos) }

// length is the length of the slot's block on the wire, in a group of a block size.
func (s *slot) length(blockSize int) int {
	return BlockLength(s.m.size, blockSize, s.block()) + TrailerSize
}

func (s *slot) idle() bool {
	return s.state == slotFull && !s.storing && s.sending == 0 && s.pins == 0
}

// slots are the block buffers of a member, and the cache of the blocks that came.
type slots struct {
	all    []slot
	uses   uint64 // counts fills and sends, to find the slot that is unused for longest
	pinned int    // slots with pins
}

func (t *slots) at(i int) *slot { return &t.all[i] }

// find is the slot of a block, or -1.
func (t *slots) find(m *message, pos uint64) int {
	for i := range t.all {
		if s := &t.all[i]; s.m == m && s.pos == pos && s.state != slotFree {
			return i
		}
	}
	return -1
}

// take gives a free slot, or the idle one that is unused for longest, or -1.
func (t *slots) take() int {
	oldest := -1
	for i := range t.all {
		s := &t.all[i]
		if s.state == slotFree {
			return i
		}
		if s.idle() && (oldest < 0 || s.used < t.all[oldest].used) {
			oldest = i
		}
	}
	return oldest
}

// use marks a slot as just used.
func (t *slots) use(s *slot) {
	t.uses++
	s.used = t.uses
}

func (t *slots) pin(s *slot) {
	if s.pins == 0 {
		t.pinned++
	}
	s.pins++
}

func (t *slots) unpin(s *slot) {
	s.pins--
	if s.pins == 0 {
		t.pinned--
	}
}

// drop forgets the cached blocks of a finished message.
func (t *slots) drop(m *message) {
	for i := range t.all {
		if s := &t.all[i]; s.m == m && s.idle() {
			*s = slot{}
		}
	}
}

// prepared is a send whose block is or will be in a slot that it has pinned.
type prepared struct{ slot, lane int }

// sendQueue is a bounded first-in first-out queue of prepared sends.
type sendQueue struct {
	entries   []prepared
	head, len int
}

func (q *sendQueue) full() bool      { return q.len == len(q.entries) }
func (q *sendQueue) front() prepared { return q.entries[q.head] }

func (q *sendQueue) push(p prepared) {
	q.entries[(q.head+q.len)%len(q.entries)] = p
	q.len++
}

func (q *sendQueue) pop() {
	q.head = (q.head + 1) % len(q.entries)
	q.len--
}
