package rdmc

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
	early   trailer // in slotEarly: what the block says of itself
	used    uint64  // core.uses when it was last filled or sent
}

func (s *slot) idle() bool {
	return s.state == slotFull && !s.storing && s.sending == 0 && s.pins == 0
}

// find is the slot of a block, or -1.
func (c *core) find(m *message, pos uint64) int {
	for i := range c.slots {
		if s := &c.slots[i]; s.m == m && s.pos == pos && s.state != slotFree {
			return i
		}
	}
	return -1
}

// takeSlot gives a free slot, or the idle one that is unused for longest, or -1.
func (c *core) takeSlot() int {
	oldest := -1
	for i := range c.slots {
		s := &c.slots[i]
		if s.state == slotFree {
			return i
		}
		if s.idle() && (oldest < 0 || s.used < c.slots[oldest].used) {
			oldest = i
		}
	}
	return oldest
}

// use marks a slot as just used.
func (c *core) use(s *slot) {
	c.uses++
	s.used = c.uses
}

func (c *core) pin(s *slot) {
	if s.pins == 0 {
		c.pinned++
	}
	s.pins++
}

func (c *core) unpin(s *slot) {
	s.pins--
	if s.pins == 0 {
		c.pinned--
	}
}

// freeSlots drops the cached blocks of a finished message.
func (c *core) freeSlots(m *message) {
	for i := range c.slots {
		if s := &c.slots[i]; s.m == m && s.idle() {
			*s = slot{}
		}
	}
}

// lengthOf is the length of a slot's block on the wire.
func (c *core) lengthOf(s *slot) int {
	return BlockLength(s.m.size, c.block, c.blockOf(s)) + trailerSize
}

// blockOf is the block of a slot.
func (c *core) blockOf(s *slot) uint64 { return s.m.blocks.At(s.pos) }

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
