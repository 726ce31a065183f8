package consensus

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
)

const (
	// clocks are read so many times less often by an observer, and by a voter whose time a majority has confirmed
	clockCalm    = 5
	clockTrip    = 2 * time.Second // a reading that takes longer says too little
	maxClocksOff = 256
)

// clocks is what a node knows of the clocks of the others, and the cluster's time by them.
type clocks struct {
	self     ID
	run      uint64 // this life of the process
	cfg      *Config
	interval time.Duration
	born     time.Time     // the monotonic clock counts from here
	news     chan struct{} // buffered 1: look at the clocks now
	view     func() clockView
	start    func(func()) // begins a goroutine that ends soon
	ctx      context.Context

	mu     sync.Mutex // protects all below
	clock  *core.Clock
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

// clockView is what the clocks have to know of the cluster.
type clockView struct {
	role   Role
	leader ID
	voters []ID
	links  map[ID]*link // the peers that this node dials; a copy
}

func newClocks(n *Node) *clocks {
	return &clocks{
		self: n.id, run: n.run, cfg: &n.cfg, interval: n.tune.ClockInterval, ctx: n.ctx, view: n.clockView, start: n.wg.Go,
		born: time.Now(), news: make(chan struct{}, 1), clock: core.NewClock(n.id),
		echoes: map[ID]clockEcho{}, asking: map[ID]bool{}, asked: map[ID]time.Duration{},
	}
}

// clockView returns what the clocks need to know of the cluster.
func (n *Node) clockView() clockView {
	n.mu.Lock()
	defer n.mu.Unlock()
	return clockView{role: n.state.role, leader: n.state.leader, voters: core.VotersOf(n.state.conf),
		links: maps.Clone(n.state.links)}
}

// Now is the time of the cluster: the median of the voters' clocks as far as this node knows it. It does not follow a
// step of this machine's clock alone.
func (n *Node) Now() time.Time { return n.clocks.now() }

// Clocks returns what the node knows of the clocks.
func (n *Node) Clocks() ClockStatus { return n.clocks.status() }

// mono is this run's monotonic clock.
func (k *clocks) mono() int64 { return int64(time.Since(k.born)) }

// wall is what this machine's clock shows.
func (k *clocks) wall() int64 {
	if k.cfg.Wall != nil {
		return k.cfg.Wall().UnixNano()
	}
	return time.Now().UnixNano()
}

// now is the time of the cluster.
func (k *clocks) now() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Unix(0, k.clock.Now(k.mono(), k.wall()))
}

// watch reads the clocks of the others, and judges.
func (k *clocks) watch() {
	tick := time.NewTicker(k.interval)
	defer tick.Stop()
	for {
		k.judge()
		k.readAll()
		select {
		case <-k.ctx.Done():
			return
		case <-tick.C:
		case <-k.news:
		}
	}
}

// judge lets a raft member find the cluster's time from the clocks that it has read.
func (k *clocks) judge() {
	others := false
	if k.cfg.Members != nil {
		for _, m := range k.cfg.Members() {
			others = others || m.ID != k.self
		}
	}
	v := k.view()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seeLogLocked()
	k.clock.Synced(k.cfg.WallSynced != nil && k.cfg.WallSynced())
	if v.role != RoleObserver {
		k.clock.Judge(k.mono(), k.wall(), v.voters, others)
	}
}

// seeTime takes note of the time of an entry of the log, nanoseconds since 1970.
func (k *clocks) seeTime(at int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clock.SeeLog(k.mono(), at)
}

func (k *clocks) seeLogLocked() {
	if k.cfg.LogTime != nil {
		k.clock.SeeLog(k.mono(), k.cfg.LogTime())
	}
}

// readAll asks the peers that this node dials what their clocks show. It does not wait for the answers.
func (k *clocks) readAll() {
	v := k.view()
	every := k.interval
	k.mu.Lock()
	defer k.mu.Unlock()
	known, sure := k.clock.Known()
	if v.role == RoleObserver || sure {
		every *= clockCalm
	}
	for _, l := range v.links {
		wait := every
		if !known {
			wait = k.interval
		}
		if _, answered := k.echoes[l.peer]; !answered {
			wait = 0 // but one at a time
		}
		last, ever := k.asked[l.peer]
		if since := time.Duration(k.mono()) - last; k.asking[l.peer] || ever && since < wait-k.interval/2 {
			continue
		}
		k.asking[l.peer] = true
		k.asked[l.peer] = time.Duration(k.mono())
		k.start(func() { k.read(l) })
	}
}

// read reads one peer's clock: it showed what the answer says in the middle of the round trip.
func (k *clocks) read(l *link) {
	ctx, cancel := context.WithTimeout(k.ctx, clockTrip)
	defer cancel()
	k.mu.Lock()
	began := k.mono()
	ask := clockCall{wall: k.wall()}
	if e, ok := k.echoes[l.peer]; ok {
		ask.run, ask.mono = e.run, began+e.ahead
	}
	k.mu.Unlock()
	body, err := l.call(ctx, callClock, appendBody(nil, &ask))
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.asking, l.peer)
	took := k.mono() - began
	if err != nil || took > int64(clockTrip) {
		delete(k.echoes, l.peer)
		return
	}
	a, err := decode[clockAnswer](body)
	if err != nil {
		return
	}
	k.takeLocked(l.peer, began+took/2, &a)
}

// takeLocked uses a peer's answer, which it gave when the monotonic clock showed middle.
func (k *clocks) takeLocked(peer ID, middle int64, a *clockAnswer) {
	_, again := k.echoes[peer]
	k.echoes[peer] = clockEcho{run: a.run, ahead: a.mono - middle}
	v := k.view()
	k.clock.Read(peer, middle, a.wall)
	if peer == v.leader {
		k.learnt = a.off
		if v.role == RoleObserver && a.flags&clockKnown != 0 {
			k.clock.Follow(middle, a.time, a.flags&clockSure != 0)
		}
	}
	// now that the peer's monotonic clock is known, the next question can say what this node's wall clock showed
	if !again {
		delete(k.asked, peer)
	}
	if known, _ := k.clock.Known(); !known || !again {
		signal(k.news)
	}
}

// answer tells a peer what the clocks show here, and takes note of what the peer's clock showed. The peer says when
// that was by this node's monotonic clock: its question may have been on the way for long.
func (k *clocks) answer(peer ID, body []byte) ([]byte, error) {
	c, err := decode[clockCall](body)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.mono()
	if c.run == k.run && c.mono <= now+int64(clockTrip) && c.mono >= now-int64(core.ClockFresh) &&
		k.view().links[peer] == nil {
		k.clock.Read(peer, min(c.mono, now), c.wall)
		if known, _ := k.clock.Known(); !known {
			signal(k.news)
		}
	}
	a := clockAnswer{run: k.run, mono: now, wall: k.wall(), off: k.offLocked()}
	a.time = k.clock.Now(now, a.wall)
	known, sure := k.clock.Known()
	if known {
		a.flags |= clockKnown
	}
	if sure {
		a.flags |= clockSure
	}
	return appendBody(nil, &a), nil
}

// offLocked returns the wrong clocks: those that this node has read itself, and those that the leader names.
func (k *clocks) offLocked() map[ID]time.Duration {
	off := k.clock.Off(k.mono(), k.wall())
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

// status returns what the node knows of the clocks.
func (k *clocks) status() ClockStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	mono, wall := k.mono(), k.wall()
	st := ClockStatus{Time: time.Unix(0, k.clock.Now(mono, wall)), Off: k.offLocked()}
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

func (a *clockCall) code(c *fields) {
	c.I64(&a.wall)
	c.U64(&a.run)
	c.I64(&a.mono)
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

func (a *clockAnswer) code(c *fields) {
	c.U64(&a.run)
	c.I64(&a.mono)
	c.I64(&a.wall)
	c.I64(&a.time)
	c.U8(&a.flags)
	coder.Map(&c.Coder, &a.off, c.Count32(min(len(a.off), maxClocksOff), maxClocksOff, 16),
		func(id *ID, off *time.Duration) {
			c.U64(id)
			c.I64((*int64)(off))
		})
}
