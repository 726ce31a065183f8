package sim

import (
	"errors"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

var (
	errLink    = errors.New("sim: connection lost")
	errTimeout = errors.New("sim: no answer in time")
	errRefused = errors.New("sim: connection refused")
)

// latency is how long a message takes.
func (w *world) latency() time.Duration {
	switch {
	case w.flaky && w.chance(50):
		return w.between(5*time.Millisecond, 300*time.Millisecond)
	default:
		return w.between(50*time.Microsecond, 2*time.Millisecond)
	}
}

// isCut reports whether nothing gets from a to b.
func (w *world) isCut(a, b *machine) bool { return a != b && w.cut[pair{a, b}] }

// post sends a message that may be lost or overtaken; fn runs at the receiver.
func (w *world) post(from *life, to *machine, fn func(*life)) {
	if w.isCut(from.m, to) || w.lossy && w.chance(20) {
		return
	}
	w.after(w.latency(), nil, func() {
		if l := to.life; l != nil && !w.isCut(from.m, to) {
			w.enter(l, func() { fn(l) })
		}
	})
}

// enter runs fn as part of a life: if it is killed on the way, nothing more of fn happens.
func (w *world) enter(l *life, fn func()) {
	if l.alive {
		fn()
	}
}

// call is a request on a connection, with one answer or an error.
type call struct {
	w        *world
	from, to *life
	over     bool
	done     func(answer any, err error)
}

func (c *call) end(answer any, err error) {
	if c.over {
		return
	}
	c.over = true
	if c.to != nil {
		delete(c.to.serving, c)
	}
	if c.from.alive {
		c.done(answer, err)
	}
}

// endIn is end after a while, as an event of the caller.
func (c *call) endIn(d time.Duration, answer any, err error) {
	c.w.after(d, c.from, func() { c.end(answer, err) })
}

// brokenAfter is how soon a connection over a cut link is known to be lost.
func (w *world) brokenAfter() time.Duration {
	return w.between(800*time.Millisecond, 2500*time.Millisecond)
}

// call makes a request: handle runs at the node, as it is now, and answers, at any time, by reply. done gets the answer, or
// an error when the connection breaks, nobody listens or the time is over; the request may have been handled even then.
func (l *life) call(node meta.NodeID, timeout time.Duration, handle func(at *life, reply func(any)), done func(any, error)) {
	l.callMachine(l.w.find(node), timeout, handle, done)
}

// callRaft makes a request to the store of a raft id and to no other.
func (l *life) callRaft(id consensus.ID, timeout time.Duration, handle func(at *life, reply func(any)), done func(any, error)) {
	l.callMachine(l.peer(id), timeout, handle, done)
}

func (l *life) callMachine(to *machine, timeout time.Duration, handle func(at *life, reply func(any)), done func(any, error)) {
	w := l.w
	c := &call{w: w, from: l, done: done}
	c.endIn(timeout, nil, errTimeout)
	if to == nil {
		c.endIn(time.Millisecond, nil, errRefused)
		return
	}
	if w.isCut(l.m, to) {
		c.endIn(w.brokenAfter(), nil, errLink)
		return
	}
	w.after(w.latency(), l, func() { c.arrive(to, handle) })
}

func (c *call) arrive(to *machine, handle func(at *life, reply func(any))) {
	w := c.w
	switch {
	case c.over:
		return
	case w.isCut(c.from.m, to):
		c.endIn(w.brokenAfter(), nil, errLink)
		return
	case to.life == nil || !to.life.admits(c.from):
		c.endIn(w.latency(), nil, errRefused)
		return
	}
	c.to = to.life
	c.to.serving[c] = w.seq
	w.after(0, c.to, func() {
		handle(c.to, func(answer any) {
			if w.isCut(to, c.from.m) {
				c.endIn(w.brokenAfter(), nil, errLink)
				return
			}
			c.endIn(w.latency(), answer, nil)
		})
	})
}

// admits reports whether a process lets another one in: not one that the log has evicted, or has another store for. A process
// that hears no leader may know an old store of a node that was replaced since, and leads by now: it lets anyone in.
func (l *life) admits(from *life) bool {
	if from == l || l.know.leader == 0 || l.know.leader == from.id {
		return true
	}
	n, err := l.db.Node(from.m.node)
	if err != nil {
		return true // not known here yet
	}
	return n.State != meta.NodeEvicted && (n.Store == [16]byte{} || n.Store == from.m.store)
}

// partition cuts the machines in two, one way or both.
func (w *world) partition() {
	side := map[*machine]bool{}
	for _, m := range w.machines {
		side[m] = w.chance(2)
	}
	oneWay := w.chance(4)
	for _, a := range w.machines {
		for _, b := range w.machines {
			if side[a] && !side[b] {
				w.cut[pair{a, b}] = true
				if !oneWay {
					w.cut[pair{b, a}] = true
				}
			}
		}
	}
	w.stats.Partitions++
	text := ""
	for _, m := range w.machines {
		if side[m] {
			text += " " + m.name
		}
	}
	w.tell("partition:%s apart (one way %t)", text, oneWay)
}

// isolate cuts one machine off.
func (w *world) isolate(m *machine) {
	for _, o := range w.machines {
		if o != m {
			w.cut[pair{m, o}], w.cut[pair{o, m}] = true, true
		}
	}
	w.stats.Partitions++
	w.tell("partition: %s alone", m.name)
}

// mend takes all cuts back.
func (w *world) mend() {
	if len(w.cut) > 0 {
		w.cut = map[pair]bool{}
		w.tell("links mended")
	}
}
