package detsim

import (
	"fmt"
	"hash/maphash"
	"sync"
	"syscall"
	"time"
)

// record is what is known of the files from outside: what was written, and what close answered. It shares nothing
// with the code.
type record struct {
	w  *world
	mu sync.Mutex
	of map[string]*written
}

// written is a name and what it may lead to. Only its one client writes it.
type written struct {
	name string
	may  []state // possible present states: what was acknowledged last, and what was tried since and is not known
}

// state is what a name leads to: nothing, or bytes.
type state struct {
	gone bool
	size int
	sum  uint64
}

// sums is the seed of the checksums of one process. No adversary chooses the bytes, and a cryptographic sum would take
// a sixth of a run's time.
var sums = maphash.MakeSeed()

func stateOf(data []byte) state { return state{size: len(data), sum: maphash.Bytes(sums, data)} }

func (s state) String() string {
	if s.gone {
		return "nothing"
	}
	return fmt.Sprintf("%d bytes %x", s.size, s.sum)
}

func newRecord(w *world) *record { return &record{w: w, of: map[string]*written{}} }

func (r *record) file(name string) *written {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.of[name]
	if f == nil {
		f = &written{name: name, may: []state{{gone: true}}}
		r.of[name] = f
	}
	return f
}

// names lists all names that were ever used.
func (r *record) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, 0, len(r.of))
	for name := range r.of {
		out = append(out, name)
	}
	return sorted(out)
}

// acked says that a name leads to this and nothing else.
func (f *written) acked(s state) { f.may = []state{s} }

// tried says that a name may lead to this too.
func (f *written) tried(s state) { f.may = append(f.may, s) }

func (f *written) allows(s state) bool {
	for _, m := range f.may {
		if m == s {
			return true
		}
	}
	return false
}

// client is a program that runs on a machine whenever its daemon does. It does one thing after the other.
type client struct {
	w     *world
	m     *machine
	id    int
	seq   uint64
	names []string
}

// filesOfClient is how many names a client uses.
const filesOfClient = 4

func (w *world) startClients(m *machine, count int) {
	for i := range count {
		c := &client{w: w, m: m, id: i}
		for k := range filesOfClient {
			c.names = append(c.names, fmt.Sprintf("%s-c%d-f%d", m.host, i, k))
		}
		w.programs.Add(1)
		w.work.Go(func() {
			defer w.programs.Add(-1)
			c.run()
		})
	}
}

func (c *client) run() {
	w := c.w
	for !w.over && !w.failed() && !c.m.leaves {
		pass(w.between(5*time.Millisecond, 700*time.Millisecond))
		p, prog := c.m.p, w.program(c.m)
		if prog == nil {
			continue
		}
		name := c.names[w.intn(len(c.names))]
		switch r := w.intn(100); {
		case r < 75:
			c.write(prog, p, name)
		case r < 88:
			c.unlink(prog, p, name)
		default:
			c.rename(prog, p, name, c.names[w.intn(len(c.names))])
		}
	}
}

// bytes makes up a file: nothing, a little, or several blocks.
func (c *client) bytes() []byte {
	w := c.w
	var size int
	switch r := w.intn(20); {
	case r == 0:
	case r < 9:
		size = 1 + w.intn(3000)
	case r < 16:
		size = 4097 + w.intn(200_000)
	default:
		size = 1<<20 + w.intn(5<<19)
	}
	data := make([]byte, size)
	c.seq++
	tag := fmt.Appendf(nil, "%s %d %d ", c.m.host, c.id, c.seq)
	for off := 0; off < size; off += 4096 {
		copy(data[off:], tag)
		copy(data[min(size, off+40):], itoa(off))
	}
	return data
}

// hold is how long a program keeps a file open.
func (c *client) hold() time.Duration {
	if c.w.chance(8) {
		return c.w.between(3*time.Second, 25*time.Second)
	}
	return c.w.between(0, 300*time.Millisecond)
}

func (c *client) write(prog *program, p *process, name string) {
	w, f := c.w, c.w.files.file(name)
	flags := uint32(syscall.O_WRONLY | syscall.O_TRUNC)
	began := time.Now()
	h, no := prog.openCreate(name, flags)
	if no != 0 {
		w.tell("%s: open %s: %v", c.m.host, name, no)
		return
	}
	data := c.bytes()
	s := stateOf(data)
	if no := h.write(data[:len(data)/2], 0); no != 0 {
		w.tell("%s: write %s: %v", c.m.host, name, no)
	}
	pass(c.hold())
	if no := h.write(data[len(data)/2:], int64(len(data)/2)); no != 0 && c.m.p == p {
		w.tell("%s: write %s: %v", c.m.host, name, no)
	}
	f.tried(s)
	if w.chance(4) {
		well := w.allWell()
		no := h.fsync()
		c.answered("fsync", p, f, s, no, began, well)
	}
	well := w.allWell()
	no = h.close()
	c.answered("close", p, f, s, no, began, well)
}

// answered notes what a close or fsync has returned. The answer of the daemon of a killed program does not count. A
// daemon that fails although all have been well for a while, before and since, is wrong: the copies could be had. A
// machine that leaves may go with what it has not published.
func (c *client) answered(what string, p *process, f *written, s state, no syscall.Errno, began time.Time, well bool) {
	w := c.w
	if c.m.p != p {
		w.stats.Unknown++
		w.tell("%s: %s %s: unknown, the daemon is gone", c.m.host, what, f.name)
		return
	}
	w.tell("%s: %s %s (%v): %d after %v", c.m.host, what, f.name, s, no, time.Since(began))
	if no != 0 {
		if well && w.allWell() && !c.m.leaves {
			w.fail("%s: %s of %s failed with %v, and nothing is wrong", c.m.host, what, f.name, no)
		}
		w.stats.Failed++
		return
	}
	w.stats.Acked++
	f.acked(s)
	w.check(f, s, c.m, began)
}

func (c *client) unlink(prog *program, p *process, name string) {
	f := c.w.files.file(name)
	f.tried(state{gone: true})
	no := prog.unlink(name)
	if c.m.p != p {
		return
	}
	c.w.tell("%s: unlink %s: %d", c.m.host, name, no)
	if no == 0 {
		f.acked(state{gone: true})
	}
}

func (c *client) rename(prog *program, p *process, from, to string) {
	if from == to {
		return
	}
	a, b := c.w.files.file(from), c.w.files.file(to)
	before := append([]state(nil), a.may...)
	after := append([]state(nil), b.may...)
	for _, s := range before {
		if !s.gone {
			b.tried(s)
		}
	}
	a.tried(state{gone: true})
	no := prog.rename(from, to)
	if c.m.p != p {
		return
	}
	c.w.tell("%s: rename %s %s: %d", c.m.host, from, to, no)
	switch no {
	case 0:
		b.may = nil
		for _, s := range before {
			if !s.gone {
				b.tried(s)
			}
		}
		a.acked(state{gone: true})
	case syscall.ENOENT:
		a.may, b.may = before, after
	}
}
