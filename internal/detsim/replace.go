package detsim

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Faults that take something away for good, and changes of the members. Each is made only where the others can do without.

// whole tells whether nothing is owed to anybody and all run: then each content is where its placement wants it.
func (w *world) whole() bool {
	for _, m := range w.machines {
		if !m.gone && m.faults > 0 {
			return false
		}
	}
	return w.unsettled() == ""
}

// empty kills a process and removes all of its contents: the disk they were on was changed for an empty one.
func (w *world) empty(m *machine) {
	if m.p == nil || !w.whole() {
		return
	}
	w.stats.Emptied++
	m.kill(false, "its contents are lost")
	if err := os.RemoveAll(filepath.Join(m.dir, "content")); err != nil {
		w.fail("%v", err)
	}
	m.allDurable()
	w.startLater(m)
}

// startLater starts the process of a machine again some time later.
func (w *world) startLater(m *machine) {
	w.hold(w.between(50*time.Millisecond, 8*time.Second), func() {
		if m.p == nil && !m.gone {
			m.start()
		}
	}, m)
}

// putBack keeps a copy of an observer's disks, or puts the copy in the place of its disks: a machine restored from a backup.
func (w *world) putBack(m *machine) {
	switch {
	case m.p == nil || w.votes(m):
	case m.older == nil:
		w.tell("the disks of %s are copied", m.host)
		m.older = m.keep(filepath.Join(w.dir, m.host+".old"))
	case w.whole():
		w.stats.PutBack++
		m.kill(false, "its disks are put back")
		m.dir, m.db, m.disk = m.older.dir, m.older.db, m.older.disk
		m.older = nil
		m.allDurable()
		w.startLater(m)
	}
}

// votes tells whether a machine is a voter, as far as anybody knows.
func (w *world) votes(m *machine) bool {
	for _, x := range w.machines {
		if x.gone {
			continue
		}
		if n, err := x.db.Node(m.number()); err == nil && n.Voter {
			return true
		}
	}
	return false
}

// number is what the log calls a machine: they join in order.
func (m *machine) number() meta.NodeID { return meta.NodeID(m.index + 1) }

// grow lets another machine join.
func (w *world) grow() {
	live := w.live()
	if len(w.machines) >= machinesMax || len(live) == 0 || w.joining {
		return
	}
	w.joining = true
	w.stats.Joins++
	m := w.newMachine()
	m.faults++
	w.work.Go(func() {
		joined := w.until(gatherMax, time.Second, func() bool {
			for _, seed := range w.live() {
				if err := w.join(m, seed); err == nil {
					return true
				}
			}
			return false
		})
		m.faults--
		m.touch()
		w.joining = false
		w.tell("%s joins: %t", m.host, joined)
		if !joined && !w.failed() {
			w.fail("%s could not join in %v", m.host, gatherMax)
		}
	})
}

const machinesMax = 9

// shrink drains a machine and evicts it when the others need it no more.
func (w *world) shrink(m *machine) {
	if m.index == 0 || len(w.staying()) < 4 || w.leaving || m.p == nil {
		return
	}
	w.leaving = true
	w.stats.Evictions++
	w.tell("%s is to leave", m.host)
	m.leaves = true
	w.work.Go(func() {
		left := w.until(settleMax, time.Second, func() bool { return w.evict(m) })
		w.tell("%s has left: %t", m.host, left)
		if !left && !w.failed() {
			w.fail("%s was not drained and evicted in %v", m.host, settleMax)
		}
		w.leaving = false
	})
}

// evict goes one step towards an eviction, at any other node that answers.
func (w *world) evict(m *machine) bool {
	for _, by := range w.live() {
		h := by.handlers()
		if by == m || h == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		st, err := h.Drain(ctx, admin.DrainRequest{Node: uint32(m.number()), Look: m.draining})
		if err != nil {
			return false
		}
		m.draining = true
		if st.NeededCount > 0 {
			return false
		}
		// What killed programs left there was acknowledged to nobody.
		lose := st.UnpublishedCount > 0 || st.Unasked != ""
		if _, err = h.Evict(ctx, admin.EvictRequest{Node: uint32(m.number()), Reason: "it leaves", Lose: lose}); err != nil {
			w.tell("evict %s: %v", m.host, err)
			return false
		}
		m.gone = true
		return true
	}
	return false
}

// staying are the machines that are not to leave.
func (w *world) staying() (out []*machine) {
	for _, m := range w.machines {
		if !m.gone && !m.leaves {
			out = append(out, m)
		}
	}
	return out
}

// slowDisk makes each fsync of a machine take long, for a while.
func (w *world) slowDisk(m *machine) {
	w.stats.SlowDisks++
	m.slowDisk = w.between(20*time.Millisecond, 2*time.Second)
	d := w.between(time.Second, 8*time.Second)
	w.tell("the disk of %s is slow for %v: up to %v for an fsync", m.host, d, m.slowDisk)
	w.hold(d, func() { m.slowDisk = 0 }, m)
}

// slow makes a machine's line slow for control, for a while.
func (w *world) slow(m *machine) {
	rate := float64(w.between(20_000, 400_000))
	d := w.between(time.Second, 10*time.Second)
	w.tell("the line of %s is slow for %v: %.0f bytes a second", m.host, d, rate)
	w.net.setRate(m.host, rate)
	w.hold(d, func() { w.net.setRate(m.host, 0) }, m)
}
