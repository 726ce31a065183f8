package ring

import "fmt"

// arrival is a numbered message where it lies: in a slot of the ring, or in a receive.
type arrival struct {
	kind   kind
	ring   bool
	at     int // slot or receive
	size   int
	number uint32
}

// order puts the arrivals of both ways into the order of their numbers (section 4.5): the next message of the ring,
// and those of send/receive that are early.
type order struct {
	expected uint32
	window   uint32 // messages that can be under way
	ring     arrival
	hasRing  bool
	early    queue
}

func newOrder(slots, receives int) order {
	return order{window: uint32(slots + receives), early: newQueue(receives)}
}

// add takes an arrival. A ring has one at a time, send/receive as many as there are receives for numbered messages.
func (o *order) add(a arrival) error {
	if ahead := a.number - o.expected; ahead >= o.window {
		return fmt.Errorf("%w: message %d, expected %d to %d", ErrProtocol, a.number, o.expected, o.expected+o.window-1)
	}
	if a.ring {
		if o.hasRing {
			return fmt.Errorf("%w: two messages in one place", ErrProtocol)
		}
		o.ring, o.hasRing = a, true
		return nil
	}
	if !o.early.push(a) {
		return fmt.Errorf("%w: more messages than receives granted", ErrProtocol)
	}
	return nil
}

// next is the message that comes next, if it is there. Each way keeps its order: if both have one and neither is
// expected, the numbers are wrong.
func (o *order) next() (a arrival, ok bool, err error) {
	switch first, has := o.early.first(); {
	case has && first.number == o.expected:
		a = first
		o.early.pop()
	case o.hasRing && o.ring.number == o.expected:
		a = o.ring
		o.hasRing = false
	case has && o.hasRing:
		return arrival{}, false, fmt.Errorf("%w: messages %d and %d, expected %d", ErrProtocol, first.number, o.ring.number,
			o.expected)
	default:
		return arrival{}, false, nil
	}
	o.expected++
	return a, true, nil
}

// queue is a bounded list of arrivals, oldest first.
type queue struct {
	ring []arrival
	head int
	n    int
}

func newQueue(size int) queue { return queue{ring: make([]arrival, size)} }

func (q *queue) push(a arrival) bool {
	if q.n == len(q.ring) {
		return false
	}
	q.ring[(q.head+q.n)%len(q.ring)] = a
	q.n++
	return true
}

func (q *queue) first() (arrival, bool) {
	if q.n == 0 {
		return arrival{}, false
	}
	return q.ring[q.head], true
}

func (q *queue) pop() {
	q.head = (q.head + 1) % len(q.ring)
	q.n--
}
