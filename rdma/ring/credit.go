package ring

import "fmt"

// outflow is the sender's side of a channel: what may go, by which way, and its number. All counts run modulo 2^32.
type outflow struct {
	slots, receives uint32 // of the peer
	number          uint32 // of the next message
	written         uint32 // messages put in the ring
	slotsFreed      uint32 // of those, as the peer last reported
	sent            uint32 // numbered messages by send/receive
	recvsFreed      uint32 // of those, as the peer last reported
	set             uint16 // newest state of the peer's polling set: odd means that it polls us
	setTold         uint16 // of that, what we confirmed
}

// route is the way of a message.
type route uint8

const (
	routeNone route = iota // no credit
	routeRing
	routeSend
)

// route is the way that the next message takes: the ring while the peer polls it and a slot is free, else send/receive
// while a receive is free (section 4.4).
func (o *outflow) route() route {
	switch {
	case o.set%2 == 1 && o.written-o.slotsFreed < o.slots:
		return routeRing
	case o.sent-o.recvsFreed < o.receives:
		return routeSend
	}
	return routeNone
}

// fallsBack reports whether the next message would go by send/receive only because no slot is known to be free.
func (o *outflow) fallsBack() bool { return o.set%2 == 1 && o.route() == routeSend }

// take books the next message and returns its number and the slot or staged buffer it has.
func (o *outflow) take(r route) (number, at uint32) {
	number = o.number
	o.number++
	if r == routeRing {
		at = o.written % o.slots
		o.written++
		return number, at
	}
	at = o.sent % o.receives
	o.sent++
	return number, at
}

// heard takes what the peer says of its buffers and its polling set, in whatever order messages bring it.
func (o *outflow) heard(f *frame) error {
	if err := advance(&o.slotsFreed, f.slotsFreed, o.written, "slots"); err != nil {
		return err
	}
	if err := advance(&o.recvsFreed, f.recvsFreed, o.sent, "receives"); err != nil {
		return err
	}
	if int16(f.set-o.set) > 0 {
		o.set = f.set
	}
	return nil
}

// advance moves a count on to what the peer reported, if that is newer; it cannot pass what was used.
func advance(count *uint32, told, used uint32, what string) error {
	step := told - *count
	switch {
	case int32(step) <= 0:
	case step > used-*count:
		return fmt.Errorf("%w: freed %d %s, %d in use", ErrProtocol, step, what, used-*count)
	default:
		*count = told
	}
	return nil
}

// inflow is the receiver's side: what was freed, what the peer knows of it, and whether its ring is polled.
type inflow struct {
	slots, receives uint32
	slotsTaken      uint32 // messages that came by the ring
	slotsFreed      uint32
	slotsTold       uint32
	recvsTaken      uint32 // numbered messages by send/receive
	recvsFreed      uint32
	recvsTold       uint32
	set             uint16 // odd: in the polling set
	setTold         uint16
	setSaw          uint16 // what the peer confirmed
}

// took books a numbered message; a peer cannot use more buffers than were granted to it.
func (i *inflow) took(ring bool) error {
	if ring {
		i.slotsTaken++
	} else {
		i.recvsTaken++
	}
	if i.slotsTaken-i.slotsFreed > i.slots || i.recvsTaken-i.recvsFreed > i.receives {
		return fmt.Errorf("%w: more messages than buffers granted", ErrProtocol)
	}
	return nil
}

// stamp puts all that the peer should know into a message that is sent now.
func (i *inflow) stamp(f *frame, o *outflow) {
	f.slotsFreed, f.recvsFreed, f.set, f.setSaw = i.slotsFreed, i.recvsFreed, i.set, o.set
	i.slotsTold, i.recvsTold, i.setTold, o.setTold = i.slotsFreed, i.recvsFreed, i.set, o.set
}

// owes reports whether there is something that cannot wait for a message to ride in.
func (i *inflow) owes(o *outflow) bool {
	return i.slotsFreed-i.slotsTold >= max(i.slots/2, 1) || i.recvsFreed-i.recvsTold >= max(i.receives/2, 1) ||
		i.set != i.setTold || o.set != o.setTold && o.set%2 == 0
}

// canJoin reports whether the last leave is over.
func (i *inflow) canJoin() bool { return i.set%2 == 0 && i.setSaw == i.set }

// heard takes what the peer has confirmed; left is true when that ends a leave.
func (i *inflow) heard(f *frame) (left bool, err error) {
	step := int16(f.setSaw - i.setSaw)
	switch {
	case step <= 0:
		return false, nil
	case step > int16(i.set-i.setSaw):
		return false, fmt.Errorf("%w: confirms state %d of the polling set, which is in %d", ErrProtocol, f.setSaw, i.set)
	}
	i.setSaw = f.setSaw
	return i.set%2 == 0 && i.setSaw == i.set, nil
}
