package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// writer is one program of a storm: it makes, changes and removes files of its own directory, and overwrites some that
// all writers share, through the mount of one node, until that fails. What it does depends on its seed, and on what
// fails.
type writer struct {
	s     *storm
	id    int
	rand  *rand.Rand
	home  *cluster.Node
	lost  bool // the last change failed: the home may be another one, or new
	names []*name
	made  int
	seed  uint64

	acked, failed int
	bytes         int64
	longest       time.Duration
}

const (
	namesMax     = 24      // of a writer
	writerPerSec = 1 << 20 // bytes of a writer, over time: what is removed stays on the disks for 10 minutes
	sharedNames  = 3
	settleMax    = 3 * time.Minute
)

func (w *writer) run() {
	for w.settled() && w.s.enter(w) {
		began := time.Now()
		w.step()
		took := time.Since(began)
		w.s.leave(w)
		pause := time.Duration(w.rand.IntN(300)) * time.Millisecond
		pause = max(pause, time.Duration(float64(w.bytes)/writerPerSec*float64(time.Second))-took)
		w.bytes = 0
		wait(min(pause, 20*time.Second))
	}
}

// settled makes sure that the home serves, and has applied all that was acknowledged anywhere: a name that was just
// made and removed there is later in the log. It is false when the storm is over.
func (w *writer) settled() bool {
	if !w.lost && !w.s.leaving(w.home) {
		return !w.s.isOver()
	}
	if w.rand.IntN(2) == 0 {
		w.home = w.s.anyNode(w.rand)
	}
	for deadline := time.Now().Add(settleMax); ; wait(200 * time.Millisecond) {
		if w.s.leaving(w.home) {
			w.home = w.s.anyNode(w.rand)
		}
		probe := w.home.Path("probe", fmt.Sprint(w.id))
		os.Remove(probe)
		if os.Mkdir(probe, 0o755) == nil && os.Remove(probe) == nil {
			w.lost = false
			return !w.s.isOver()
		}
		if w.s.isOver() {
			return false
		}
		if time.Now().After(deadline) {
			w.s.t.Errorf("writer %d: %s takes no changes after %v", w.id, w.home.Name(), settleMax)
			return false
		}
	}
}

// size is a size of a file: as many are from 1 to 10 bytes as from 1 to 10 MB.
func (w *writer) size() int64 {
	n := int64(math.Exp(w.rand.Float64() * math.Log(float64(w.s.sizeMax))))
	w.bytes += n
	return n
}

func (w *writer) data() blob {
	w.seed++
	return newBlob(uint64(w.id)<<32|w.seed, w.size())
}

// step makes one change and notes what it knows of it.
func (w *writer) step() {
	dice := w.rand.IntN(100)
	n := w.existing()
	switch {
	case n == nil || dice < 28 && len(w.names) < namesMax:
		w.create()
	case dice < 36:
		w.copyIn()
	case dice < 50:
		w.overwrite(n)
	case dice < 62:
		w.appendTo(n)
	case dice < 68:
		w.patch(n)
	case dice < 76:
		w.rename(n)
	case dice < 80:
		w.chmod(n)
	case dice < 90:
		w.share()
	default:
		w.remove(n)
	}
}

// existing is a file that the writer knows to be there, or nil.
func (w *writer) existing() *name {
	for range 8 {
		if len(w.names) == 0 {
			break
		}
		if n := w.names[w.rand.IntN(len(w.names))]; n.exists() {
			return n
		}
	}
	return nil
}

// fresh is a name that the writer knows not to be there: a new one, or that of a removed file.
func (w *writer) fresh() *name {
	if w.rand.IntN(3) == 0 {
		for _, n := range w.names {
			if n.known() && n.may[0].absent {
				return n
			}
		}
	}
	w.made++
	n := &name{path: fmt.Sprintf("w%d/f%d", w.id, w.made), may: []state{{absent: true}}}
	w.names = append(w.names, n)
	return n
}

// pause is one that a program makes while it has a file open: now and then for longer than a fault takes to be noticed.
func (w *writer) pause() time.Duration {
	if w.rand.IntN(8) > 0 {
		return 0
	}
	return time.Duration(w.rand.IntN(8000)) * time.Millisecond
}

// do makes a change, counts it, and says what failed.
func (w *writer) do(what, path string, change func(path string) outcome) outcome {
	began := time.Now()
	o := change(w.home.Path(path))
	took := time.Since(began)
	w.longest = max(w.longest, took)
	if o.err == nil {
		w.acked++
		w.s.note("writer %d at %s: %s %s: %v, %.1f MB", w.id, w.home.Name(), what, path, took.Round(time.Millisecond),
			float64(w.bytes)/1e6)
		return o
	}
	w.failed++
	w.lost = true
	w.s.failure(w, what, path, began, o.err)
	return o
}

func (w *writer) create() {
	n, mode := w.fresh(), []os.FileMode{0o644, 0o600, 0o755}[w.rand.IntN(3)]
	to := state{data: w.data(), mode: mode}
	pause, sync := w.pause(), w.rand.IntN(4) == 0
	o := w.do("create", n.path, func(path string) outcome {
		return writeWhole(path, os.O_CREATE|os.O_EXCL, mode, to.data, pause, sync)
	})
	n.after(to, o)
	w.look(n)
}

// copyIn is cp, from a file outside.
func (w *writer) copyIn() {
	n, to := w.fresh(), state{data: w.data(), mode: 0o644}
	src := filepath.Join(w.s.c.Dir, fmt.Sprintf("src%d", w.id))
	if o := writeWhole(src, os.O_CREATE|os.O_TRUNC, 0o644, to.data, 0, false); o.err != nil {
		w.s.t.Errorf("writer %d: %v", w.id, o.err)
		return
	}
	o := w.do("cp", n.path, func(path string) outcome {
		out, err := exec.Command("cp", src, path).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return outcome{err: err, wrote: -1}
	})
	n.after(to, o)
	if o.err != nil { // cp says nothing of how much it wrote
		n.may = append(n.may, state{data: to.data, mode: to.mode})
	}
	w.look(n)
}

func (w *writer) overwrite(n *name) {
	to := state{data: w.data(), mode: n.may[0].mode}
	pause, sync := w.pause(), w.rand.IntN(4) == 0
	n.after(to, w.do("overwrite", n.path, func(path string) outcome {
		return writeWhole(path, os.O_TRUNC, 0, to.data, pause, sync)
	}))
	w.look(n)
}

func (w *writer) appendTo(n *name) {
	from := n.may[0]
	more := w.data()
	if from.data.size()+more.size() > 2*w.s.sizeMax {
		return
	}
	to := state{data: from.data.patched(from.data.size(), more), mode: from.mode}
	w.patchTo("append", n, from.data.size(), more, to)
}

func (w *writer) patch(n *name) {
	from, by := n.may[0], w.data()
	off := w.rand.Int64N(from.data.size() + 1)
	w.patchTo("patch", n, off, by, state{data: from.data.patched(off, by), mode: from.mode})
}

func (w *writer) patchTo(what string, n *name, off int64, by blob, to state) {
	from, sync := n.may[0], w.rand.IntN(4) == 0
	o := w.do(what, n.path, func(path string) outcome { return patch(path, off, by, sync) })
	wrote := o.wrote
	o.wrote = -1
	n.after(to, o)
	if o.err != nil && wrote >= 0 {
		n.may = append(n.may, state{data: from.data.patched(off, by.cut(0, wrote)), mode: from.mode})
	}
	w.look(n)
}

// rename gives a file a free name, or that of another file.
func (w *writer) rename(n *name) {
	dst := w.existing()
	if dst == nil || dst == n || w.rand.IntN(2) == 0 {
		if dst = w.fresh(); dst == n {
			return
		}
	}
	o := w.do("rename", n.path+" "+dst.path, func(string) outcome {
		return outcome{err: os.Rename(w.home.Path(n.path), w.home.Path(dst.path)), wrote: -1}
	})
	from, over := n.may[0], dst.may[0]
	if o.err == nil {
		n.may, dst.may = []state{{absent: true}}, []state{from}
		return
	}
	n.may, dst.may = []state{from, {absent: true}}, []state{over, from}
	n.or = dst
}

func (w *writer) chmod(n *name) {
	from, to := n.may[0], n.may[0]
	to.mode = []os.FileMode{0o640, 0o600, 0o755}[w.rand.IntN(3)]
	o := w.do("chmod", n.path, func(path string) outcome { return outcome{err: os.Chmod(path, to.mode), wrote: -1} })
	n.may = []state{to}
	if o.err != nil {
		n.may = append(n.may, from)
	}
}

func (w *writer) remove(n *name) {
	o := w.do("unlink", n.path, func(path string) outcome { return outcome{err: os.Remove(path), wrote: -1} })
	from := n.may[0]
	n.may = []state{{absent: true}}
	if o.err != nil {
		n.may = append(n.may, from)
	}
}

// share writes a whole new version of a name that the other writers write too. While one of them makes the name, it
// does not exist for others, nor can they make it: that is tried again.
func (w *writer) share() {
	name, data := fmt.Sprintf("shared/f%d", w.rand.IntN(sharedNames)), w.data()
	i, began := w.s.shared.begin(name, data), time.Now()
	o := w.do("share", name, func(path string) outcome {
		for {
			made := w.s.shared.made(name)
			o := writeWhole(path, os.O_CREATE|os.O_TRUNC, 0o644, data, 0, false)
			if made || !errors.Is(o.err, os.ErrNotExist) || time.Since(began) > stormStandMax {
				return o
			}
			wait(50 * time.Millisecond)
		}
	})
	w.s.shared.end(name, i, o.err == nil)
	if o.err != nil && o.wrote >= 0 {
		w.s.shared.end(name, w.s.shared.begin(name, data.cut(0, o.wrote)), false)
	}
	if o.err != nil {
		w.s.shared.end(name, w.s.shared.begin(name, nil), false)
	}
}

// look reads what was acknowledged on another node, now and then: every node that is up, and not named as owed or
// behind, shows it (G3). One that is struck, or was until just now, may have been named to the writer only.
func (w *writer) look(n *name) {
	if !n.known() || w.rand.IntN(3) > 0 {
		return
	}
	began, reader := time.Now(), w.s.anyNode(w.rand)
	if reader == w.home || !w.s.counts(w.home, reader) {
		return
	}
	_, _, err := stateShown(reader.Mount, n.path, n.may)
	if err == nil || !w.s.counts(w.home, reader) {
		return
	}
	w.s.say("writer %d: what %s acknowledged of %s is not shown by %s: %v", w.id, w.home.Name(), n.path, reader.Name(),
		err)
	if !w.s.isStruck(reader, began.Add(-stormForget)) {
		w.s.t.Errorf("%s is up, owed nothing, and was not struck", reader.Name())
	}
}

// statusOf asks a node, for a few seconds.
func statusOf(n *cluster.Node) (admin.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return n.Admin().Status(ctx)
}
