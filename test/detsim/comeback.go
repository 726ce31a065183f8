package detsim

import (
	"fmt"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	comebackNodes  = 5
	comebackRounds = 4
	// healMax is how long nodes that are back may take until they are up everywhere and owed nothing. Lines carry
	// contents in no time here, so this is what daemons wait for.
	healMax = 2 * time.Second
)

// absence is a way in which a machine goes for a while.
type absence struct {
	name        string
	leave, back func(m *machine)
}

func (w *world) absences() []absence {
	out := []absence{
		{"killed", func(m *machine) { m.kill(false, "it is to come back") }, func(m *machine) { m.start() }},
		{"stopped", func(m *machine) {
			m.stopped = true
			w.net.stop(m.host)
			w.fabric.Stop(m.host)
		}, func(m *machine) { m.goOn() }},
	}
	for way, name := range []string{"cut off", "deaf", "mute"} {
		out = append(out, absence{name, func(m *machine) { w.cutFromAll(way, m) }, func(m *machine) { w.joinToAll(way, m) }})
	}
	return out
}

// cutFromAll parts a machine from all others, one way as lines has them; joinToAll takes that back.
func (w *world) cutFromAll(way int, m *machine) {
	for _, x := range w.machines {
		if x != m {
			w.lines(way, m, x, w.net.cut)
			w.fabric.Cut(m.host, x.host)
		}
	}
}

func (w *world) joinToAll(way int, m *machine) {
	for _, x := range w.machines {
		if x != m {
			w.lines(way, m, x, func(from, to string) {
				if w.net.heal(from, to) {
					w.fabric.Heal(from, to)
				}
			})
		}
	}
}

// RunComeback makes one or two nodes at a time go while others write, and come back together, and checks that all is
// well again in time. It must be called in a bubble of testing/synctest.
func RunComeback(o Options) Result {
	w := newWorld(o.Seed, o.Dir, o.Trace)
	w.work.Go(w.collect)
	w.gather(comebackNodes)
	for range comebackRounds {
		if !w.failed() {
			w.comeback()
		}
	}
	w.end()
	return Result{Seed: o.Seed, Nodes: comebackNodes, Hash: w.hash, Events: w.events, Virtual: time.Since(w.start),
		Stats: w.stats, Err: w.err}
}

// comeback is one absence.
func (w *world) comeback() {
	how := w.absences()[w.intn(len(w.absences()))]
	first := w.intn(comebackNodes)
	gone := []*machine{w.machines[first]}
	if w.chance(2) {
		gone = append(gone, w.machines[(first+1+w.intn(comebackNodes-1))%comebackNodes])
	}
	stopWriters := w.startWriters()
	pass(w.between(500*time.Millisecond, 2*time.Second))
	for _, m := range gone {
		w.tell("%s is %s", m.host, how.name)
		how.leave(m)
	}
	pass(w.between(300*time.Millisecond, 9*time.Second))
	stopWriters()
	for _, m := range gone {
		w.tell("%s is back", m.host)
		how.back(m)
	}
	began, why := time.Now(), ""
	if !w.until(settleMax, 10*time.Millisecond, func() bool { why = w.unhealed(); return why == "" }) {
		w.fail("%v after it was back: %s", settleMax, why)
		return
	}
	took := time.Since(began)
	w.tell("healed after %v", took)
	w.stats.Healed = append(w.stats.Healed, took)
	if took > healMax {
		w.fail("%d nodes that were %s took %v to heal, at most %v are allowed", len(gone), how.name, took, healMax)
	}
	// a close at a node that was gone may take longer
	w.until(settleMax, 100*time.Millisecond, func() bool { return w.programs.Load() == 0 })
	w.until(settleMax, 100*time.Millisecond, func() bool { return w.unhealed() == "" })
}

// unhealed is unsettled, with the nodes that are not up.
func (w *world) unhealed() string {
	if why := w.unsettled(); why != "" {
		return why
	}
	nodes, err := w.machines[0].db.Nodes()
	if err != nil {
		return err.Error()
	}
	for _, n := range nodes {
		if n.State != meta.NodeUp {
			return n.Name + " is not up"
		}
	}
	return ""
}

// startWriters runs a program at each machine that writes file after file. The returned function makes them begin no
// more, and waits a moment for the writes under way.
func (w *world) startWriters() (stop func()) {
	over := false
	for i, m := range w.machines {
		w.programs.Add(1)
		w.work.Go(func() {
			defer w.programs.Add(-1)
			for j := 0; !over && !w.failed(); j++ {
				pass(w.between(0, 300*time.Millisecond))
				w.writeOne(m, fmt.Sprintf("f%d-%d", i, j%20))
			}
		})
	}
	return func() {
		over = true
		pass(500 * time.Millisecond)
	}
}

// writeOne writes a file of one of several sizes. Failures do not matter here.
func (w *world) writeOne(m *machine, name string) {
	p := m.p
	if p == nil || !p.ready() {
		return
	}
	w.mu.Lock()
	w.pids++
	prog := &program{k: p.kernel.Load(), pid: 1<<22 + w.pids}
	w.mu.Unlock()
	f, no := prog.openCreate(name, uint32(syscall.O_WRONLY|syscall.O_TRUNC))
	if no != 0 {
		return
	}
	sizes := []int{100, 5000, 100_000, 1_500_000, 6_000_000}
	f.write(make([]byte, sizes[w.intn(len(sizes))]), 0)
	no = f.close()
	w.tell("%s: wrote %s: %d", m.host, name, no)
}
