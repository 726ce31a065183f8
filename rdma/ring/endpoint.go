package ring

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Polling.
const (
	completionBatch = 32
	// rounds of a set that is not empty between two looks at the completion queue, whichever caller makes the rounds
	queueEvery  = 16
	clockEvery  = 16 // rounds between two looks at the clock
	channelsMax = 1 << 16
)

// Endpoint is all channels of one device, with their completion queue and their polling set. All methods may be
// called from several goroutines.
type Endpoint struct {
	dev    rdma.Device
	cfg    Config
	cq     rdma.CompletionQueue
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup // run and tend
	calm   chan struct{}  // capacity 1: busy became false
	attend chan struct{}  // capacity 1: busy became true

	spinners atomic.Int32 // callers that poll while they wait
	busy     atomic.Bool  // callers poll, or did lately: run leaves the completion queue to them
	rounds   atomic.Uint64
	late     atomic.Bool // something waits for a completion that may be in the queue

	poll     sync.Mutex // the right to poll; protects all below; before Channel.mu
	out      [completionBatch]rdma.Completion
	channels []*Channel // by number; nil where free
	set      []*Channel // polled: the members, and channels that have not confirmed that they left
	policy   pollingSet
	closed   bool
}

// NewEndpoint makes an endpoint on a device, which stays the caller's and must outlive it.
func NewEndpoint(dev rdma.Device, cfg Config) (*Endpoint, error) {
	e, err := newEndpoint(dev, cfg)
	if err != nil {
		return nil, err
	}
	e.tasks.Go(e.run)
	e.tasks.Go(e.tend)
	return e, nil
}

// newEndpoint makes an endpoint that does nothing by itself.
func newEndpoint(dev rdma.Device, cfg Config) (*Endpoint, error) {
	cfg, err := cfg.withDefaults(dev)
	if err != nil {
		return nil, err
	}
	cq, err := dev.NewCQ(4 * completionBatch)
	if err != nil {
		return nil, fmt.Errorf("ring: completion queue: %w", err)
	}
	e := &Endpoint{dev: dev, cfg: cfg, cq: cq, calm: make(chan struct{}, 1), attend: make(chan struct{}, 1),
		policy: pollingSet{limit: cfg.SetLimit}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e, nil
}

// Close closes all channels, at once, and waits for the goroutines.
func (e *Endpoint) Close() error {
	e.poll.Lock()
	e.closed = true
	all := append([]*Channel(nil), e.channels...)
	e.poll.Unlock()
	var err error
	for _, c := range all {
		if c != nil {
			c.fail(rdma.ErrClosed)
			err = errors.Join(err, c.Close())
		}
	}
	e.cancel()
	e.tasks.Wait()
	return errors.Join(err, e.cq.Close())
}

// admit gives a channel its number.
func (e *Endpoint) admit(c *Channel) error {
	e.poll.Lock()
	defer e.poll.Unlock()
	if e.closed {
		return fmt.Errorf("endpoint: %w", rdma.ErrClosed)
	}
	for c.id = 0; c.id < len(e.channels) && e.channels[c.id] != nil; c.id++ {
	}
	if c.id == channelsMax {
		return fmt.Errorf("%d there already: %w", channelsMax, rdma.ErrQueueFull)
	}
	if c.id == len(e.channels) {
		e.channels = append(e.channels, nil)
		e.policy.grow(c.id)
	}
	e.channels[c.id] = c
	return nil
}

// ignore makes completions of a channel that was never admitted do nothing.
func (e *Endpoint) ignore(c *Channel) {
	e.poll.Lock()
	defer e.poll.Unlock()
	c.gone = true
}

// dismiss forgets a channel; its memory is not looked at any more when it returns.
func (e *Endpoint) dismiss(c *Channel) {
	e.poll.Lock()
	defer e.poll.Unlock()
	c.gone = true
	e.unpollLocked(c)
	e.policy.forget(c.id)
	e.channels[c.id] = nil
}

// unpollLocked takes a channel out of what is polled.
func (e *Endpoint) unpollLocked(c *Channel) {
	for i, p := range e.set {
		if p == c {
			e.set = append(e.set[:i], e.set[i+1:]...)
			return
		}
	}
}

// run serves the completion queue while no caller does.
func (e *Endpoint) run() {
	for e.cq.Wait(e.ctx) == nil && e.ctx.Err() == nil {
		if e.busy.Load() {
			select {
			case <-e.calm:
			case <-e.ctx.Done():
			}
			continue
		}
		e.poll.Lock()
		e.progressLocked(true)
		e.poll.Unlock()
	}
}

// progressLocked looks once at all rings of the set, and at the completion queue if asked to, or if it is time:
// callers who always find something in a ring at once must not keep others from theirs.
func (e *Endpoint) progressLocked(queue bool) {
	rounds := e.rounds.Add(1)
	e.pollSetLocked()
	if !queue && len(e.set) > 0 && rounds%queueEvery != 0 {
		return
	}
	e.late.Store(false)
	n := e.cq.Poll(e.out[:])
	for i := range n {
		e.completedLocked(&e.out[i])
		e.out[i] = rdma.Completion{}
	}
}

// look polls once, unless somebody else does.
func (e *Endpoint) look() {
	if e.poll.TryLock() {
		e.progressLocked(true)
		e.poll.Unlock()
	}
}

// pollSetLocked looks at the next slot of each ring of the set.
func (e *Endpoint) pollSetLocked() {
	for _, c := range e.set {
		if loadWord(c.nextSlot, 0) != 0 {
			c.takeRing()
		}
	}
}

func (e *Endpoint) completedLocked(done *rdma.Completion) {
	c, ok := done.QP.User().(*Channel)
	switch {
	case !ok || c.gone:
	case done.Status != rdma.StatusOK:
		c.lost(done)
	case done.Op.IsReceive():
		e.heardLocked(c)
		if c.received(int(done.ID), done.Bytes) {
			c.takeRing() // what was written before the confirmation
			e.unpollLocked(c)
		}
	default:
		c.completed(done.ID)
	}
}

// heardLocked counts a message of a channel by send/receive, and polls the channel from now on if it may.
func (e *Endpoint) heardLocked(c *Channel) {
	e.policy.heard(c.id)
	if !e.busy.Load() || !c.mayJoin() {
		return
	}
	join, instead := e.policy.wants(c.id)
	if !join {
		return
	}
	if instead != none {
		e.leaveLocked(e.channels[instead])
	}
	e.policy.join(c.id)
	e.set = append(e.set, c)
	c.changeSet()
}

// leaveLocked tells the peer of a member to write no more. The member is polled until the peer has confirmed that.
func (e *Endpoint) leaveLocked(c *Channel) {
	e.policy.leave(c.id)
	c.changeSet()
}

// sleepLocked tells all members to write no more: their messages will wake us.
func (e *Endpoint) sleepLocked() {
	for len(e.policy.members) > 0 {
		e.leaveLocked(e.channels[e.policy.members[0]])
	}
}

// spin polls for a caller that waits for c to become ready, for Config.Spin at most. seen is the count of events when
// it was not.
func (e *Endpoint) spin(c *Channel, done <-chan struct{}, ready func(*Channel) bool, seen uint32) {
	e.spinners.Add(1)
	won := e.spinUntil(c, done, ready, seen)
	if e.spinners.Add(-1) > 0 || won {
		return // others poll, or this caller will be back soon; if not, tend finds out
	}
	e.rest()
}

func (e *Endpoint) spinUntil(c *Channel, done <-chan struct{}, ready func(*Channel) bool, seen uint32) (won bool) {
	start := time.Now()
	for i := 1; ; i++ {
		if !e.busy.Load() {
			e.busy.Store(true)
			signal(e.attend)
		}
		if e.poll.TryLock() {
			e.progressLocked(e.late.Load())
			e.poll.Unlock()
		}
		if now := c.events.Load(); now != seen {
			seen = now
			if c.check(ready) {
				return true
			}
		}
		if i%clockEvery != 0 {
			continue
		}
		if stopped(done) || time.Since(start) > e.cfg.Spin {
			return false
		}
		runtime.Gosched()
	}
}

// rest ends polling: run takes the completion queue over, and peers use send/receive.
func (e *Endpoint) rest() {
	e.poll.Lock()
	defer e.poll.Unlock()
	if e.spinners.Load() > 0 {
		return
	}
	e.progressLocked(true)
	e.sleepLocked()
	e.busy.Store(false)
	signal(e.calm)
}

// tend ends polling when the callers that polled did not come back, and makes silent channels say something.
func (e *Endpoint) tend() {
	timer := time.NewTimer(e.cfg.Keepalive)
	defer timer.Stop()
	rounds, spoken := uint64(0), time.Now()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.attend:
		case <-timer.C:
		}
		if now := e.rounds.Load(); !e.busy.Load() || e.spinners.Load() > 0 || now != rounds {
			rounds = now
		} else {
			e.rest()
		}
		if time.Since(spoken) >= e.cfg.Keepalive {
			spoken = time.Now()
			e.keepalive()
		}
		if e.busy.Load() {
			timer.Reset(e.cfg.Linger)
		} else {
			timer.Reset(e.cfg.Keepalive)
		}
	}
}

// keepalive makes silent channels send, so that a dead peer is noticed.
func (e *Endpoint) keepalive() {
	e.poll.Lock()
	all := append([]*Channel(nil), e.channels...)
	e.poll.Unlock()
	for _, c := range all {
		if c != nil {
			c.keepalive()
		}
	}
}

func signal(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}

func stopped(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
