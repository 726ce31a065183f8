package sim

import (
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// startFaults lets things go wrong at random until stopFaults.
func (w *world) startFaults() {
	w.flaky = true
	w.lossy = w.chance(2)
	w.everyFault(w.between(2*time.Second, 8*time.Second), w.killOne)
	w.everyFault(w.between(3*time.Second, 12*time.Second), w.cutOff)
	w.everyFault(w.between(2*time.Second, 6*time.Second), w.mend)
	w.everyFault(w.between(6*time.Second, 20*time.Second), w.changeMembers)
	w.everyFault(w.between(4*time.Second, 15*time.Second), w.loseContent)
	if w.chance(6) {
		w.after(w.between(5*time.Second, 15*time.Second), nil, w.killAll)
	}
}

// everyFault repeats a fault while faults are on.
func (w *world) everyFault(d time.Duration, fault func()) {
	var again func()
	again = func() {
		if w.flaky {
			fault()
			w.after(w.between(d/2, 3*d/2), nil, again)
		}
	}
	w.after(w.between(0, d), nil, again)
}

// stopFaults takes back what can be taken back: links, power, slowness.
func (w *world) stopFaults() {
	w.flaky, w.lossy = false, false
	w.mend()
	for _, m := range w.machines {
		if m.life == nil && !m.gone {
			w.after(w.between(0, time.Second), nil, m.start)
		}
	}
	w.tell("all faults are taken back")
}

func (w *world) killOne() {
	if live := w.live(); len(live) > 0 {
		l := live[w.intn(len(live))]
		if w.chance(3) {
			for _, x := range live {
				if x.leads() {
					l = x
				}
			}
		}
		l.m.crash(w.chance(2), "at random")
	}
}

// killAll cuts the power of the whole site.
func (w *world) killAll() {
	if !w.flaky {
		return
	}
	for _, l := range w.live() {
		l.m.crash(true, "everybody")
	}
}

func (w *world) cutOff() {
	if live := w.live(); w.chance(2) && len(live) > 0 {
		w.isolate(live[w.intn(len(live))].m)
		return
	}
	w.partition()
}

// loseContent takes a stored content away from a machine that is not the only one to have it, as a bad disk would; the process
// finds out when it looks.
func (w *world) loseContent() {
	live := w.live()
	if len(live) == 0 || w.chance(2) {
		return
	}
	l := live[w.intn(len(live))]
	for _, id := range l.store.List(content.Committed) {
		c, err := l.db.Content(metaID(id))
		if err != nil || w.oracle.copies(c.ID, l.m) < 1 {
			continue
		}
		delete(l.store.blobs, id)
		w.oracle.lost(l.m, c.ID)
		w.tell("%s loses content %v", l.m.name, c.ID)
		w.after(w.between(0, 2*time.Second), l, func() { l.rep.Missing(c.ID) })
		return
	}
}

// changeMembers joins, evicts or replaces a node.
func (w *world) changeMembers() {
	sponsor := w.sponsor()
	if sponsor == nil {
		return
	}
	switch w.intn(3) {
	case 0:
		if w.members() < 7 {
			w.join(sponsor, "")
		}
	case 1:
		if m := w.dispensable(sponsor); m != nil && w.members() > 3 {
			w.evict(sponsor, m)
		}
	default:
		if m := w.dispensable(sponsor); m != nil {
			m.destroy()
			w.stats.Replacements++
			w.join(sponsor, m.logName)
		}
	}
}

// sponsor is a process that can propose.
func (w *world) sponsor() *life {
	live := w.live()
	for range 5 {
		if len(live) == 0 {
			return nil
		}
		if l := live[w.intn(len(live))]; l.ready && l.proposer.self.Incarnation > 0 {
			return l
		}
	}
	return nil
}

func (w *world) members() (n int) {
	for _, m := range w.machines {
		if !m.gone {
			n++
		}
	}
	return n
}

// dispensable is a machine whose disks the cluster can do without: the others hold all that it holds, and a majority of the
// voters stays, also when another one fails.
func (w *world) dispensable(but *life) *machine {
	for range 4 {
		m := w.machines[w.intn(len(w.machines))]
		if m.gone || m == but.m || m.founder && m.node == 0 || !w.oracle.spare(m) || !w.oracle.quorumWithout(m) {
			continue
		}
		return m
	}
	return nil
}

// join lets a new machine in; replace names the node whose place it takes.
func (w *world) join(sponsor *life, replace string) {
	w.names++
	hash := [32]byte{1, byte(w.names), byte(w.names >> 8)}
	name := replace
	if name == "" {
		name = fmt.Sprintf("new%d", w.names)
	}
	w.tell("join of %s asked at %s", name, sponsor.m.name)
	w.joining++
	var try func(l *life, tries int)
	again := func(tries int) {
		w.after(500*time.Millisecond, nil, func() {
			if l := w.sponsor(); l != nil && tries < 40 {
				try(l, tries+1)
			} else {
				w.after(time.Second, nil, func() { try(nil, 0) })
			}
		})
	}
	try = func(l *life, tries int) {
		if l == nil || !l.alive {
			again(tries)
			return
		}
		over := false
		end := func(ok bool, node meta.NodeID) {
			if over {
				return
			}
			over = true
			if !ok {
				again(tries)
				return
			}
			w.joining--
			w.joined(name, node, replace != "")
		}
		l.proposeAnonymous(&meta.AddToken{Hash: hash, Expires: 1 << 62, Replace: true}, func(meta.Result, error) {
			l.proposeAnonymous(&meta.Join{Name: name, Addr: name, TokenHash: hash, Replace: replace != ""}, func(res meta.Result, err error) {
				end(err == nil && res.Errno == 0, res.Node)
			})
		})
		w.after(12*time.Second, nil, func() { end(false, 0) }) // its process may be gone
	}
	try(sponsor, 0)
}

// joined starts the machine of a node that the log has let in, once.
func (w *world) joined(name string, node meta.NodeID, replaces bool) {
	if m := w.find(node); m != nil && !m.gone {
		return
	}
	w.stats.Joins++
	m := w.newMachine(fmt.Sprintf("node%d", node), node, false)
	m.logName = name
	w.tell("%s joins as node %d (replacing %t)", name, node, replaces)
	w.after(0, nil, m.start)
}

// evict removes a node for good; its process ends later.
func (w *world) evict(sponsor *life, m *machine) {
	w.stats.Evictions++
	w.oracle.leaving(m)
	w.tell("eviction of %s asked at %s", m.name, sponsor.m.name)
	sponsor.proposeAnonymous(&meta.Evict{Node: m.node, Reason: "asked"}, func(res meta.Result, err error) {
		w.tell("eviction of %s: %v %v", m.name, res.Errno, err)
	})
}

// sweepEvicted takes the machines of evicted nodes away, some time after the log has said so.
func (w *world) sweepEvicted() {
	for _, m := range w.machines {
		for _, l := range w.live() {
			if n, err := l.db.Node(m.node); err == nil && n.State == meta.NodeEvicted && !m.gone && w.find(m.node) == m {
				w.after(w.between(0, 3*time.Second), nil, m.destroy)
				break
			}
		}
	}
}
