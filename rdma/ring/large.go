package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var (
	// ErrRefused is returned by SendFrom when the receiver did not want the message, and by Accept when the sender took
	// it back.
	ErrRefused = errors.New("ring: large message refused")
	// ErrAbandoned is the error of a channel whose receiver stopped waiting for a message it had granted memory for.
	ErrAbandoned = errors.New("ring: large message abandoned")
)

// Layout of the bytes, little endian.
const (
	offerBytes = 8  // size u64
	grantBytes = 24 // number of the offer u32, granted u32, key u64, address u64
	doneBytes  = 8  // number of the offer u32, written u32
)

// offer is our large message. One is under way at a time.
type offer struct {
	state     offerState
	number    uint32
	source    rdma.SGE
	key       rdma.RegionKey
	addr      uint64
	seq       uint64 // request of the write
	doneDue   bool
	doneFor   uint32
	doneWell  bool
	sizeBytes [offerBytes]byte
}

type offerState uint8

const (
	offerNone offerState = iota
	offerWaiting
	offerGranted
	offerWritten
	offerRefused
)

// encode writes the end of a large message, and returns its size.
func (o *offer) encode(b []byte) int {
	binary.LittleEndian.PutUint32(b, o.doneFor)
	binary.LittleEndian.PutUint32(b[4:], boolWord(o.doneWell))
	return doneBytes
}

// grant is the peer's large message.
type grant struct {
	state     grantState
	number    uint32
	size      int
	answerDue bool
	granted   bool
	key       rdma.RegionKey
	addr      uint64
}

type grantState uint8

const (
	grantNone    grantState = iota
	grantOffered            // Recv has reported it
	grantGiven
	grantDone
	grantTakenBack
)

// encode writes the answer to an offer, and returns its size.
func (g *grant) encode(b []byte) int {
	binary.LittleEndian.PutUint32(b, g.number)
	binary.LittleEndian.PutUint32(b[4:], boolWord(g.granted))
	binary.LittleEndian.PutUint64(b[8:], uint64(g.key))
	binary.LittleEndian.PutUint64(b[16:], g.addr)
	return grantBytes
}

func boolWord(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// SendFrom sends a message of any size from registered memory: up to MaxEager as Send does, a larger one without a
// copy, when the receiver has granted memory for it (rendezvous by RDMA write, section 3). It blocks until the memory
// may be used again, which for a large message means that all of it has arrived. ErrRefused says that the receiver did
// not want it. When ctx ends before memory is granted the message is taken back.
func (c *Channel) SendFrom(ctx context.Context, source rdma.SGE) error {
	mem := source.Region.Bytes()
	if source.Offset < 0 || source.Length < 0 || source.Offset > len(mem) || source.Length > len(mem)-source.Offset {
		return fmt.Errorf("ring: send %d bytes at %d of %d: %w", source.Length, source.Offset, len(mem), rdma.ErrBounds)
	}
	if limit := c.e.dev.Limits().MaxMessage; source.Length > limit {
		return fmt.Errorf("ring: send %d bytes, limit of %s %d: %w", source.Length, c.e.dev.Name(), limit, rdma.ErrRequest)
	}
	if source.Length <= c.remote.eager() {
		return c.Send(ctx, mem[source.Offset:source.Offset+source.Length])
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return fmt.Errorf("ring: send: %w", context.Cause(ctx))
	case <-c.closed:
		return fmt.Errorf("ring: send: %w", rdma.ErrClosed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offerLocked(ctx, source)
}

func (c *Channel) offerLocked(ctx context.Context, source rdma.SGE) error {
	o := &c.offered
	binary.LittleEndian.PutUint64(o.sizeBytes[:], uint64(source.Length))
	o.state, o.source = offerWaiting, source
	defer func() { o.state, o.source = offerNone, rdma.SGE{} }()
	if err := c.sendOfferLocked(ctx); err != nil {
		return err
	}
	if !c.awaitLocked(ctx.Done(), &c.larges, (*Channel).offerAnsweredLocked) {
		return fmt.Errorf("ring: send: %w", context.Cause(ctx))
	}
	if o.state == offerRefused {
		return fmt.Errorf("%d bytes: %w", source.Length, ErrRefused)
	}
	c.awaitLocked(nil, &c.larges, (*Channel).offerOverLocked) // the provider bounds it: the write completes, or fails
	if o.state != offerWritten || c.sends.done < o.seq {
		return c.err
	}
	return nil
}

// sendOfferLocked posts the offer when it may, and notes its number under the same lock.
func (c *Channel) sendOfferLocked(ctx context.Context) error {
	for {
		c.offered.number = c.out.number
		if err := c.sendErrorLocked(); err != nil {
			return err
		}
		if c.postNumberedLocked(kindOffer, c.offered.sizeBytes[:]) {
			return c.err
		}
		if !c.awaitLocked(ctx.Done(), &c.writers, (*Channel).maySendLocked) {
			return fmt.Errorf("ring: send: %w", context.Cause(ctx))
		}
	}
}

func (c *Channel) offerAnsweredLocked() bool {
	return c.offered.state != offerWaiting || c.sendErrorLocked() != nil
}

func (c *Channel) offerOverLocked() bool {
	return c.err != nil || c.offered.state == offerWritten && c.sends.done >= c.offered.seq
}

// writeGrantedLocked posts the write of a large message whose memory was granted: the end follows it in the queue, and
// mostly in the same post.
func (c *Channel) writeGrantedLocked() {
	o := &c.offered
	if o.state != offerGranted || o.doneDue || !c.sends.room(1) {
		return
	}
	r := &c.sends.large
	r.list[0] = o.source
	r.wr = rdma.SendWR{Op: rdma.OpWrite, RemoteKey: o.key, RemoteAddr: o.addr, List: r.list[:]}
	c.sends.add(r.wr)
	o.state, o.seq = offerWritten, c.sends.posted+uint64(c.sends.batched)
	o.doneDue, o.doneFor, o.doneWell = true, o.number, true
}

// answerLocked takes a message that is for the channel itself, by either way.
func (c *Channel) answerLocked(k kind, b []byte) error {
	switch {
	case k == kindState && len(b) == 0:
		return nil
	case k == kindGrant && len(b) == grantBytes:
		c.grantedLocked(b)
		return nil
	case k == kindDone && len(b) == doneBytes:
		return c.doneLocked(binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]) != 0)
	}
	return fmt.Errorf("%w: message of kind %d with %d bytes", ErrProtocol, k, len(b))
}

func (c *Channel) grantedLocked(b []byte) {
	o := &c.offered
	number, granted := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]) != 0
	switch {
	case o.state != offerWaiting || o.number != number: // taken back meanwhile
		if granted && !o.doneDue {
			o.doneDue, o.doneFor, o.doneWell = true, number, false
		}
	case granted:
		o.state, o.key, o.addr = offerGranted, rdma.RegionKey(binary.LittleEndian.Uint64(b[8:])),
			binary.LittleEndian.Uint64(b[16:])
	default:
		o.state = offerRefused
	}
	c.larges.wake()
}

func (c *Channel) doneLocked(number uint32, well bool) error {
	g := &c.incoming
	if g.state != grantGiven || g.number != number {
		return fmt.Errorf("%w: end of a large message that nobody waits for", ErrProtocol)
	}
	g.state = grantDone
	if !well {
		g.state = grantTakenBack
	}
	c.larges.wake()
	return nil
}

// takeOfferLocked consumes an offer.
func (c *Channel) takeOfferLocked(a arrival) (Message, bool, error) {
	var size uint64
	if a.size == offerBytes {
		size = binary.LittleEndian.Uint64(c.bytesLocked(a))
	}
	if size == 0 || size > uint64(c.e.cfg.LargeBytes) {
		c.failLocked(fmt.Errorf("%w: large message of %d bytes, limit %d", ErrProtocol, size, c.e.cfg.LargeBytes))
		return Message{}, false, c.err
	}
	c.incoming = grant{state: grantOffered, number: a.number, size: int(size)}
	c.consumeLocked(a)
	return Message{Size: int(size), Large: true}, true, nil
}

// Accept receives the large message that Recv reported last into a piece of a region with the right RemoteWrite. It
// blocks until all of it is there. When ctx is done before, the channel ends: the peer may still write there.
func (c *Channel) Accept(ctx context.Context, into rdma.SGE) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.grantLocked(into); err != nil {
		return err
	}
	if !c.awaitLocked(ctx.Done(), &c.larges, (*Channel).grantOverLocked) {
		c.failLocked(fmt.Errorf("%w: %w", ErrAbandoned, context.Cause(ctx)))
		return c.err
	}
	return c.endGrantLocked()
}

// grantLocked tells the sender where to write.
func (c *Channel) grantLocked(into rdma.SGE) error {
	g := &c.incoming
	switch {
	case g.state != grantOffered:
		return fmt.Errorf("ring: accept without a large message: %w", rdma.ErrState)
	case into.Length < g.size || into.Offset < 0 || into.Offset > len(into.Region.Bytes())-g.size:
		return fmt.Errorf("ring: accept %d bytes into %d: %w", g.size, into.Length, rdma.ErrBounds)
	case into.Region.Key() == 0:
		return fmt.Errorf("ring: accept into a region without the right to write: %w", rdma.ErrRequest)
	}
	g.state, g.answerDue, g.granted, g.key, g.addr = grantGiven, true, true, into.Region.Key(), uint64(into.Offset)
	c.flushStateLocked()
	return nil
}

// endGrantLocked returns how a large message ended; Recv may then report the next offer.
func (c *Channel) endGrantLocked() error {
	was := c.incoming.state
	c.incoming.state = grantNone
	c.readers.wake()
	switch was {
	case grantDone:
		return nil
	case grantTakenBack:
		return fmt.Errorf("taken back by the sender: %w", ErrRefused)
	}
	return c.recvErrorLocked()
}

func (c *Channel) grantOverLocked() bool {
	return c.incoming.state != grantGiven || c.recvErrorLocked() != nil
}

// Refuse answers the sender that the large message that Recv reported last is not wanted.
func (c *Channel) Refuse() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.incoming.state != grantOffered {
		return fmt.Errorf("ring: refuse without a large message: %w", rdma.ErrState)
	}
	c.incoming.state, c.incoming.answerDue, c.incoming.granted = grantNone, true, false
	c.readers.wake()
	c.flushStateLocked()
	return nil
}
