package sim

import (
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	// gatherMax bounds the making of the first cluster.
	gatherMax = 60 * time.Second
	// settleMax bounds the time from the end of all faults until nothing is owed.
	settleMax = 200 * time.Second
)

// Run runs one seed to its end, or to the first guarantee that does not hold.
func Run(o Options) Result {
	w := newWorld(o)
	nodes := o.Nodes
	if nodes == 0 {
		nodes = 3 + w.intn(5)
	}
	faulty := o.Faulty
	if faulty == 0 {
		faulty = w.between(8*time.Second, 20*time.Second)
	}
	w.gather(nodes)
	if w.err == nil {
		w.every(time.Second, nil, w.oracle.everything)
		w.every(2*time.Second, nil, w.sweepEvicted)
		w.every(3*time.Second, nil, w.oracle.find)
		if !o.Calm && o.Crash == nil {
			w.startFaults()
		}
		w.until(faulty, func() bool { return false })
	}
	w.settle()
	return Result{Seed: o.Seed, Nodes: nodes, Hash: w.hash, Virtual: time.Duration(w.now - epoch), Stats: w.stats, Err: w.err}
}

// gather makes the cluster: a founder, and nodes that join it.
func (w *world) gather(nodes int) {
	first := w.newMachine("node1", 1, true)
	first.logName = "node1"
	w.after(0, nil, first.start)
	w.until(gatherMax, func() bool { return first.life != nil && first.life.ready })
	for len(w.machines) < nodes && w.err == nil {
		if l := w.sponsor(); l != nil {
			n := len(w.machines)
			w.join(l, "")
			w.until(gatherMax, func() bool { return len(w.machines) > n })
		} else {
			w.until(100*time.Millisecond, func() bool { return false })
		}
	}
	w.until(gatherMax, func() bool {
		for _, m := range w.machines {
			if m.life == nil || !m.life.ready {
				return false
			}
		}
		return true
	})
	w.tell("%d nodes are in", len(w.machines))
	w.setPolicy()
	w.gathered = true
	for _, l := range w.live() {
		w.startClients(l)
	}
}

// setPolicy has some clusters keep k copies instead of one on every node.
func (w *world) setPolicy() {
	if !w.chance(3) || w.opt.Crash != nil || w.err != nil {
		return
	}
	policy := &meta.Policy{Placement: meta.PlaceCopies, Copies: uint32(2 + w.intn(2))}
	done := false
	w.sponsor().propose(&meta.SetPolicy{Policy: policy}, func(res meta.Result, err error) { done = err == nil && res.Errno == 0 })
	w.until(gatherMax, func() bool { return done })
	w.tell("policy: %d copies (%t)", policy.Copies, done)
}

// settle takes the faults back and waits until all is delivered; then everything is looked at once more.
func (w *world) settle() {
	if w.err != nil {
		return
	}
	w.stopFaults()
	w.oracle.closing = true
	w.opt.Crash = nil
	settled := false
	w.every(100*time.Millisecond, nil, func() { settled = w.unsettled() == "" })
	for end := w.now + int64(settleMax); w.now < end && w.err == nil && w.unsettled() != ""; settled = false {
		w.until(time.Duration(end-w.now), func() bool { return settled })
	}
	if why := w.unsettled(); why != "" && w.err == nil {
		w.fail("not settled after %v: %s", settleMax, why)
	}
	if w.err == nil {
		w.oracle.everything()
	}
	if w.err == nil {
		w.oracle.end()
	}
}

// unsettled says what the cluster still has to do, "" if nothing.
func (w *world) unsettled() string {
	if w.joining > 0 {
		return "a join waits"
	}
	for _, m := range w.machines {
		if m.gone {
			continue
		}
		l := m.life
		switch {
		case l == nil || !l.ready:
			return m.name + " does not run"
		case l.db.Index() != uint64(len(w.oracle.chosen)):
			return m.name + " has not applied everything"
		}
		n, err := l.db.Node(m.node)
		if err != nil || n.State != meta.NodeUp || n.Incarnation != l.proposer.self.Incarnation {
			return m.name + " is not up in the log"
		}
		if why := l.unsettled(); why != "" {
			return m.name + ": " + why
		}
	}
	return ""
}

func (l *life) unsettled() string {
	owed, _, err := l.db.OwedCount(l.m.node)
	n, _ := l.db.Node(l.m.node)
	switch {
	case err != nil || owed > 0:
		return "something is owed to it"
	case len(n.Backlog) > 0:
		return "it has a backlog"
	case len(l.decisions) > 0 || l.deciding:
		return "decisions wait"
	case l.w.oracle.unnoticed(l):
		return "a loss was not noticed"
	case len(l.proposer.waiters) > 0:
		return "proposals wait"
	case len(l.roots) > 0 || len(l.proposer.puts) > 0:
		return "sessions run"
	case len(l.store.List(content.Undecided)) > 0:
		return fmt.Sprintf("%v is undecided", short(metaID(l.store.List(content.Undecided)[0])))
	case len(l.rep.Held()) > 0 || len(l.rep.Lost()) > 0:
		return "reports wait"
	}
	for _, id := range l.store.sorted(l.store.blobs) {
		if !l.w.oracle.live[metaID(id)] {
			return fmt.Sprintf("%v (%v) is stored, and nobody wants it", short(metaID(id)), l.store.blobs[id].state)
		}
	}
	return ""
}
