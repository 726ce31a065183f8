package detsim

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// calmFor is how long no fault may have touched a machine that must show what was acknowledged.
const calmFor = 2 * time.Second

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}

// wellFor is how long after the last fault a close may still fail because of it: nodes find each other again, and are
// let in.
const wellFor = 8 * time.Second

// allWell reports whether nothing has been wrong with any machine for wellFor.
func (w *world) allWell() bool {
	since := time.Now().Add(-wellFor)
	for _, m := range w.staying() {
		if m.faults > 0 || m.p == nil || !m.p.ready() || m.calm.After(since) {
			return false
		}
	}
	return true
}

// look reads a name on a machine, as a new program there does.
func (w *world) look(m *machine, name string) (state, syscall.Errno) {
	prog := w.program(m)
	if prog == nil {
		return state{}, syscall.ENOTCONN
	}
	h, no := prog.open(name, syscall.O_RDONLY)
	if no == syscall.ENOENT {
		return state{gone: true}, 0
	}
	if no != 0 {
		return state{}, no
	}
	buf := w.buffer()
	got, no := h.read(buf)
	w.giveBack(buf)
	h.close()
	return got, no
}

// program begins a program on a machine; nil while it has no mount.
func (w *world) program(m *machine) *program {
	p := m.p
	if p == nil || !p.ready() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pids++
	return &program{k: p.kernel.Load(), pid: 1<<22 + w.pids}
}

// buffer gives a buffer of readBytes to read into.
func (w *world) buffer() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.buffers); n > 0 {
		buf := w.buffers[n-1]
		w.buffers = w.buffers[:n-1]
		return buf
	}
	return make([]byte, readBytes)
}

func (w *world) giveBack(buf []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buffers = append(w.buffers, buf)
}

// check checks that each live node shows what a close has acknowledged, at that moment (G1, G3).
func (w *world) check(f *written, s state, by *machine, began time.Time) {
	for _, m := range w.machines {
		if !w.mustShow(m, began) {
			continue
		}
		p := m.p
		got, no := w.look(m, f.name)
		if m.p != p || !w.mustShow(m, began) || by.leaves || len(f.may) != 1 || f.may[0] != s {
			continue
		}
		if !w.mustShow(by, began) && (no != 0 && w.copies > 0 || by.stopped) {
			continue // no machine that is well has a copy, or nobody hears the answer
		}
		if no != 0 && w.copies > 0 && w.unwell(began) >= w.copies && !w.heldByOneThatIsWell(s, by, began) {
			continue // all machines that have a copy are away
		}
		if by.takesForDown(m) && (!w.mustShow(by, began) || m.calm.After(began.Add(-wellFor))) {
			continue // by was alone, and m with others; or m is on its way back
		}
		w.stats.Checked++
		if no != 0 {
			w.fail("%s: %s is acknowledged by %s, and reading it here: %v", m.host, f.name, by.host, no)
		} else if got != s {
			w.fail("%s: %s is acknowledged by %s as %v, and is %v here", m.host, f.name, by.host, s, got)
		}
	}
}

// unwell counts the machines that have not been well since before the writer began.
func (w *world) unwell(began time.Time) (n int) {
	for _, m := range w.machines {
		if !w.mustShow(m, began) {
			n++
		}
	}
	return n
}

// heldByOneThatIsWell reports whether a machine that is well has these bytes on its disk, so that not all copies are
// out of reach. If the other machines have as many copies as there should be, the writer's own bytes do not count as a
// copy: they are about to be deleted.
func (w *world) heldByOneThatIsWell(s state, by *machine, began time.Time) bool {
	copies, well := 0, false
	for _, m := range w.machines {
		if m == by || !m.holds(s) {
			continue
		}
		copies++
		well = well || w.mustShow(m, began)
	}
	return well || copies < w.copies && w.mustShow(by, began) && by.holds(s)
}

// holds reports whether these bytes are a whole file, or the end of a file, of the contents on a machine's disk.
func (m *machine) holds(s state) bool {
	paths, _ := filepath.Glob(filepath.Join(m.dir, "content", "held", "*", "*")) // the pattern is right
	return slices.ContainsFunc(paths, func(path string) bool {
		raw, err := os.ReadFile(path)
		return err == nil && len(raw) >= s.size && stateOf(raw[len(raw)-s.size:]) == s
	})
}

// mustShow reports whether a machine has been well since before the writer began. It is no excuse that something is
// wrong with other machines or with the writer.
func (w *world) mustShow(m *machine, began time.Time) bool {
	since := began.Add(-calmFor)
	return m.p != nil && m.p.ready() && !m.leaves && m.faults == 0 && !m.calm.After(since)
}

// takesForDown reports whether a machine has heard that another one is down. A machine that stood still may have been
// alone long enough to decide that itself, since its timers went on.
func (m *machine) takesForDown(other *machine) bool {
	n, err := m.db.Node(other.number())
	return err == nil && n.State == meta.NodeDown
}

// unsettled returns what is still to be done, "" if nothing is.
func (w *world) unsettled() string {
	if w.joining || w.leaving {
		return "a machine comes or goes"
	}
	for _, m := range w.machines {
		if m.gone {
			continue
		}
		if m.p == nil {
			return fmt.Sprintf("%s does not run: it ended with %v", m.host, m.ended)
		}
		if !m.p.ready() || m.handlers() == nil {
			return m.host + " has no mount"
		}
	}
	for _, m := range w.machines {
		if m.gone {
			continue
		}
		if m.db.Index() != w.staying()[0].db.Index() {
			return m.host + " has not applied all"
		}
		nodes, err := m.db.Nodes()
		if err != nil {
			return err.Error()
		}
		for _, n := range nodes {
			if n.State == meta.NodeEvicted {
				continue
			}
			if owed, _, err := m.db.OwedCount(n.ID); err != nil || owed > 0 {
				return "something is owed to " + n.Name
			}
			if len(n.Backlog) > 0 {
				return n.Name + " has a backlog"
			}
		}
	}
	return ""
}

// believed checks, before anybody reads, that each machine has the files of everything that the log believes to be
// there. A read would find what is missing, and cause its repair.
func (w *world) believed() {
	why := ""
	if !w.until(repairTime, 100*time.Millisecond, func() bool { why = w.lacking(); return why == "" }) {
		w.fail("believed to be held, %v after all had settled: %s", repairTime, why)
	}
}

// lacking names a content that a machine is believed to hold and has no files of, "" if there is none.
func (w *world) lacking() string {
	for _, m := range w.staying() {
		list, _, err := m.db.Believed(m.number(), meta.ContentID{}, math.MaxInt)
		if err != nil {
			return err.Error()
		}
		files := m.contentFiles()
		for _, c := range list {
			id := c.ID.String()
			if !files[id+".meta"] && !files[id+"+.meta"] || c.Size > inFile && files[id+".meta"] && !files[id+".data"] {
				return fmt.Sprintf("%s has no files of %s", m.host, id)
			}
		}
	}
	return ""
}

// inFile is the longest stream that is in the same file as the description of its content.
const inFile = 64 << 10

// contentFiles lists what is on a machine's disk of contents: names, without the base of a delta.
func (m *machine) contentFiles() map[string]bool {
	paths, _ := filepath.Glob(filepath.Join(m.dir, "content", "held", "*", "*")) // the pattern is right
	files := map[string]bool{}
	for _, path := range paths {
		id, _, delta := strings.Cut(filepath.Base(path), "+")
		if delta {
			id += "+" + filepath.Ext(path)
		}
		files[id] = true
	}
	return files
}

// compare checks, at the end, that all nodes show the same and what was acknowledged, whole.
func (w *world) compare() {
	stay := w.staying()
	for _, name := range w.files.names() {
		f := w.files.file(name)
		var first state
		for i, m := range stay {
			got, no := w.look(m, name)
			switch {
			case no != 0:
				w.fail("at the end %s can't read %s: %v", m.host, name, no)
			case !f.allows(got):
				w.fail("at the end %s shows %s as %v; it may be %v", m.host, name, got, f.may)
			case i > 0 && got != first:
				w.fail("at the end %s shows %s as %v, and %s as %v", m.host, name, got, stay[0].host, first)
			}
			if i == 0 {
				first = got
			}
		}
	}
}

// times checks that the root directory, which the log dates, is dated right by the clocks of most voters, however wrong
// other clocks are. Files are dated by their writers.
func (w *world) times() {
	if w.wrongTime {
		return
	}
	const slack = 2 * skewMax
	first, last := w.start.Add(-slack), time.Now().Add(slack)
	for _, m := range w.staying() {
		prog := w.program(m)
		if prog == nil {
			continue
		}
		var out fuse.AttrOut
		in := fuse.GetAttrIn{InHeader: prog.header(fuse.FUSE_ROOT_ID)}
		if st := prog.k.requests.GetAttr(nil, &in, &out); st != fuse.OK {
			w.fail("at the end %s can't tell the times of its root: %v", m.host, st)
		} else if at := time.Unix(int64(out.Ctime), 0); at.Before(first) || at.After(last) {
			w.fail("%s says that the root was changed at %v; the world began at %v, and it is %v", m.host, at, w.start,
				time.Now())
		}
	}
}

// clocks notes whether most voters' clocks are wrong: then the cluster's time may be.
func (w *world) clocks() {
	voters, wrong := 0, 0
	for _, m := range w.staying() {
		if !w.votes(m) {
			continue
		}
		voters++
		if m.ahead.Abs() > skewMax {
			wrong++
		}
	}
	w.wrongTime = w.wrongTime || 2*wrong >= voters && wrong > 0
}

// alone cuts all machines off from each other and reads all files on each: it shows who really has the bytes. Each
// file is on all machines, or on as many as the policy says.
func (w *world) alone() {
	stay := w.staying()
	w.eachLine(func(from, to string) {
		w.net.cut(from, to)
		w.fabric.Cut(from, to)
	})
	wanted := len(stay)
	if w.copies > 0 {
		wanted = min(w.copies, len(stay))
	}
	var looking sync.WaitGroup // a read that finds no holder takes a while
	for _, name := range w.files.names() {
		looking.Go(func() {
			if have := w.aloneCan(stay, name); have < wanted {
				w.fail("alone, %d machines can read %s, %d are to have it", have, name, wanted)
			}
		})
	}
	looking.Wait()
}

// eachLine does something with the line from each machine to each other one.
func (w *world) eachLine(do func(from, to string)) {
	for _, m := range w.machines {
		for _, x := range w.machines {
			if m != x {
				do(m.host, x.host)
			}
		}
	}
}

// aloneCan is how many machines that are cut off from each other can read a file.
func (w *world) aloneCan(stay []*machine, name string) int {
	f := w.files.file(name)
	var have atomic.Int64
	var looking sync.WaitGroup
	for _, m := range stay {
		looking.Go(func() {
			got, no := w.look(m, name)
			switch {
			case no != 0:
				w.tell("alone, %s can't read %s: %v", m.host, name, no)
				return
			case !f.allows(got):
				w.fail("alone, %s shows %s as %v; it may be %v", m.host, name, got, f.may)
			}
			have.Add(1)
		})
	}
	looking.Wait()
	return int(have.Load())
}
