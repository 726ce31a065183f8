package detsim

import (
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
)

// Options choose a run.
type Options struct {
	Seed  uint64
	Nodes int // 0: by the seed
	Dir   string
	// Trace gets what happens, line by line.
	Trace func(string)
}

// Result is what came of a run.
type Result struct {
	Seed    uint64
	Nodes   int
	Hash    uint64
	Events  int
	Virtual time.Duration
	Stats   Stats
	Err     error
}

const (
	gatherMax = 2 * time.Minute
	settleMax = 3 * time.Minute
	// repairTime is how long a node is given to mend a content that it has read and found damaged, or to say that it
	// can't. It looks for work every 5 s.
	repairTime = 6 * time.Second
	// closeMax is how long a program may be at what it began: it holds a file open for a while, and a close that
	// fails takes up to a minute.
	closeMax = 2 * time.Minute
)

// sizes of clusters, as often as they are chosen.
var sizes = []int{2, 2, 3, 3, 3, 3, 3, 4, 4, 5, 5, 5, 7, 7, 9, 12}

// Run runs one seed to its end, or to the first guarantee that does not hold. It must be called in a bubble of
// testing/synctest.
func Run(o Options) Result {
	w := newWorld(o.Seed, o.Dir, o.Trace)
	nodes := o.Nodes
	if nodes == 0 {
		nodes = sizes[w.intn(len(sizes))]
	}
	w.work.Go(w.collect)
	w.gather(nodes)
	if !w.failed() {
		for _, m := range w.machines {
			w.startClients(m, 1+w.intn(2))
		}
		w.faults(time.Now().Add(w.between(15*time.Second, 40*time.Second)))
		w.settle()
	}
	w.end()
	return Result{Seed: o.Seed, Nodes: nodes, Hash: w.hash, Events: w.events, Virtual: time.Since(w.start), Stats: w.stats,
		Err: w.err}
}

// end stops all machines, and waits until nothing of the run is left.
func (w *world) end() {
	w.over = true
	for _, m := range w.machines {
		m.stop()
	}
	w.ended = true
	w.work.Wait()
}

// gather makes the cluster.
func (w *world) gather(nodes int) {
	first := w.newMachine()
	w.found(first)
	w.until(gatherMax, 50*time.Millisecond, func() bool { return first.p != nil && first.p.ready() })
	for len(w.machines) < nodes && !w.failed() {
		m := w.newMachine()
		if !w.until(gatherMax, time.Second, func() bool {
			err := w.join(m, first)
			if err != nil {
				w.tell("%s joins: %v", m.host, err)
			}
			return err == nil
		}) {
			w.fail("%s can't join", m.host)
		}
	}
	if !w.until(gatherMax, 50*time.Millisecond, func() bool { return len(w.live()) == nodes }) && !w.failed() {
		w.fail("not all nodes run after %v", gatherMax)
	}
	w.tell("%d nodes are in", len(w.live()))
	if !w.failed() && nodes > 3 && w.chance(3) {
		w.setCopies(first, 2+w.intn(2))
	}
}

// setCopies makes the policy keep each file on some nodes only.
func (w *world) setCopies(by *machine, copies int) {
	set := w.until(gatherMax, time.Second, func() bool {
		h := by.handlers()
		if h == nil {
			return false
		}
		policy := admin.Policy{Placement: "copies", Copies: uint32(copies)}
		_, err := h.Policy(context.Background(), admin.PolicyRequest{Path: "/", Set: &policy})
		return err == nil
	})
	if !set && !w.failed() {
		w.fail("the policy can't be set")
	}
	w.copies = copies
	w.tell("%d copies of each file", copies)
}

// settle takes all faults back, waits until nothing is owed, and compares.
func (w *world) settle() {
	w.stopFaults()
	began := time.Now()
	why := ""
	if !w.until(settleMax, 100*time.Millisecond, func() bool { why = w.unsettled(); return why == "" }) && !w.failed() {
		w.fail("not settled %v after the last fault: %s", settleMax, why)
	}
	w.tell("settled after %v", time.Since(began))
	w.over = true
	if !w.until(closeMax, 100*time.Millisecond, func() bool { return w.programs.Load() == 0 }) && !w.failed() {
		w.fail("programs have not ended %v after the last fault: a close does not return", closeMax)
	}
	if !w.until(settleMax, 100*time.Millisecond, func() bool { why = w.unsettled(); return why == "" }) && !w.failed() {
		w.fail("not settled after the programs' end: %s", why)
	}
	if !w.failed() {
		w.believed()
		w.compare()
		w.times()
		pass(repairTime)
		if !w.until(settleMax, 100*time.Millisecond, func() bool { why = w.unsettled(); return why == "" }) && !w.failed() {
			w.fail("not settled after all files were read: %s", why)
		}
		w.alone()
		w.fork()
	}
}

func (r Result) String() string {
	return fmt.Sprintf("seed %d: %d nodes, %v of virtual time, %d events, trace %016x, %+v", r.Seed, r.Nodes, r.Virtual,
		r.Events, r.Hash, r.Stats)
}

// The heap is looked at each collectEvery, and collected when it has grown by collectBytes: at moments of virtual time,
// so that a run does not depend on the machine. Memory that is used for the first time costs more than a collection.
const (
	collectEvery = 100 * time.Millisecond
	collectBytes = 32 << 20
)

func (w *world) collect() {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	for after := uint64(0); !w.ended; {
		pass(collectEvery)
		if metrics.Read(heap); heap[0].Value.Uint64() < after+collectBytes {
			continue
		}
		runtime.GC()
		metrics.Read(heap)
		after = heap[0].Value.Uint64()
	}
}
