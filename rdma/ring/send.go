package ring

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// sendsBeside is room in the send queue for what is neither in the ring nor staged.
const sendsBeside = 16

// sends is what a channel needs to post: buffers that answer to the peer's, and work requests that are filled once and
// used again (section 4.3). The channel's lock protects it.
type sends struct {
	region  rdma.Region // slots, staged buffers, one state message
	depth   int         // of the send queue
	posted  uint64      // requests so far; a request's ID is its count
	done    uint64      // of those, known to be complete
	inline  int         // most bytes of a request without a region
	twofold bool        // the head word goes in a write of its own

	slots       []request // slots
	heads       []request // their head words, if twofold
	staged      []request
	state       request
	stateSeq    uint64 // request of the last message without a number
	mustTell    bool   // a state is to be sent although nothing is owed
	atKeepalive uint64 // posted at the last keepalive

	batch    [2]rdma.SendWR // to be posted together
	batched  int            // of those
	recvWR   [1]rdma.RecvWR
	recvList [1]rdma.SGE
}

// request is a work request and the buffer that is its own.
type request struct {
	wr   rdma.SendWR
	list [1]rdma.SGE
	mem  []byte
	seq  uint64 // when it was last posted
}

// prepare makes the buffers for a peer.
func (s *sends) prepare(dev rdma.Device, a *address) error {
	n := a.slotBytes
	var err error
	if s.region, err = dev.AllocRegion((a.slots+a.receives+1)*n, 0); err != nil {
		return err
	}
	s.inline, s.twofold = dev.Limits().MaxInline, !a.ordered
	s.slots, s.heads, s.staged = make([]request, a.slots), make([]request, a.slots), make([]request, a.receives)
	for i := range s.slots {
		wr := rdma.SendWR{Op: rdma.OpWrite, RemoteKey: a.key, RemoteAddr: uint64(i * n)}
		s.heads[i].init(s.region, i*n, n, wr)
		s.slots[i].init(s.region, i*n, n, wr)
		if s.twofold {
			s.slots[i].list[0].Offset += wordBytes
			s.slots[i].wr.RemoteAddr += wordBytes
		}
	}
	for i := range s.staged {
		s.staged[i].init(s.region, (a.slots+i)*n, n, rdma.SendWR{Op: rdma.OpSend})
	}
	s.state.init(s.region, (a.slots+a.receives)*n, n, rdma.SendWR{Op: rdma.OpSend})
	return nil
}

func (r *request) init(region rdma.Region, offset, n int, wr rdma.SendWR) {
	r.wr, r.list[0], r.mem = wr, rdma.SGE{Region: region, Offset: offset}, region.Bytes()[offset:offset+n:offset+n]
}

// fill makes the request send n bytes from from on.
func (r *request) fill(from, n, inline int) {
	if n <= inline {
		r.wr.Inline, r.wr.List = r.mem[from:from+n], nil
		return
	}
	list := r.list[:]
	list[0].Length = n
	r.wr.Inline, r.wr.List = nil, list
}

// room reports whether n more requests fit in the send queue.
func (s *sends) room(n int) bool { return s.posted-s.done+uint64(s.batched+n) <= uint64(s.depth) }

// add makes the next post hand over a request too.
func (s *sends) add(wr rdma.SendWR) {
	s.batch[s.batched] = wr
	s.batched++
}

// signals reports whether message count of a way with n buffers is to be reported when it is complete: one in half of
// them.
func (s *sends) signals(count uint32, n int) bool {
	return count%uint32(max(min(n, s.depth/4)/2, 1)) == 0
}

// postLocked posts the batch.
func (c *Channel) postLocked() {
	s := &c.sends
	n := s.batched
	s.batched = 0
	for i := range n {
		s.batch[i].ID = s.posted + uint64(i) + 1
	}
	if err := c.qp.PostSend(s.batch[:n]...); err != nil {
		c.failLocked(fmt.Errorf("%w: %w", ErrBroken, err))
		return
	}
	s.posted += uint64(n)
}

// hasRoomLocked reports whether a numbered message can be posted now.
func (c *Channel) hasRoomLocked() bool {
	if !c.sends.room(2) {
		return false
	}
	switch c.out.route() {
	case routeRing:
		return true
	case routeSend:
		return c.sends.done >= c.sends.staged[c.out.sent%c.out.receives].seq
	}
	return false
}

// postNumberedLocked sends a message; false means that it has to wait for credit.
func (c *Channel) postNumberedLocked(k kind, p []byte) bool {
	if !c.hasRoomLocked() {
		return false
	}
	f := frame{kind: k, size: len(p)}
	c.in.stamp(&f, &c.out)
	r := c.out.route()
	var at uint32
	f.number, at = c.out.take(r)
	if r == routeRing {
		c.writeLocked(&f, at, p)
	} else {
		c.sendLocked(&f, at, p)
	}
	c.counts.BytesOut += uint64(len(p))
	return true
}

// postWantedLocked is postNumberedLocked for a caller. When the ring seems full it polls once, releasing the lock: only
// callers that poll see credit that has come, and a caller that only sends does not poll.
func (c *Channel) postWantedLocked(k kind, p []byte) bool {
	if c.e.cfg.Spin > 0 && c.out.fallsBack() {
		c.mu.Unlock()
		c.e.look()
		c.mu.Lock()
		if c.sendErrorLocked() != nil {
			return false // the caller's loop reports it
		}
	}
	return c.postNumberedLocked(k, p)
}

// writeLocked writes a message to slot at of the peer.
func (c *Channel) writeLocked(f *frame, at uint32, p []byte) {
	s := &c.sends
	r := &s.slots[at]
	copy(r.mem[headerBytes:], p)
	n := seal(r.mem, f)
	quiet := !s.signals(c.out.written, len(s.slots))
	c.counts.Written++
	c.counts.BytesWritten += uint64(len(p))
	if !s.twofold {
		r.fill(0, n, s.inline)
		r.wr.Unsignaled = quiet
		s.add(r.wr)
		c.postLocked()
		return
	}
	r.fill(wordBytes, n-wordBytes, s.inline)
	r.wr.Unsignaled = true
	h := &s.heads[at]
	h.fill(0, wordBytes, s.inline)
	h.wr.Unsignaled = quiet
	s.add(r.wr)
	s.add(h.wr)
	c.postLocked()
}

// sendLocked sends a message from staged buffer at.
func (c *Channel) sendLocked(f *frame, at uint32, p []byte) {
	s := &c.sends
	r := &s.staged[at]
	copy(r.mem[headerBytes:], p)
	f.encode(r.mem, flagPrimary)
	r.fill(0, headerBytes+f.size, s.inline)
	r.wr.Unsignaled = !s.signals(c.out.sent, len(s.staged)) && f.kind == kindData
	s.add(r.wr)
	c.counts.Sent++
	c.postLocked()
	r.seq = s.posted
}

// flushStateLocked posts what is owed.
func (c *Channel) flushStateLocked() {
	if c.joined && c.err == nil {
		c.tellOwedLocked()
	}
}

// tellOwedLocked sends what is owed and has no message to ride in, if the last such message is complete: so there is
// one under way at a time, whatever happens.
func (c *Channel) tellOwedLocked() {
	s := &c.sends
	if !c.in.owes(&c.out) && !s.mustTell {
		return
	}
	if s.stateSeq > s.done || !s.room(2) {
		c.e.late.Store(true)
		return
	}
	f := frame{kind: kindState}
	s.mustTell = false
	c.in.stamp(&f, &c.out)
	f.encode(s.state.mem, flagPrimary)
	s.state.fill(0, headerBytes, s.inline)
	s.add(s.state.wr)
	c.counts.States++
	c.postLocked()
	s.stateSeq = s.posted
}

// completed takes the completion of request number id, and so of all before.
func (c *Channel) completed(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id > c.sends.posted || id <= c.sends.done {
		return
	}
	c.sends.done = id
	c.flushStateLocked()
	c.events.Add(1)
	c.writers.wake()
}

// sendErrorLocked is why nothing can be sent.
func (c *Channel) sendErrorLocked() error {
	switch {
	case c.state == stateClosing:
		return fmt.Errorf("ring: send: %w", rdma.ErrClosed)
	case c.ended:
		return fmt.Errorf("ring: send: %w", ErrPeerClosed)
	case c.err != nil:
		return c.err
	case !c.joined:
		return fmt.Errorf("ring: send before Connect: %w", rdma.ErrState)
	}
	return nil
}

// maySendLocked reports whether a sender that waits should try again.
func (c *Channel) maySendLocked() bool { return c.sendErrorLocked() != nil || c.hasRoomLocked() }
