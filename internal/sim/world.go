package sim

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// Options says what to run.
type Options struct {
	Seed uint64
	// Nodes is how many there are at first; 0 lets the seed choose 3 to 7.
	Nodes int
	// Faulty is how long things go wrong; 0 lets the seed choose.
	Faulty time.Duration
	// Trace gets a line for each thing worth telling; it may be nil.
	Trace func(line string)
	// Calm switches random faults off.
	Calm bool
	// Crash is one fault at a chosen moment, in a run that is calm otherwise; see Crash.
	Crash *Crash
}

// Crash ends one process, or cuts the power of its machine, at a counted moment.
type Crash struct {
	// At names a labelled point (vote, propose, commit, apply, visible, reply), or a write: "state" is each commit or
	// sync of the state database, "log" each operation of the raft log on its disk, "content" each change of the store.
	At string
	// Node is the machine, from 0; -1 means whichever gets there.
	Node int
	// Count is how often the moment is passed before, over the whole run.
	Count int
	// Power loses what was not synced; else only the process ends.
	Power bool
}

// Stats counts what happened.
type Stats struct {
	Events, Entries, Acked, Failed, Unknown, Kills, PowerLosses, Partitions, Joins, Evictions, Replacements int
	Pushes, Inline, Small, Large, Conflicts, CaughtUp, Snapshots, VoterChanges, Elections, WrongClocks      int
	// Passed counts the moments a Crash can name.
	Passed map[string]int
}

// Result is what came of a run.
type Result struct {
	Seed    uint64
	Nodes   int
	Hash    uint64 // of the trace
	Virtual time.Duration
	Stats   Stats
	Err     error // a guarantee that did not hold
}

// world is everything.
type world struct {
	opt      Options
	rng      *rand.Rand
	now      int64
	seq      uint64
	events   eventHeap
	hash     uint64
	machines []*machine // all that ever were, in order of their beginning
	cut      map[pair]bool
	lossy    bool
	flaky    bool // faults are on
	oracle   *oracle
	stats    Stats
	err      error
	names    int // machines named so far
	joining  int // machines that wait to be let in
	crashed  bool
	gathered bool   // the first nodes are in: clients run
	tail     uint64 // log entries kept for followers
	delete   time.Duration
	clocks   *wrongClocks
}

type pair struct{ a, b *machine }

// event is something to happen; it does not when its life has ended by then.
type event struct {
	at  int64
	seq uint64
	l   *life
	fn  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *eventHeap) Push(x any) { *h = append(*h, x.(event)) }

// Pop implements heap.Interface.
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}

const epoch = int64(1_700_000_000_000_000_000)

// eventsMax ends a run that does not come to its end by itself.
const eventsMax = 3_000_000

func newWorld(o Options) *world {
	w := &world{
		opt: o, rng: rand.New(rand.NewPCG(o.Seed, 0x726d6466)), now: epoch, cut: map[pair]bool{}, hash: 14695981039346656037, clocks: newWrongClocks(o.Seed),
	}
	w.stats.Passed = map[string]int{}
	w.oracle = newOracle(w)
	w.tail = uint64(8 + w.rng.IntN(120))
	w.delete = time.Duration(1+w.rng.IntN(8)) * time.Second
	return w
}

// intn is a random number below n.
func (w *world) intn(n int) int { return w.rng.IntN(n) }

// chance is true once in n times.
func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

// between is a random duration.
func (w *world) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)+1))
}

func (w *world) time() time.Time { return time.Unix(0, w.now) }

// after makes fn happen, if the life lives then; a nil life always does.
func (w *world) after(d time.Duration, l *life, fn func()) {
	w.seq++
	heap.Push(&w.events, event{w.now + int64(d), w.seq, l, fn})
}

// every repeats fn while the life lives.
func (w *world) every(d time.Duration, l *life, fn func()) {
	var again func()
	again = func() {
		fn()
		w.after(d, l, again)
	}
	w.after(w.between(0, d), l, again)
}

// killed unwinds the stack of a process that ends at a point.
type killed struct{}

// step runs one event.
func (w *world) step() {
	e := heap.Pop(&w.events).(event)
	w.now = e.at
	if e.l != nil && !e.l.alive {
		return
	}
	w.stats.Events++
	w.mix(uint64(e.at), e.seq)
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(killed); !ok {
				panic(r) // a bug: not ours to hide // tidy: the simulation is wired by this package alone
			}
		}
	}()
	e.fn()
}

func (w *world) mix(a, b uint64) {
	w.hash = (w.hash ^ a) * 1099511628211
	w.hash = (w.hash ^ b) * 1099511628211
}

// until runs events up to a time, or until stop says so.
func (w *world) until(limit time.Duration, stop func() bool) {
	end := w.now + int64(limit)
	for len(w.events) > 0 && w.err == nil && w.events[0].at <= end && !stop() {
		w.step()
		if w.stats.Events > eventsMax {
			w.fail("no end after %d events", w.stats.Events)
		}
	}
	if w.err == nil && len(w.events) > 0 && w.events[0].at > end {
		w.now = end
	}
}

// fail notes the first guarantee that does not hold.
func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("at %v: %s", time.Duration(w.now-epoch), fmt.Sprintf(format, args...))
		w.tell("FAILED: %v", w.err)
	}
}

// tell adds a line to the trace.
func (w *world) tell(format string, args ...any) {
	line := fmt.Sprintf("%10.4f ", time.Duration(w.now-epoch).Seconds()) + fmt.Sprintf(format, args...)
	h := fnv.New64a()
	h.Write([]byte(line))
	w.mix(h.Sum64(), 1)
	if w.opt.Trace != nil {
		w.opt.Trace(line)
	}
}

// find is the machine that is a node now: the newest of that number.
func (w *world) find(n meta.NodeID) *machine {
	for i := len(w.machines) - 1; i >= 0; i-- {
		if w.machines[i].node == n {
			return w.machines[i]
		}
	}
	return nil
}

// live lists the processes that run.
func (w *world) live() []*life {
	var out []*life
	for _, m := range w.machines {
		if m.life != nil {
			out = append(out, m.life)
		}
	}
	return out
}
