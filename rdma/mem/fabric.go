package mem

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Config describes a fabric. The zero value is a free-running one without delays.
type Config struct {
	// Seed decides delays and the order of what is possible at the same time.
	Seed uint64
	// Stepped fabrics move only by Step.
	Stepped bool
	// DelayMin and DelayMax bound the time of each way of a request, drawn evenly.
	DelayMin, DelayMax time.Duration
	// ReceiverTimeout is how long a send waits for a receive at the peer. Default 5 s.
	ReceiverTimeout time.Duration
	// PeerTimeout is how long the death of a device or a cut stays unnoticed. Default 2 s; negative: at once.
	PeerTimeout time.Duration
}

// Defaults of Config.
const (
	receiverTimeoutDefault = 5 * time.Second
	peerTimeoutDefault     = 2 * time.Second
)

// Fabric joins devices of one process.
type Fabric struct {
	cfg    Config
	start  time.Time     // of a free-running fabric
	keys   atomic.Uint64 // region keys made so far
	wake   chan struct{} // capacity 1: the dispatcher should look again
	runner sync.WaitGroup

	mu      sync.Mutex // protects all below and all pairs; taken before the lock of a completion queue
	rng     *rand.Rand
	now     time.Duration
	events  eventHeap
	devices map[string]*Device
	pairs   map[token]*queuePair
	cuts    map[[2]string]uint64 // cut lines, names in order, with the number of the cut
	cutSeq  uint64
	open    int           // devices not closed
	quit    chan struct{} // ends the dispatcher
}

// NewFabric makes a fabric without devices. It needs no Close: it is idle when its devices are closed.
func NewFabric(cfg Config) *Fabric {
	if cfg.ReceiverTimeout == 0 {
		cfg.ReceiverTimeout = receiverTimeoutDefault
	}
	if cfg.PeerTimeout == 0 {
		cfg.PeerTimeout = peerTimeoutDefault
	}
	cfg.PeerTimeout = max(cfg.PeerTimeout, 0)
	cfg.DelayMax = max(cfg.DelayMax, cfg.DelayMin)
	return &Fabric{
		cfg: cfg, start: time.Now(), wake: make(chan struct{}, 1),
		rng:     rand.New(rand.NewPCG(cfg.Seed, 0)),
		devices: make(map[string]*Device),
		pairs:   make(map[token]*queuePair),
		cuts:    make(map[[2]string]uint64),
	}
}

// Device is the device of that name; it is made at the first call, and again after it was closed or killed.
func (f *Fabric) Device(name string) *Device {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.devices[name]; d != nil {
		return d
	}
	d := newDevice(f, name)
	f.devices[name] = d
	f.open++
	if f.open == 1 && !f.cfg.Stepped {
		quit := make(chan struct{})
		f.quit = quit
		f.runner.Go(func() { f.dispatch(quit) })
	}
	return d
}

// nextKey makes region keys: the same for the same seed, and hard to hit by accident.
func (f *Fabric) nextKey() uint64 {
	x := f.cfg.Seed + f.keys.Add(1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// delayLocked draws the time of one way.
func (f *Fabric) delayLocked() time.Duration {
	d := f.cfg.DelayMin
	if span := f.cfg.DelayMax - d; span > 0 {
		d += time.Duration(f.rng.Int64N(int64(span) + 1))
	}
	return d
}

// scheduleLocked adds an event. Ties in time are decided by the seed.
func (f *Fabric) scheduleLocked(e event) {
	e.at = max(e.at, f.now)
	e.tie = f.rng.Uint64()
	f.events.push(e)
	if !f.cfg.Stepped {
		f.nudge()
	}
}

func (f *Fabric) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Step delivers the next event of a stepped fabric, moving the clock on if it must, and reports whether
// there was one. It panics on a free-running fabric, which has a driver of its own.
func (f *Fabric) Step() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mustStep()
	if len(f.events) == 0 {
		return false
	}
	f.stepLocked()
	return true
}

func (f *Fabric) mustStep() {
	if !f.cfg.Stepped {
		panic("mem: stepping a free-running fabric") // tidy: a test that mixes both ways of running is wrong
	}
}

func (f *Fabric) stepLocked() {
	e := f.events.pop()
	f.now = max(f.now, e.at)
	e.pair.deliver(e)
}

// Next returns when the next event is due.
func (f *Fabric) Next() (at time.Duration, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) == 0 {
		return 0, false
	}
	return max(f.events[0].at, f.now), true
}

// Now is the time since the fabric was made, virtual if it is stepped.
func (f *Fabric) Now() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nowLocked()
}

// nowLocked brings the clock of a free-running fabric up to date.
func (f *Fabric) nowLocked() time.Duration {
	if !f.cfg.Stepped {
		f.now = time.Since(f.start)
	}
	return f.now
}

// Advance moves the clock of a stepped fabric to at, delivering nothing; events that became due by that
// are late. Earlier times change nothing.
func (f *Fabric) Advance(at time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mustStep()
	f.now = max(f.now, at)
}

// dispatch delivers events in real time until quit.
func (f *Fabric) dispatch(quit <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait, ok := f.deliverDue()
		var due <-chan time.Time
		if ok {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-f.wake:
		case <-due:
		case <-quit:
			return
		}
	}
}

// deliverDue delivers what is due and returns how long it is until the next event, if there is one.
func (f *Fabric) deliverDue() (time.Duration, bool) {
	for {
		f.mu.Lock()
		if len(f.events) == 0 {
			f.mu.Unlock()
			return 0, false
		}
		if wait := f.events[0].at - f.nowLocked(); wait > 0 {
			f.mu.Unlock()
			return wait, true
		}
		f.stepLocked()
		f.mu.Unlock()
	}
}

// Kill ends a device as the death of its process would: its pairs are in error at once, those of its peers
// after PeerTimeout.
func (f *Fabric) Kill(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.devices[name]
	if d == nil {
		return
	}
	d.dead = true
	for q := range d.pairs.all() {
		q.peerLossLocked(f.cfg.PeerTimeout)
		q.failLocked(rdma.StatusFlushed)
	}
	delete(f.devices, name)
}

// Cut parts two devices: what is under way between them stays where it is, and after PeerTimeout both
// sides notice, unless Heal comes first.
func (f *Fabric) Cut(a, b string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nowLocked()
	f.cutSeq++
	f.cuts[lineOf(a, b)] = f.cutSeq
	f.eachBetween(a, b, func(q *queuePair) {
		f.scheduleLocked(event{kind: eventCut, pair: q, at: f.now + f.cfg.PeerTimeout, number: f.cutSeq})
	})
}

// Heal joins two devices again; pairs that noticed the cut stay in error.
func (f *Fabric) Heal(a, b string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nowLocked()
	delete(f.cuts, lineOf(a, b))
	f.eachBetween(a, b, (*queuePair).armLocked)
}

// Stop holds a device: nothing it sends leaves and nothing sent to it arrives, but nobody notices.
func (f *Fabric) Stop(name string) { f.setStopped(name, true) }

// Resume lets a stopped device go on.
func (f *Fabric) Resume(name string) { f.setStopped(name, false) }

func (f *Fabric) setStopped(name string, stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nowLocked()
	d := f.devices[name]
	if d == nil {
		return
	}
	d.stopped = stopped
	for q := range d.pairs.all() {
		q.armLocked()
		if q.peer != nil {
			q.peer.armLocked()
		}
	}
}

// eachBetween calls do for the pairs of both devices that are joined with the other.
func (f *Fabric) eachBetween(a, b string, do func(*queuePair)) {
	for _, names := range [2][2]string{{a, b}, {b, a}} {
		d := f.devices[names[0]]
		if d == nil {
			continue
		}
		for q := range d.pairs.all() {
			if q.peer != nil && q.peer.dev.name == names[1] {
				do(q)
			}
		}
	}
}

// lineOf names the line between two devices.
func lineOf(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }
