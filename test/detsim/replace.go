package detsim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Faults that take something away for good, and changes of the members. Each is made only where the others can do
// without what goes.

// whole reports whether all machines run and nothing is owed to any: then each content is where its placement wants it.
func (w *world) whole() bool {
	for _, m := range w.machines {
		if !m.gone && m.faults > 0 {
			return false
		}
	}
	return w.unsettled() == ""
}

// lullMax is how long a fault is put off for which the other machines must be whole.
const lullMax = 10 * time.Second

// lull lets the faults that last end, and the nodes repair what they owe, before something is taken away for good. It
// reports whether all are whole.
func (w *world) lull() bool { return w.until(lullMax, 50*time.Millisecond, w.whole) }

// empty kills a process and removes its contents: all, as if the disk they were on had been changed for an empty one,
// or some.
func (w *world) empty(m *machine) {
	if !w.lull() || m.p == nil {
		return
	}
	w.stats.Emptied++
	m.kill(false, "its contents are lost")
	content := filepath.Join(m.dir, "content")
	err := error(nil)
	if w.chance(3) {
		err = os.RemoveAll(content)
	} else {
		err = w.removeSome(content)
	}
	if err != nil {
		w.fail("%v", err)
	}
	m.allDurable()
	w.startLater(m)
}

// removeSome removes the files of some contents.
func (w *world) removeSome(content string) error {
	files, err := filepath.Glob(filepath.Join(content, "held/*/*.*"))
	if err != nil {
		return err
	}
	goes := map[string]bool{}
	for _, path := range files {
		id := strings.TrimSuffix(path, filepath.Ext(path))
		if _, known := goes[id]; !known {
			goes[id] = w.chance(2)
		}
		if goes[id] {
			w.tell("%s is lost", filepath.Base(path))
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

// rot changes one byte of a content on a machine's disk while its process runs, and makes programs there read all
// files. What they get is what was acknowledged: a damaged copy is noticed, and the bytes come from another node.
func (w *world) rot(m *machine) {
	if len(w.staying()) < 3 || m.leaves || !w.lull() || m.p == nil {
		return
	}
	var files []string
	for _, pattern := range []string{"held/*/*.data", "held/*/*.meta"} {
		found, err := filepath.Glob(filepath.Join(m.dir, "content", pattern))
		if err != nil {
			w.fail("%v", err)
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		return
	}
	w.stats.Rotten++
	path := files[w.intn(len(files))]
	if err := w.flip(path); err != nil {
		w.fail("%v", err)
	}
	w.tell("%s has damaged %s", m.host, filepath.Base(path))
	p := m.p
	w.work.Go(func() {
		for _, name := range w.files.names() {
			f := w.files.file(name)
			before, well := slices.Clone(f.may), w.allWell()
			got, no := w.look(m, name)
			switch {
			case m.p != p || m.faults > 0 || w.failed():
				return
			case !slices.Equal(before, f.may) || strings.HasPrefix(name, m.host+"-"): // it is or was being written
			case no == 0 && !f.allows(got):
				w.fail("%s, with a damaged disk, shows %s as %v; it may be %v", m.host, name, got, f.may)
			case no != 0 && well && w.allWell():
				w.fail("%s, with a damaged disk, can't read %s: %v", m.host, name, no)
			}
		}
	})
}

// flip changes one byte of a file.
func (w *world) flip(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return err
	}
	at, b := int64(w.intn(int(st.Size()))), make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 1 << w.intn(8)
	_, err = f.WriteAt(b, at)
	return err
}

// startLater starts the process of a machine again some time later.
func (w *world) startLater(m *machine) {
	w.hold(w.between(50*time.Millisecond, 8*time.Second), func() {
		if m.p == nil && !m.gone {
			m.start()
		}
	}, m)
}

// putBack keeps a copy of a machine's disks, or puts the copy that there is in the place of the disks: a restore from
// a backup. A voter is put back only while there are two others: it has forgotten what it promised, is refused for
// that, and has to be replaced. With fewer copies than nodes it may be the only one that has what it got in between,
// which goes with it.
func (w *world) putBack(m *machine) {
	for _, x := range w.staying() {
		if x.older != nil {
			m = x
		}
	}
	if m.p == nil || m.leaves {
		return
	}
	if m.older == nil && w.votes(m) && w.voters() < 3 {
		// this copy would lead by itself (fork): no node could notice that while the others are away
		return
	}
	if m.older == nil {
		w.tell("the disks of %s are copied", m.host)
		m.older = m.keep(filepath.Join(w.dir, m.host+"."+itoa(m.lives)+".old"))
		return
	}
	if !w.lull() || m.p == nil || m.older == nil || w.joining {
		return
	}
	if w.votes(m) && (w.voters() < 3 || w.copies > 0) {
		return
	}
	w.stats.PutBack++
	had := m.db.Index() // a kill takes what was not synced
	m.kill(false, "its disks are put back")
	m.restore(m.older)
	m.older = nil
	w.startLater(m)
	w.joining = true
	// Until it is refused or whole it may serve what it has, cut off from the others, and end late.
	m.faults++
	w.work.Go(func() { w.afterPutBack(m, had) }) // of an observer too: it may have been about to vote
}

// restore puts a copy in the place of a machine's disks. No process runs.
func (m *machine) restore(d *disks) {
	m.dir, m.db, m.disk = d.dir, d.db, d.disk
	m.allDurable()
}

// afterPutBack waits until a machine that was put back is refused, and replaces it, or has applied more than it had
// before: it has then forgotten nothing, or nothing that the others miss.
func (w *world) afterPutBack(m *machine, had uint64) {
	refused := false
	w.until(gatherMax, 100*time.Millisecond, func() bool {
		short := errors.Is(m.ended, consensus.ErrLogShort) || errors.Is(m.ended, consensus.ErrSafety)
		refused = short && m.p == nil && m.faults == 1
		return refused || m.p != nil && m.db.Index() > had
	})
	m.faults--
	m.touch()
	if refused && !w.failed() {
		w.tell("%s was put back, and is refused", m.host)
		w.stats.Refused++
		m.changeDisks()
		w.inPlace(m)
	}
	w.joining = false
}

// votes reports whether a machine is a voter by the state of any machine.
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

// voters is how many machines vote, as far as anybody knows.
func (w *world) voters() (n int) {
	for _, m := range w.staying() {
		if w.votes(m) {
			n++
		}
	}
	return n
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

const machinesMax = 13

// replace takes a machine away for good, and makes an empty one join in its place.
func (w *world) replace(m *machine) {
	if m.leaves || !w.lull() || m.p == nil || w.joining || w.votes(m) && w.voters() < 3 {
		return
	}
	w.joining = true
	w.stats.Replaced++
	m.kill(false, "it is replaced")
	m.changeDisks()
	w.work.Go(func() {
		w.inPlace(m)
		w.joining = false
	})
}

// changeDisks gives a machine empty disks. No process runs.
func (m *machine) changeDisks() {
	m.lives++
	m.dir = filepath.Join(m.w.dir, m.host+"."+itoa(m.lives))
	m.db, m.disk, m.remains, m.older = meta.OpenMemory(), simfs.New(), nil, nil
}

// inPlace makes an empty machine join in the place of the node that it was.
func (w *world) inPlace(m *machine) {
	m.faults++
	joined := w.until(gatherMax, time.Second, func() bool { return w.joinInPlace(m) })
	m.faults--
	m.touch()
	w.tell("%s is replaced: %t", m.host, joined)
	if !joined && !w.failed() {
		w.fail("%s could not be replaced in %v", m.host, gatherMax)
	}
}

// joinInPlace asks the other machines for a token, and joins with it.
func (w *world) joinInPlace(m *machine) bool {
	for _, seed := range w.live() {
		h := seed.handlers()
		if h == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		token, err := h.Token(ctx, admin.TokenRequest{Replace: m.host})
		cancel()
		if err == nil {
			err = w.joinWith(m, node.JoinConfig{Seed: seed.addr(), Token: token.Token, Replace: true})
		}
		if err == nil {
			return true
		}
		w.tell("%s in its place: %v", m.host, err)
	}
	return false
}

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
		if rec, err := by.db.Node(m.number()); err == nil && rec.State == meta.NodeEvicted {
			m.gone = true // by a request that ended without an answer
			return true
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
	held := []*machine{m}
	if all := w.staying(); len(all) == 2 {
		held = all // it is the line of both: the other one hears nobody else, and may be behind
	}
	w.hold(d, func() { w.net.setRate(m.host, 0) }, held...)
}
