package core

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
)

// Small messages: the technical report's special path for very small sends, which costs one send per edge and no round
// trip (section 3.1 there, section 4.6 of the DSN paper). They go on control queue pairs, from the root to each member
// if the group has at most starMembers, else along the tree of reports; the receiving ends of those edges post window
// more receives than control messages need, large enough for either. A small message carries its place in the order of
// the group's messages. The cumulative count of messages done says that the application has it, as for large ones.
//
// All small messages of a group are in one order, so each member keeps those under way in a ring, by their count. A
// place is free again when the message was given to the application and sent to all below; then its receive is posted
// again. Small messages wait for nothing but earlier messages, and large ones never wait for later small ones, so the
// argument of member.go stands.

// StarMembers is the size of groups up to which the root sends small messages to each member itself: the DSN paper
// found that the direct way wins up to about 16.
const StarMembers = 16

// SmallMessages is a member's part for small messages. It is a part of the member, which shares its lock and its
// actions. Its methods may be called in any group; one without small messages has no room for them and refuses them.
type SmallMessages struct {
	member  *Member
	bytes   int   // bound of a message, 0 if the group has no small messages
	inOrder bool  // give a message to the application only when all before it have ended here
	down    []int // lanes that they go to
	ring    []smallEntry
	first   uint64     // count of the oldest message in the ring
	next    uint64     // count of the next to enter the ring
	assign  uint64     // root: number of the next message that may need a place in the ring
	hand    uint64     // number of the next message that may have to be given to the application
	granted uint64     // receives posted for the parent, in all
	told    uint64     // of these, how many the parent knows
	spare   []*message // ended messages, to be used again
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
func (e *smallEntry) wire() int { return int(e.m.size) + TrailerSize }

func (s *SmallMessages) at(k uint64) *smallEntry { return &s.ring[k%uint64(len(s.ring))] }

func (s *SmallMessages) full() bool { return s.next-s.first == uint64(len(s.ring)) }

// reportTree is the tree along which progress is reported, and small messages go.
func reportTree(tree []int, limits Limits) []int {
	if limits.SmallBytes == 0 || len(tree) > StarMembers {
		return tree
	}
	for rank := 1; rank < len(tree); rank++ {
		tree[rank] = 0
	}
	return tree
}

// Small is the member's part for small messages.
func (c *Member) Small() *SmallMessages { return &c.small }

// open prepares the ring. The lanes are there.
func (s *SmallMessages) open(c *Member, tree []int) {
	s.member = c
	s.assign, s.hand = 1, 1
	if c.limits.SmallBytes == 0 {
		return
	}
	s.bytes, s.inOrder = c.limits.SmallBytes, c.limits.SmallInOrder
	s.ring = make([]smallEntry, max(c.limits.SmallWindow, 1))
	for rank, parent := range tree {
		if parent == c.rank {
			s.down = append(s.down, c.lanes.of[rank])
		}
	}
	if !c.isRoot() {
		s.granted = uint64(len(s.ring)) // the shell posts them with the receives for control messages
	}
}

// Queue queues a small message of size bytes at the root; its bytes will be loaded (ActSmallLoad) when it has a place
// in the ring.
func (s *SmallMessages) Queue(size int) {
	c := s.member
	c.begin(s.message(c.messages.Next(), uint64(size)))
	c.Pump()
}

// Room is the slot of the ring where the bytes of the next small message may be put before Send, or -1 if all are
// taken.
func (s *SmallMessages) Room() int {
	if s.full() || s.bytes == 0 || s.unassigned() || s.member.messages.Queued() >= MaxQueued {
		return -1
	}
	return int(s.next % uint64(len(s.ring)))
}

// unassigned reports whether a small message waits for its place, and moves the cursor on to it.
func (s *SmallMessages) unassigned() bool {
	c := s.member
	s.assign = max(s.assign, c.messages.first)
	for m := c.messages.at(s.assign); m != nil; m = c.messages.at(s.assign) {
		if m.small {
			return true
		}
		s.assign++
	}
	return false
}

// Count is the count of the next small message to be sent, which its trailer has in the place of the block.
func (s *SmallMessages) Count() uint64 { return s.next }

// Send sends the small message of size bytes that is at Room, sealed with its trailer.
func (s *SmallMessages) Send(size int) {
	c := s.member
	m := s.message(c.messages.Next(), uint64(size))
	c.begin(m)
	s.enter(m, int(s.next%uint64(len(s.ring)))).ready = true
	s.assign = m.seq + 1
	c.Pump()
}

// assignPlaces gives places to waiting small messages and starts to load their bytes.
func (s *SmallMessages) assignPlaces() {
	c := s.member
	for c.isRoot() && s.bytes > 0 && s.unassigned() && !s.full() {
		k := s.next
		e := s.enter(c.messages.at(s.assign), int(k%uint64(len(s.ring))))
		s.assign++
		c.act(Action{Kind: ActSmallLoad, Slot: e.slot, Seq: e.m.seq, Block: k, Length: e.wire()})
	}
}

// Loaded says that the bytes of the small message with count k are in its slot, sealed; or that the Source failed.
func (s *SmallMessages) Loaded(k uint64, err error) {
	c := s.member
	if err != nil {
		c.Fail(ReasonSource, c.rank, []int{c.rank}, err)
		return
	}
	s.at(k).ready = true
	c.Pump()
}

// message makes a message; it is used again when it has ended.
func (s *SmallMessages) message(seq, size uint64) *message {
	var m *message
	if n := len(s.spare); n > 0 {
		m = s.spare[n-1]
		s.spare = s.spare[:n-1]
	} else {
		m = new(message)
	}
	*m = message{seq: seq, size: size, blocks: singleBlock, small: true, sentAll: true}
	return m
}

// singleBlock is the set that a small message moves.
var singleBlock = AllBlocks(1).Index()

// enter puts a message into the ring.
func (s *SmallMessages) enter(m *message, slot int) *smallEntry {
	e := s.at(s.next)
	s.next++
	*e = smallEntry{m: m, slot: slot, taken: s.member.isRoot(), sends: len(s.down)}
	m.queued = len(s.down)
	return e
}

// Received takes in a small message that came into a slot; a non-nil err says that it failed its check, and fails the
// group.
func (s *SmallMessages) Received(lane, slot int, got Trailer, err error) {
	c := s.member
	l := &c.lanes.all[lane]
	l.heard = c.now
	if c.Ended() {
		return
	}
	if err == nil && (s.bytes == 0 || lane != c.parent || s.full() || got.Epoch != c.epoch || got.Block != s.next ||
		got.Size != uint64(got.Length) || got.Size > uint64(s.bytes) || got.Seq < c.messages.Next() ||
		got.Seq-c.messages.Next() >= MaxQueued || c.messages.early[got.Seq] != nil) {
		err = fmt.Errorf("%w: unexpected small message %+v", ErrCorrupt, got)
	}
	if err != nil {
		c.Fail(ReasonCorrupt, c.rank, []int{l.peer}, err)
		return
	}
	m := s.message(got.Seq, got.Size)
	m.received = 1
	s.enter(m, slot).ready = true
	m.place = s.next - 1
	c.enqueue(m)
	c.Pump()
}

// handOver gives small messages to the application in order of all messages' ends.
func (s *SmallMessages) handOver() {
	c := s.member
	if c.isRoot() || !s.inOrder {
		return
	}
	s.hand = max(s.hand, c.messages.first)
	for m := c.messages.at(s.hand); m != nil && m.small; m = c.messages.at(s.hand) {
		s.hand++
		s.give(m)
	}
}

// give gives a small message to the application.
func (s *SmallMessages) give(m *message) {
	e := s.at(m.place)
	s.member.act(Action{Kind: ActSmallHand, Slot: e.slot, Seq: m.seq, Block: m.place, Length: e.wire(), Size: m.size})
}

// Taken says that the application has the small message with count k, or has failed.
func (s *SmallMessages) Taken(k uint64, err error) {
	c := s.member
	if c.Ended() {
		return
	}
	if err != nil {
		c.Fail(ReasonSink, c.rank, []int{c.rank}, err)
		return
	}
	e := s.at(k)
	e.taken = true
	e.m.stored = 1
	c.storedAll(e.m)
	c.Pump()
}

// relay posts the sends for which there is credit.
func (s *SmallMessages) relay() {
	c := s.member
	for _, lane := range s.down {
		l := &c.lanes.all[lane]
		for l.up && l.smallSent < s.next && l.smallSent < l.smallCredit && s.at(l.smallSent).ready && c.turn.isOpen(c.now) &&
			s.myTurn(s.at(l.smallSent)) {
			e := s.at(l.smallSent)
			c.turn.bucket.take(e.wire())
			e.m.queued--
			e.m.flight++
			c.act(Action{Kind: ActSmallSend, Lane: lane, Slot: e.slot, Block: l.smallSent, Length: e.wire()})
			l.smallSent++
			l.dirty = l.dirty || l.mayAcknowledge()
		}
	}
}

// myTurn asks for the turn of a small message, which is sent once for each lane.
func (s *SmallMessages) myTurn(e *smallEntry) bool {
	return s.member.turn.ask(e.wire(), share.Cost(float64(len(s.down))), s.member.now)
}

// Sent says that a neighbour's memory holds the small message with count k.
func (s *SmallMessages) Sent(k uint64) {
	e := s.at(k)
	s.member.turn.done(e.wire(), s.member.now)
	e.sends--
	e.m.flight--
	s.member.Pump()
}

// free frees the places of messages that went everywhere, and grants their receives again.
func (s *SmallMessages) free() {
	c := s.member
	for s.first < s.next && s.at(s.first).taken && s.at(s.first).ready && s.at(s.first).sends == 0 {
		e := s.at(s.first)
		s.first++
		if !c.isRoot() {
			c.act(Action{Kind: ActSmallPost, Lane: c.parent, Slot: e.slot})
			s.granted++
		}
		e.m = nil
	}
	if s.granted-s.told > uint64(len(s.ring)/2) {
		c.lanes.all[c.parent].dirty = true
	}
}
