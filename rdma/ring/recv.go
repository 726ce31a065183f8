package ring

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// takeRing takes what has arrived in the ring. The caller has e.poll.
func (c *Channel) takeRing() {
	for !c.order.hasRing { // else the next slot has to wait for a message by send/receive
		w, ok, err := arrived(c.nextSlot)
		if err != nil {
			c.fail(err)
			return
		}
		if !ok {
			return
		}
		f, err := decode(c.nextSlot, w)
		if err != nil {
			c.fail(err)
			return
		}
		clearHead(c.nextSlot)
		at := c.next
		c.next = (c.next + 1) % c.local.slots
		c.nextSlot = c.slot(c.next)
		c.e.policy.heard(c.id)
		if !c.heard(&f, arrival{kind: f.kind, ring: true, at: at, size: f.size, number: f.number}) {
			return
		}
	}
}

// heard takes a message of the ring; false ends the channel.
func (c *Channel) heard(f *frame, a arrival) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil && !c.draining() {
		return false
	}
	left, err := c.hearLocked(f, a)
	if err == nil && left {
		err = fmt.Errorf("%w: leaves by the ring that it confirms to have left", ErrProtocol)
	}
	if err != nil {
		c.failLocked(err)
	}
	return err == nil
}

// draining reports whether the connection is lost, but not all that came before has been looked at.
func (c *Channel) draining() bool { return c.receives > 0 }

// received takes a message from receive i. It reports whether the peer has confirmed that it left the ring.
func (c *Channel) received(i, n int) (left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receives--
	size := c.local.slotBytes
	b := c.recvs.Bytes()[i*size : (i+1)*size]
	f, err := decodeReceived(b, n)
	if err == nil {
		left, err = c.hearLocked(&f, arrival{kind: f.kind, at: i, size: f.size, number: f.number})
	}
	switch {
	case err != nil:
	case f.kind == kindState && f.size == 0:
		c.repostOrFailLocked(i)
		c.flushStateLocked()
	case !f.kind.numbered():
		err = fmt.Errorf("%w: message of kind %d with %d bytes", ErrProtocol, f.kind, f.size)
	}
	if err != nil {
		c.failLocked(err)
	}
	return left
}

func (c *Channel) repostOrFailLocked(i int) {
	if c.err != nil {
		return
	}
	if err := c.repostLocked(i); err != nil {
		c.failLocked(fmt.Errorf("%w: %w", ErrBroken, err))
	}
}

// hearLocked takes what a message says of buffers and polling, and puts it in order.
func (c *Channel) hearLocked(f *frame, a arrival) (left bool, err error) {
	if err := c.out.heard(f); err != nil {
		return false, err
	}
	if left, err = c.in.heard(f); err != nil {
		return false, err
	}
	if f.kind.numbered() {
		if err := c.orderLocked(a); err != nil {
			return false, err
		}
	} else if a.ring {
		return false, fmt.Errorf("%w: message without a number in the ring", ErrProtocol)
	}
	c.flushStateLocked()
	c.events.Add(1)
	c.writers.wake()
	return left, nil
}

// orderLocked books a numbered message, and delivers what it makes complete.
func (c *Channel) orderLocked(a arrival) error {
	if err := c.in.took(a.ring); err != nil {
		return err
	}
	if err := c.order.add(a); err != nil {
		return err
	}
	return c.deliverLocked()
}

// deliverLocked moves what is in order to the inbox.
func (c *Channel) deliverLocked() error {
	for {
		a, ok, err := c.order.next()
		if err != nil || !ok {
			return err
		}
		if c.ended {
			return fmt.Errorf("%w: message after the end", ErrProtocol)
		}
		if !c.inbox.push(a) {
			return fmt.Errorf("%w: more messages than buffers granted", ErrProtocol)
		}
		if a.kind == kindEnd {
			c.ended = true
		}
		c.readers.wake()
	}
}

// lost takes the completion of a request that failed: the connection is gone. What came before is kept.
func (c *Channel) lost(done *rdma.Completion) {
	c.takeRing()
	c.mu.Lock()
	defer c.mu.Unlock()
	if done.Op.IsReceive() {
		c.receives--
	}
	if done.Status != rdma.StatusFlushed || c.err == nil {
		c.failLocked(fmt.Errorf("%w: %v: %v", ErrBroken, done.Op, done.Status))
	}
	c.wakeLocked()
}

// mayJoin reports whether the channel may be polled from now on.
func (c *Channel) mayJoin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.joined && c.err == nil && c.in.canJoin()
}

// changeSet tells the peer that its ring is polled from now on, or will not be.
func (c *Channel) changeSet() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in.set++
	if c.in.set%2 == 1 {
		c.counts.Joins++
	} else {
		c.counts.Leaves++
	}
	c.flushStateLocked()
}

// recvErrorLocked is why no more will come.
func (c *Channel) recvErrorLocked() error {
	switch {
	case c.state == stateClosing:
		return fmt.Errorf("ring: receive: %w", rdma.ErrClosed)
	case c.err != nil && !c.draining():
		return c.err
	}
	return nil
}

// mayRecvLocked reports whether a receiver that waits should try again.
func (c *Channel) mayRecvLocked() bool {
	return c.inbox.n > 0 || c.recvErrorLocked() != nil
}

// bytesLocked are the bytes of an arrival, where they lie.
func (c *Channel) bytesLocked(a arrival) []byte {
	mem := c.recvs
	if a.ring {
		mem = c.ring
	}
	at := a.at*c.local.slotBytes + headerBytes
	return mem.Bytes()[at : at+a.size]
}

// consumeLocked gives the buffer of the first message back.
func (c *Channel) consumeLocked(a arrival) {
	c.read = 0
	c.inbox.pop()
	if a.ring {
		c.in.slotsFreed++
	} else {
		c.repostOrFailLocked(a.at)
		c.in.recvsFreed++
	}
	c.flushStateLocked()
}
