package consensus

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	clockObserver = 5               // an observer reads the leader's clock so many times less often than voters read each other's
	clockTrip     = 2 * time.Second // a reading that takes longer says too little
	maxClocksOff  = 256
)

// clocks is what a node knows of the clocks of the others, and the cluster's time by them.
type clocks struct {
	born time.Time // the monotonic clock counts from here

	mu     sync.Mutex // protects all below
	clock  *Clock
	learnt map[ID]time.Duration // wrong clocks that the leader names
	echoes map[ID]clockEcho     // by peer that answered
	asking map[ID]bool          // a reading is under way
	asked  map[ID]time.Duration // when it began, by the monotonic clock
}

// clockEcho is the monotonic clock of a peer's run: it showed ahead more than this node's.
type clockEcho struct {
	run   uint64
	ahead int64
}

func newClocks(self ID) clocks {
	return clocks{born: time.Now(), clock: NewClock(self), echoes: map[ID]clockEcho{}, asking: map[ID]bool{}, asked: map[ID]time.Duration{}}
}

// mono is this run's monotonic clock.
func (n *Node) mono() int64 { return int64(time.Since(n.clocks.born)) }

// wall is what this machine's clock shows.
func (n *Node) wall() int64 {
	if n.cfg.Wall != nil {
		return n.cfg.Wall().UnixNano()
	}
	return time.Now().UnixNano()
}

// Now is the time of the cluster: the median of the voters' clocks as far as this node knows it. It does not follow a
// step of this machine's clock alone.
func (n *Node) Now() time.Time {
	n.clocks.mu.Lock()
	defer n.clocks.mu.Unlock()
	return time.Unix(0, n.clocks.clock.Now(n.mono(), n.wall()))
}

// runClocks reads the clocks of the others, and judges.
func (n *Node) runClocks() {
	tick := time.NewTicker(n.tune.ClockInterval)
	defer tick.Stop()
	for {
		n.judgeClocks()
		n.readClocks()
		select {
		case <-n.ctx.Done():
			return
		case <-tick.C:
		case <-n.clockNews:
		}
	}
}

// judgeClocks lets a raft member find the cluster's time from the clocks that it has read.
func (n *Node) judgeClocks() {
	others := false
	if n.cfg.Members != nil {
		for _, m := range n.cfg.Members() {
			others = others || m.ID != n.id
		}
	}
	n.mu.Lock()
	voters, member := votersOf(n.state.conf), n.state.role != RoleObserver
	n.mu.Unlock()
	k := &n.clocks
	k.mu.Lock()
	defer k.mu.Unlock()
	n.seeLogLocked()
	k.clock.Synced(n.cfg.WallSynced != nil && n.cfg.WallSynced())
	if member {
		k.clock.Judge(n.mono(), n.wall(), voters, others)
	}
}

func (n *Node) seeLogLocked() {
	if n.cfg.LogTime != nil {
		n.clocks.clock.SeeLog(n.mono(), n.cfg.LogTime())
	}
}

// readClocks asks the peers that this node dials what their clocks show. It does not wait for the answers.
func (n *Node) readClocks() {
	n.mu.Lock()
	links := make([]*link, 0, len(n.state.links))
	for _, l := range n.state.links {
		links = append(links, l)
	}
	every := n.tune.ClockInterval
	if n.state.role == RoleObserver {
		every *= clockObserver
	}
	n.mu.Unlock()
	k := &n.clocks
	k.mu.Lock()
	defer k.mu.Unlock()
	known, _ := k.clock.Known()
	for _, l := range links {
		wait := every
		if !known {
			wait = n.tune.ClockInterval
		}
		if _, answered := k.echoes[l.peer]; !answered {
			wait = 0 // but one at a time
		}
		last, ever := k.asked[l.peer]
		if since := time.Duration(n.mono()) - last; k.asking[l.peer] || ever && since < wait-n.tune.ClockInterval/2 {
			continue
		}
		k.asking[l.peer] = true
		k.asked[l.peer] = time.Duration(n.mono())
		n.wg.Go(func() { n.readClock(l) })
	}
}

// readClock reads one peer's clock: it showed what the answer says in the middle of the round trip.
func (n *Node) readClock(l *link) {
	ctx, cancel := context.WithTimeout(n.ctx, clockTrip)
	defer cancel()
	k := &n.clocks
	k.mu.Lock()
	began := n.mono()
	ask := clockCall{wall: n.wall()}
	if e, ok := k.echoes[l.peer]; ok {
		ask.run, ask.mono = e.run, began+e.ahead
	}
	k.mu.Unlock()
	body, err := l.call(ctx, callClock, ask.append(nil))
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.asking, l.peer)
	took := n.mono() - began
	if err != nil || took > int64(clockTrip) {
		delete(k.echoes, l.peer)
		return
	}
	a, err := decodeClockAnswer(body)
	if err != nil {
		return
	}
	n.takeClockLocked(l.peer, began+took/2, &a)
}

// takeClockLocked uses a peer's answer, which it gave when the monotonic clock showed middle.
func (n *Node) takeClockLocked(peer ID, middle int64, a *clockAnswer) {
	k := &n.clocks
	_, again := k.echoes[peer]
	k.echoes[peer] = clockEcho{run: a.run, ahead: a.mono - middle}
	n.mu.Lock()
	observer, leader := n.state.role == RoleObserver, n.state.leader
	n.mu.Unlock()
	k.clock.Read(peer, middle, a.wall)
	if peer == leader {
		k.learnt = a.off
		if observer && a.flags&clockKnown != 0 {
			k.clock.Follow(middle, a.time, a.flags&clockSure != 0)
		}
	}
	if !again { // now that the peer's monotonic clock is known it can be told what this one's wall clock showed
		delete(k.asked, peer)
	}
	if known, _ := k.clock.Known(); !known || !again {
		signal(n.clockNews)
	}
}

// answerClock tells a peer what the clocks show here, and takes note of what its own showed. The peer says at what
// time of this node's monotonic clock that was: its question may have been on the way for long.
func (n *Node) answerClock(peer ID, body []byte) ([]byte, error) {
	c, err := decodeClockCall(body)
	if err != nil {
		return nil, err
	}
	k := &n.clocks
	k.mu.Lock()
	defer k.mu.Unlock()
	now := n.mono()
	if c.run == n.run && c.mono <= now+int64(clockTrip) && c.mono >= now-int64(clockFresh) && n.link(peer) == nil {
		k.clock.Read(peer, min(c.mono, now), c.wall)
		if known, _ := k.clock.Known(); !known {
			signal(n.clockNews)
		}
	}
	a := clockAnswer{run: n.run, mono: now, wall: n.wall(), off: n.clocksOffLocked()}
	a.time = k.clock.Now(now, a.wall)
	known, sure := k.clock.Known()
	if known {
		a.flags |= clockKnown
	}
	if sure {
		a.flags |= clockSure
	}
	return a.append(nil), nil
}

// clocksOffLocked are the wrong clocks: those that this node has read itself, and those that the leader names.
func (n *Node) clocksOffLocked() map[ID]time.Duration {
	k := &n.clocks
	off := k.clock.Off(n.mono(), n.wall())
	for id, by := range k.learnt {
		if _, own := off[id]; !own && !k.clock.Has(id) {
			off[id] = by
		}
	}
	return off
}

// ClockStatus is what a node knows of the cluster's clocks.
type ClockStatus struct {
	// Time is the cluster's. Known says that clocks were compared, and Sure that a majority of two clocks or more
	// agrees on it.
	Time        time.Time
	Known, Sure bool
	// Off are the clocks that differ from it by more than [ClockAgree], and by how much they are ahead.
	Off map[ID]time.Duration
	// First and Last are two nodes whose clocks differ by Apart, for when nobody can tell which is right.
	First, Last ID
	Apart       time.Duration
	// Unconfirmed is how far the only clock there is is ahead of Time, 0 if it is believed; ConfirmedIn is how long
	// it must stay so.
	Unconfirmed, ConfirmedIn time.Duration
}

// Clocks tells what the node knows of the clocks.
func (n *Node) Clocks() ClockStatus {
	k := &n.clocks
	k.mu.Lock()
	defer k.mu.Unlock()
	mono, wall := n.mono(), n.wall()
	st := ClockStatus{Time: time.Unix(0, k.clock.Now(mono, wall)), Off: n.clocksOffLocked()}
	st.Known, st.Sure = k.clock.Known()
	st.First, st.Last, st.Apart = k.clock.Apart(mono, wall)
	st.Unconfirmed, st.ConfirmedIn = k.clock.Unconfirmed(mono)
	return st
}

// clockCall asks for a peer's clock.
type clockCall struct {
	wall int64  // this node's clock
	run  uint64 // of the answering peer as this node knows it, 0 if it does not
	mono int64  // what the peer's monotonic clock showed then
}

func (c *clockCall) append(b []byte) []byte {
	return appendU64s(b, uint64(c.wall), c.run, uint64(c.mono))
}

func decodeClockCall(b []byte) (clockCall, error) {
	r := reader{b: b}
	c := clockCall{wall: int64(r.u64()), run: r.u64(), mono: int64(r.u64())}
	return c, r.done()
}

const (
	clockKnown = 1
	clockSure  = 2
)

// clockAnswer is what the clocks show at the peer.
type clockAnswer struct {
	run              uint64
	mono, wall, time int64
	flags            uint8
	off              map[ID]time.Duration
}

func (a *clockAnswer) append(b []byte) []byte {
	b = append(appendU64s(b, a.run, uint64(a.mono), uint64(a.wall), uint64(a.time)), a.flags)
	list := make([]ID, 0, len(a.off))
	for id := range a.off {
		list = append(list, id)
	}
	slices.Sort(list)
	list = list[:min(len(list), maxClocksOff)]
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	for _, id := range list {
		b = appendU64s(b, id, uint64(a.off[id]))
	}
	return b
}

func decodeClockAnswer(b []byte) (clockAnswer, error) {
	r := reader{b: b}
	a := clockAnswer{run: r.u64(), mono: int64(r.u64()), wall: int64(r.u64()), time: int64(r.u64()), flags: r.u8(), off: map[ID]time.Duration{}}
	for range r.count(16, maxClocksOff) {
		id := r.u64()
		a.off[id] = time.Duration(r.u64())
	}
	if err := r.done(); err != nil {
		return a, fmt.Errorf("consensus: clock: %w", err)
	}
	return a, nil
}
