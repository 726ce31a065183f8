package rdmc

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
)

var (
	faultSeeds = flag.Uint64("fault.seeds", 1000, "seeds of TestFaults")
	faultFrom  = flag.Uint64("fault.from", 1, "the first of them")
	faultSeed  = flag.Uint64("fault.seed", 0, "the one seed of TestFaults to run")
)

// faultKind is what befalls a group.
type faultKind uint8

const (
	faultNone   faultKind = iota
	faultKill             // the victim's process dies
	faultStop             // it is stopped, and goes on when all is over
	faultCut              // it is cut off from all others
	faultLine             // the line between it and one other is cut
	faultFlip             // what it sends is corrupted
	faultRepeat           // it sends blocks again, in the place of others
	faultEpoch            // it is a member of an epoch that is over
	faultSink             // it cannot store
	faultAbort            // it leaves
	faultSlow             // it is slow, which is no fault
	faultKinds
)

func (k faultKind) String() string {
	return [...]string{"none", "kill", "stop", "cut", "line", "flip", "repeat", "epoch", "sink", "abort", "slow"}[k]
}

// Times of a run, all virtual. No time-out is a multiple of another or of the engines' ticks: of what is due at the
// same moment the order is random, not the seed's.
const (
	faultDelay   = 300 * time.Microsecond // at most, of each way of a request
	faultPeer    = 203 * time.Millisecond // until the fabric notices that a device is dead or cut off
	faultSilence = 397 * time.Millisecond
	faultConnect = 509 * time.Millisecond
	faultStagger = 3 * time.Millisecond // members connect within it
	faultClose   = 20 * time.Second
	// faultBound is the time from a fault to the moment at which the last survivor knows: the slowest way of noticing
	// it, which is silence, two ticks of the engine, and the telling.
	faultBound = faultSilence + 2*share.TickInterval + 100*time.Millisecond
)

// TestFaults runs groups of all kinds on engines that they share, over a fabric with random delays, in virtual time;
// one device is the victim of a fault at a random moment. See checkFaults for what must hold.
func TestFaults(t *testing.T) {
	seeds, from := *faultSeeds, *faultFrom
	if testing.Short() {
		seeds = min(seeds, 100) // with the race detector
	}
	if *faultSeed != 0 {
		seeds, from = 1, *faultSeed
	}
	defer oneThread()()
	var told tally
	for seed := from; seed < from+seeds; seed++ {
		if !runFault(t, seed, &told) {
			t.Fatalf("seed %d fails; replay it with: go test ./replicate/rdmc -run 'TestFaults$' -count 20 -v -fault.seed %d",
				seed, seed)
		}
	}
	told.report(t)
}

// oneThread makes goroutines run one at a time, with no collector between them, so that a seed repeats as well as may
// be.
func oneThread() (restore func()) {
	threads, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(-1)
	return func() {
		runtime.GOMAXPROCS(threads)
		debug.SetGCPercent(percent)
	}
}

func runFault(t *testing.T, seed uint64, told *tally) bool {
	defer runtime.GC()
	return t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newFaultRun(t, seed)
			r.live()
			r.checkFaults()
			told.add(r)
			r.carryOn()
		})
	})
}

// tally counts what runs came to.
type tally struct {
	runs, struck [faultKinds]int // all, and the runs in which some group failed
	longest      time.Duration   // until a survivor was notified
}

func (c *tally) add(r *faultRun) {
	c.runs[r.kind]++
	if r.longest > 0 {
		c.struck[r.kind]++
	}
	c.longest = max(c.longest, r.longest)
}

// report prints, and holds that the faults of many runs did not come to nothing.
func (c *tally) report(t *testing.T) {
	for kind := range faultKinds {
		t.Logf("%v: %d runs, %d with a group that failed", kind, c.runs[kind], c.struck[kind])
		if quiet := kind == faultNone || kind == faultSlow; !quiet && c.runs[kind] >= 20 && c.struck[kind] < c.runs[kind]/4 {
			t.Errorf("%v: only %d of %d runs had a group fail", kind, c.struck[kind], c.runs[kind])
		}
	}
	t.Logf("the last survivor knew within %v, the bound is %v", c.longest, faultBound)
}

// faultRun is one run of TestFaults.
type faultRun struct {
	t       *testing.T
	seed    uint64
	fabric  *mem.Fabric
	devices []*faulty
	engines []*Engine
	groups  []*faultGroup
	kind    faultKind
	victim  int // device
	other   int // device, of faultLine
	after   time.Duration
	struck  time.Time
	longest time.Duration

	mu  sync.Mutex
	rng *rand.Rand
}

// draw is a random time up to most.
func (r *faultRun) draw(most time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Duration(r.rng.Int64N(int64(most)))
}

func (r *faultRun) pick(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.IntN(n)
}

func newFaultRun(t *testing.T, seed uint64) *faultRun {
	r := &faultRun{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 9))}
	r.kind = faultKind(r.rng.IntN(int(faultKinds)))
	r.fabric = mem.NewFabric(mem.Config{Seed: seed, DelayMax: r.draw(faultDelay), PeerTimeout: faultPeer})
	n := 2 + r.rng.IntN(7)
	for i := range n {
		d := newFaulty(r.fabric.Device(fmt.Sprint(i)), seed, r.kind == faultRepeat)
		d.after = time.Duration(i) * 1009 * time.Nanosecond
		t.Cleanup(func() {
			d.Close()
			if live, _ := d.registered(); live != 0 {
				t.Errorf("device %d: %d bytes are still registered", i, live)
			}
		})
		r.devices = append(r.devices, d)
		e, err := NewEngine(EngineConfig{Device: d})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		r.engines = append(r.engines, e)
	}
	for number := range 1 + r.rng.IntN(3) {
		r.groups = append(r.groups, newFaultGroup(r, number))
	}
	members := r.groups[0].on
	r.victim = members[r.rng.IntN(len(members))]
	r.other = members[(slices.Index(members, r.victim)+1)%len(members)]
	r.after = time.Duration(r.rng.ExpFloat64() * float64(8*time.Millisecond))
	t.Logf("%v at device %d of %d after %v", r.kind, r.victim, n, r.after)
	for _, fg := range r.groups {
		t.Log(fg)
	}
	return r
}

// live makes the groups and runs all members until each has closed its end.
func (r *faultRun) live() {
	var members sync.WaitGroup
	for _, fg := range r.groups {
		fg.open()
	}
	r.struck = time.Now().Add(r.after)
	strike := time.AfterFunc(r.after, r.strike)
	for _, fg := range r.groups {
		remote := make([]map[int][]byte, len(fg.ends))
		for rank := range fg.ends {
			remote[rank] = make(map[int][]byte)
		}
		for rank, e := range fg.ends {
			for peer, address := range e.g.Addresses() {
				remote[peer][rank] = address
			}
		}
		for rank, e := range fg.ends {
			members.Go(func() { e.live(remote[rank]) })
		}
	}
	members.Wait()
	if strike.Stop() {
		r.struck = time.Now() // it was over before
	}
	synctest.Wait()
}

func (r *faultRun) strike() {
	name := fmt.Sprint(r.victim)
	switch r.kind {
	case faultKill:
		r.fabric.Kill(name)
	case faultStop:
		r.fabric.Stop(name)
	case faultCut:
		for i := range r.devices {
			if i != r.victim {
				r.fabric.Cut(name, fmt.Sprint(i))
			}
		}
	case faultLine:
		r.fabric.Cut(name, fmt.Sprint(r.other))
	case faultFlip:
		r.devices[r.victim].set(spoilFlip)
	case faultRepeat:
		r.devices[r.victim].set(spoilRepeat)
	default:
		r.strikeMembers()
	}
}

// strikeMembers makes the fault befall the victim's members rather than its device.
func (r *faultRun) strikeMembers() {
	for _, fg := range r.groups {
		rank := fg.rankOf(r.victim)
		if rank < 0 {
			continue
		}
		e := fg.ends[rank]
		switch r.kind {
		case faultSink:
			e.mu.Lock()
			e.sinkFails = true
			e.mu.Unlock()
		case faultSlow:
			e.mu.Lock()
			e.slow = func() time.Duration { return r.draw(faultSilence / 4) }
			e.mu.Unlock()
		case faultAbort:
			e.leave()
		}
	}
}
