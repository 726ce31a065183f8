package rdmc

import "fmt"

// Small messages: the technical report's special path for very small sends, which costs one send per edge and no round
// trip (section 3.1 there, section 4.6 of the DSN paper). They go on control queue pairs, from the root to each member
// if the group has at most starMembers, else along the tree of reports; the receiving ends of those edges post window
// more receives than control messages need, large enough for either. A small message carries its place in the order of
// the group's messages. The cumulative count of messages done says that the application has it, as for large ones.
//
// All small messages of a group are in one order, so each member keeps those under way in a ring, by their count. A
// place is free again when the message was given to the application and sent to all below; then its receive is posted
// again. Small messages wait for nothing but earlier messages, and large ones never wait for later small ones, so the
// argument of core.go stands.

// starMembers is the size of groups up to which the root sends small messages to each member itself: the DSN paper
// found that the direct way wins up to about 16.
const starMembers = 16

// smallState is the core's part for small messages.
type smallState struct {
	bytes   int   // bound of a message, 0 if the group has no small messages
	inOrder bool  // give a message to the application only when all before it have ended here
	down    []int // lanes that they go to
	ring    []smallEntry
	first   uint64 // count of the oldest message in the ring
	next    uint64 // count of the next to enter the ring
	assign  uint64 // root: number of the next message that may need a place in the ring
	hand    uint64 // number of the next message that may have to be given to the application
	granted uint64 // receives posted for the parent, in all
	told    uint64 // of these, how many the parent knows
}

// smallEntry is a small message under way.
type smallEntry struct {
	m     *message
	slot  int  // its buffer
	ready bool // the bytes are there
	taken bool // the application has it; always at the root
	sends int  // lanes that it still has to reach
}

// wire is the length of an entry's bytes with their trailer.
func (e *smallEntry) wire() int { return int(e.m.size) + trailerSize }

func (s *smallState) at(k uint64) *smallEntry { return &s.ring[k%uint64(len(s.ring))] }

func (s *smallState) full() bool { return s.next-s.first == uint64(len(s.ring)) }

// reportTree is the tree along which progress is reported, and small messages go.
func reportTree(tree []int, limits coreLimits) []int {
	if limits.smallBytes == 0 || len(tree) > starMembers {
		return tree
	}
	for rank := 1; rank < len(tree); rank++ {
		tree[rank] = 0
	}
	return tree
}

// openSmall prepares the ring. The lanes are there.
func (c *core) openSmall(tree []int) {
	s := &c.small
	s.assign, s.hand = 1, 1
	if c.limits.smallBytes == 0 {
		return
	}
	s.bytes, s.inOrder = c.limits.smallBytes, c.limits.smallInOrder
	s.ring = make([]smallEntry, max(c.limits.smallWindow, 1))
	for rank, parent := range tree {
		if parent == c.rank {
			s.down = append(s.down, c.laneOf[rank])
		}
	}
	if !c.isRoot() {
		s.granted = uint64(len(s.ring)) // the shell posts them with the receives for control messages
	}
}

// newSmall queues a small message at the root; its bytes will be loaded when it has a place in the ring.
func (c *core) newSmall(size int) {
	c.begin(c.smallMessage(c.next(), uint64(size)))
	c.pump()
}

// smallRoom is where the bytes of the next small message may be put before sendSmall, or -1 if all places are taken.
func (c *core) smallRoom() int {
	if c.small.full() || c.small.bytes == 0 || c.unassigned() || len(c.messages)+len(c.early) >= maxQueued {
		return -1
	}
	return int(c.small.next % uint64(len(c.small.ring)))
}

// unassigned reports whether a small message waits for its place, and moves the cursor on to it.
func (c *core) unassigned() bool {
	c.small.assign = max(c.small.assign, c.first)
	for m := c.message(c.small.assign); m != nil; m = c.message(c.small.assign) {
		if m.small {
			return true
		}
		c.small.assign++
	}
	return false
}

// sendSmall sends the small message whose bytes are at smallRoom.
func (c *core) sendSmall(size int) {
	m := c.smallMessage(c.next(), uint64(size))
	c.begin(m)
	c.enter(m, int(c.small.next%uint64(len(c.small.ring)))).ready = true
	c.small.assign = m.seq + 1
	c.pump()
}

// assignSmall gives places to waiting small messages and starts to load their bytes.
func (c *core) assignSmall() {
	for c.isRoot() && c.small.bytes > 0 && c.unassigned() && !c.small.full() {
		k := c.small.next
		e := c.enter(c.message(c.small.assign), int(k%uint64(len(c.small.ring))))
		c.small.assign++
		c.act(action{kind: actSmallLoad, slot: e.slot, seq: e.m.seq, block: k, length: e.wire()})
	}
}

// smallLoaded says that the bytes of a small message are in its place.
func (c *core) smallLoaded(k uint64, err error) {
	if err != nil {
		c.fail(ReasonSource, c.rank, []int{c.rank}, err)
		return
	}
	c.small.at(k).ready = true
	c.pump()
}

// singleBlock is the set that a small message moves.
var singleBlock = AllBlocks(1).Index()

// smallMessage makes a message; it is used again when it has ended.
func (c *core) smallMessage(seq, size uint64) *message {
	var m *message
	if n := len(c.spare); n > 0 {
		m = c.spare[n-1]
		c.spare = c.spare[:n-1]
	} else {
		m = new(message)
	}
	*m = message{seq: seq, size: size, blocks: singleBlock, small: true, sentAll: true}
	return m
}

// enter puts a message into the ring.
func (c *core) enter(m *message, slot int) *smallEntry {
	e := c.small.at(c.small.next)
	c.small.next++
	*e = smallEntry{m: m, slot: slot, taken: c.isRoot(), sends: len(c.small.down)}
	m.queued = len(c.small.down)
	return e
}

// smallReceived takes in a small message that came into a buffer; a non-nil err says that it failed its check.
func (c *core) smallReceived(lane, slot int, got trailer, err error) {
	l := &c.lanes[lane]
	l.heard = c.now
	if c.ended() {
		return
	}
	s := &c.small
	if err == nil && (s.bytes == 0 || lane != c.parent || s.full() || got.epoch != c.epoch || got.block != s.next ||
		got.size != uint64(got.length) ||
		got.size > uint64(s.bytes) || got.seq < c.next() || got.seq-c.next() >= maxQueued || c.early[got.seq] != nil) {
		err = fmt.Errorf("%w: unexpected small message %+v", ErrCorrupt, got)
	}
	if err != nil {
		c.fail(ReasonCorrupt, c.rank, []int{l.peer}, err)
		return
	}
	m := c.smallMessage(got.seq, got.size)
	m.received = 1
	c.enter(m, slot).ready = true
	m.place = s.next - 1
	c.enqueue(m)
	c.pump()
}

// handSmall gives small messages to the application in order of all messages' ends.
func (c *core) handSmall() {
	s := &c.small
	if c.isRoot() || !s.inOrder {
		return
	}
	s.hand = max(s.hand, c.first)
	for m := c.message(s.hand); m != nil && m.small; m = c.message(s.hand) {
		s.hand++
		c.hand(m)
	}
}

// hand gives a small message to the application.
func (c *core) hand(m *message) {
	e := c.small.at(m.place)
	c.act(action{kind: actSmallHand, slot: e.slot, seq: m.seq, block: m.place, length: e.wire(), size: m.size})
}

// smallTaken says that the application has a small message.
func (c *core) smallTaken(k uint64, err error) {
	if c.ended() {
		return
	}
	if err != nil {
		c.fail(ReasonSink, c.rank, []int{c.rank}, err)
		return
	}
	e := c.small.at(k)
	e.taken = true
	e.m.stored = 1
	c.storedAll(e.m)
	c.pump()
}

// relaySmall posts the sends for which there is credit.
func (c *core) relaySmall() {
	s := &c.small
	for _, lane := range s.down {
		l := &c.lanes[lane]
		for l.up && l.smallSent < s.next && l.smallSent < l.smallCredit && s.at(l.smallSent).ready && c.maySend() &&
			c.mySmallTurn(s.at(l.smallSent)) {
			e := s.at(l.smallSent)
			c.bucket.take(e.wire())
			e.m.queued--
			e.m.flight++
			c.act(action{kind: actSmallSend, lane: lane, slot: e.slot, block: l.smallSent, length: e.wire()})
			l.smallSent++
			l.dirty = l.dirty || l.mayAcknowledge()
		}
	}
}

// mySmallTurn is myTurn for a small message, which is sent once for each lane.
func (c *core) mySmallTurn(e *smallEntry) bool {
	return c.myTurn(e.wire(), shareCost(float64(len(c.small.down))))
}

// smallSent says that a neighbour's memory holds the small message.
func (c *core) smallSent(k uint64) {
	e := c.small.at(k)
	c.sendDone(e.wire())
	e.sends--
	e.m.flight--
	c.pump()
}

// freeSmall frees the places of messages that went everywhere, and grants their receives again.
func (c *core) freeSmall() {
	s := &c.small
	for s.first < s.next && s.at(s.first).taken && s.at(s.first).ready && s.at(s.first).sends == 0 {
		e := s.at(s.first)
		s.first++
		if !c.isRoot() {
			c.act(action{kind: actSmallPost, lane: c.parent, slot: e.slot})
			s.granted++
		}
		e.m = nil
	}
	if s.granted-s.told > uint64(len(s.ring)/2) {
		c.lanes[c.parent].dirty = true
	}
}
