package ring

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var (
	// ErrPeerClosed is wrapped by the errors of a Write to a peer that has closed the channel; Read says io.EOF.
	ErrPeerClosed = errors.New("ring: closed by the peer")
	// ErrBroken is wrapped by the errors of a channel whose connection failed.
	ErrBroken = errors.New("ring: connection lost")
)

// Channel is a connection that keeps messages whole and in order. NewConn makes a stream of it.
type Channel struct {
	e      *Endpoint
	id     int // in e.channels
	qp     rdma.QueuePair
	local  address
	remote address       // set by Connect
	ring   rdma.Region   // slots that the peer writes
	recvs  rdma.Region   // receives
	events atomic.Uint32 // counts what a waiting caller should look at
	closed chan struct{} // closed when Close is done

	// Protected by e.poll.
	gone     bool
	next     int    // slot of the next message
	nextSlot []byte // its memory

	mu       sync.Mutex // protects all below
	state    channelState
	joined   bool  // Connect has succeeded
	err      error // why the channel is in error
	ended    bool  // the peer's end has arrived
	receives int   // posted
	readers  waitPoint
	writers  waitPoint
	out      outflow
	in       inflow
	order    order // changed only with e.poll, too
	inbox    queue // in order, to be read
	read     int   // bytes of the first that Conn has read
	sends    sends
	counts   counts
}

// channelState is where a channel is in its life; it only ever grows.
type channelState uint8

const (
	stateNew channelState = iota
	stateConnecting
	stateReady
	stateClosing
)

// counts says what a channel has done so far, for tests and figures.
type counts struct {
	Written, Sent, States  uint64 // messages by the ring, by send/receive, and without a number
	Joins, Leaves          uint64 // of our polling set
	BytesWritten, BytesOut uint64 // of eager messages by the ring, and by either way
}

// waitPoint is where callers wait for a change of a channel.
type waitPoint struct {
	token   chan struct{} // capacity 1: look again
	waiting int           // protected by the channel's lock
}

func newWaitPoint() waitPoint { return waitPoint{token: make(chan struct{}, 1)} }

// wake makes the waiting callers look again.
func (p *waitPoint) wake() {
	if p.waiting > 0 {
		signal(p.token)
	}
}

// NewChannel makes a channel; exchange the addresses, then call Connect on both sides.
func (e *Endpoint) NewChannel() (*Channel, error) {
	c := &Channel{e: e, closed: make(chan struct{}),
		local: address{slots: e.cfg.Slots, receives: e.cfg.Receives, slotBytes: e.cfg.slotBytes(),
			ordered: e.dev.OrderedWrites()},
		readers: newWaitPoint(), writers: newWaitPoint(),
		in:    inflow{slots: uint32(e.cfg.Slots), receives: uint32(e.cfg.Receives)},
		order: newOrder(e.cfg.Slots, e.cfg.Receives), inbox: newQueue(e.cfg.Slots + e.cfg.Receives)}
	err := c.open()
	if err == nil {
		err = e.admit(c)
	}
	if err != nil {
		e.ignore(c)
		c.free()
		return nil, fmt.Errorf("ring: new channel on %s: %w", e.dev.Name(), err)
	}
	return c, nil
}

// open makes the memory and the queue pair, and posts the receives.
func (c *Channel) open() error {
	d, a := c.e.dev, &c.local
	var err error
	if c.ring, err = d.AllocRegion(a.slots*a.slotBytes, rdma.RemoteWrite); err != nil {
		return err
	}
	n := a.receives + stateReceives
	if c.recvs, err = d.AllocRegion(n*a.slotBytes, 0); err != nil {
		return err
	}
	a.key = c.ring.Key()
	c.nextSlot = c.slot(0)
	c.sends.depth = min(4*a.slots+2*a.receives+sendsBeside, d.Limits().MaxQueueDepth)
	c.qp, err = d.NewQP(rdma.QPConfig{SendCQ: c.e.cq, RecvCQ: c.e.cq, SendDepth: c.sends.depth, RecvDepth: n, User: c})
	if err != nil {
		return err
	}
	a.pair = c.qp.Address()
	for i := range n {
		if err := c.repostLocked(i); err != nil {
			return err
		}
	}
	return nil
}

// free gives back what open and Connect made.
func (c *Channel) free() {
	if c.qp != nil {
		_ = c.qp.Close()
	}
	for _, r := range []rdma.Region{c.ring, c.recvs, c.sends.region} {
		if r != nil {
			_ = r.Close()
		}
	}
}

// slot is the memory of a slot of our ring.
func (c *Channel) slot(i int) []byte {
	n := c.local.slotBytes
	return c.ring.Bytes()[i*n : (i+1)*n : (i+1)*n]
}

// repostLocked posts receive i; before the channel is known to others no lock is needed.
func (c *Channel) repostLocked(i int) error {
	n := c.local.slotBytes
	c.sends.recvList[0] = rdma.SGE{Region: c.recvs, Offset: i * n, Length: n}
	c.sends.recvWR[0] = rdma.RecvWR{ID: uint64(i), List: c.sends.recvList[:]}
	if err := c.qp.PostRecv(c.sends.recvWR[:]...); err != nil {
		return err
	}
	c.receives++
	return nil
}

// Address is what the peer's Connect needs. It holds secrets: carry it where nobody else can read it.
func (c *Channel) Address() []byte { return c.local.encode() }

// Connect joins the channel with the peer's whose Address is remote. It blocks until messages can be sent, or ctx is
// done; then the channel is in error.
func (c *Channel) Connect(ctx context.Context, remote []byte) error {
	err := c.prepare(remote)
	if err == nil {
		err = c.qp.Connect(ctx, c.remote.pair)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.err != nil {
		err = c.err
	}
	if err != nil {
		c.failLocked(err)
		return fmt.Errorf("ring: connect on %s: %w", c.e.dev.Name(), err)
	}
	c.state, c.joined = max(c.state, stateReady), true
	c.flushStateLocked() // what was received meanwhile may need an answer
	c.wakeLocked()
	return nil
}

// prepare takes the peer's address and makes the buffers that answer to its own.
func (c *Channel) prepare(remote []byte) error {
	a, err := decodeAddress(remote)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != stateNew {
		return fmt.Errorf("channel: %w", rdma.ErrState)
	}
	c.state = stateConnecting
	c.remote = a
	c.remote.pair = append([]byte(nil), a.pair...)
	c.out = outflow{slots: uint32(a.slots), receives: uint32(a.receives)}
	return c.sends.prepare(c.e.dev, &c.remote)
}

// Close tells the peer that no more comes, waits for Config.CloseTimeout at most until that and all before has
// arrived, and frees everything. What was not received is dropped. Calls that wait return with ErrClosed.
func (c *Channel) Close() error {
	c.mu.Lock()
	if c.state == stateClosing {
		c.mu.Unlock()
		<-c.closed
		return nil
	}
	c.state = stateClosing
	c.wakeLocked()
	if c.joined && c.err == nil {
		c.farewellLocked()
	}
	c.failLocked(rdma.ErrClosed)
	c.mu.Unlock()
	_ = c.qp.Close()
	c.e.dismiss(c)
	c.mu.Lock()
	c.inbox.n = 0 // from now on nobody looks at the memory
	c.mu.Unlock()
	c.free()
	close(c.closed)
	return nil
}

// farewellLocked sends the end and waits until all is there.
func (c *Channel) farewellLocked() {
	ctx, cancel := context.WithTimeout(context.Background(), c.e.cfg.CloseTimeout)
	defer cancel()
	over := func(c *Channel) bool { return c.err != nil || c.ended }
	if !c.awaitLocked(ctx.Done(), &c.writers, func(c *Channel) bool { return over(c) || c.hasRoomLocked() }) || over(c) {
		return
	}
	c.postNumberedLocked(kindEnd, nil)
	c.awaitLocked(ctx.Done(), &c.writers, func(c *Channel) bool { return over(c) || c.sends.done == c.sends.posted })
}

// fail puts the channel into error.
func (c *Channel) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

func (c *Channel) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.qp.Abort()
	c.wakeLocked()
}

// wakeLocked makes all waiting callers look again.
func (c *Channel) wakeLocked() {
	c.events.Add(1)
	c.readers.wake()
	c.writers.wake()
}

// awaitLocked waits until ready, polling first; false means that done came before. It releases the lock meanwhile.
func (c *Channel) awaitLocked(done <-chan struct{}, p *waitPoint, ready func(*Channel) bool) bool {
	if ready(c) {
		return true
	}
	if c.e.cfg.Spin > 0 {
		seen := c.events.Load()
		c.mu.Unlock()
		c.e.spin(c, done, ready, seen)
		c.mu.Lock()
	}
	p.waiting++
	ok := true
	for !ready(c) && ok {
		c.mu.Unlock()
		select {
		case <-p.token:
		case <-done:
			ok = false
		}
		c.mu.Lock()
	}
	if p.waiting--; p.waiting > 0 {
		signal(p.token)
	}
	return ok || ready(c)
}

// check is ready with the lock.
func (c *Channel) check(ready func(*Channel) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ready(c)
}

// keepalive sends a state if nothing was sent since the last call.
func (c *Channel) keepalive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.joined || c.err != nil {
		return
	}
	c.sends.mustTell = c.sends.posted == c.sends.atKeepalive
	c.flushStateLocked()
	c.sends.atKeepalive = c.sends.posted
}
