package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/blake3"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
	"github.com/rdmcfs/rdmcfs/meta"
)

// machine is what survives a process: the disks, and who it is.
type machine struct {
	w       *world
	name    string // in the trace
	logName string // in the log
	node    meta.NodeID
	store   [16]byte
	raftID  consensus.ID
	founder bool
	skew    time.Duration // of its clock while that is right

	disk     *simfs.Disk
	db       *meta.DB // as the next process finds it; the running one's is in life
	contents *contents

	life  *life
	lives int
	gone  bool // for good: destroyed, or evicted and ended
	voted map[meta.ContentID]bool
	drag  int // its link takes that many times longer, and once, for a block
}

// raftID is as package node makes it.
func raftID(node meta.NodeID, store [16]byte) consensus.ID {
	sum := blake3.Sum256(store[:])
	return consensus.ID(node)<<32 | consensus.ID(sum[3]) | consensus.ID(sum[2])<<8 | consensus.ID(sum[1])<<16 | consensus.ID(sum[0])<<24
}

func nodeOf(id consensus.ID) meta.NodeID { return meta.NodeID(id >> 32) }

// newMachine makes an empty machine of a node; voters is set for the first one.
func (w *world) newMachine(name string, node meta.NodeID, founder bool) *machine {
	w.names++
	m := &machine{
		w: w, name: fmt.Sprintf("%s.%d", name, w.names), node: node, founder: founder, disk: simfs.New(), db: meta.OpenMemory(),
		contents: newContents(), voted: map[meta.ContentID]bool{}, skew: w.between(-2*time.Second, 2*time.Second),
	}
	m.store[0], m.store[1], m.store[15] = byte(node), byte(w.names), 1
	m.raftID = raftID(node, m.store)
	var voters []consensus.ID
	if founder {
		voters = []consensus.ID{m.raftID}
	}
	if err := raftlog.Create(m.logOptions(), raftlog.Base{Conf: confOf(voters)}); err != nil {
		w.fail("create log of %s: %v", m.name, err)
	}
	w.machines = append(w.machines, m)
	return m
}

func (m *machine) logOptions() raftlog.Options {
	return raftlog.Options{Dir: "/raft", Identity: raftlog.Identity{ID: m.raftID}, FS: m.disk, SegmentBytes: 64 << 10}
}

// start begins a process.
func (m *machine) start() {
	if m.life != nil || m.gone || m.w.err != nil {
		return
	}
	m.lives++
	l := newLife(m)
	m.life = l
	m.w.tell("%s starts: applied %d, votes %d", m.name, l.db.Index(), len(m.voted))
	m.w.oracle.started(m)
	m.w.enter(l, l.open)
	if m.w.gathered && l.alive {
		m.w.startClients(l)
	}
}

// crash ends the process as kill -9 does, or with the power of the machine. It returns; a caller on the
// stack of the process unwinds by panicking with killed.
func (m *machine) crash(power bool, why string) {
	l, w := m.life, m.w
	if l == nil {
		return
	}
	l.alive = false
	m.life = nil
	kind := "killed"
	if power {
		kind = "loses power"
		w.stats.PowerLosses++
	} else {
		w.stats.Kills++
	}
	intn := w.rng.IntN
	lost := intn
	if !power {
		lost = func(int) int { return 1 } // what was written stays
	}
	synced, applied := l.db.Synced(), l.db.Index()
	keep := synced + uint64(w.rng.Int64N(int64(applied-synced)+1))
	m.db = l.db.CrashClone(keep)
	m.disk = m.disk.PowerLoss(lost)
	m.contents = m.contents.crash(power, intn)
	w.tell("%s %s (%s): applied %d synced %d keeps %d", m.name, kind, why, applied, synced, keep)
	l.cutCalls()
	for _, ep := range l.endpoints {
		ep.cut()
	}
	w.oracle.stopped(m)
	if w.flaky || w.opt.Crash != nil {
		w.after(w.between(20*time.Millisecond, 6*time.Second), nil, m.start)
	}
}

// cutCalls breaks the connections of those who wait for an answer of the process.
func (l *life) cutCalls() {
	calls := make([]*call, 0, len(l.serving))
	for c := range l.serving {
		calls = append(calls, c)
	}
	slices.SortFunc(calls, func(a, b *call) int { return int(l.serving[a]) - int(l.serving[b]) })
	for _, c := range calls {
		if c.from.alive {
			c.endIn(l.w.latency(), nil, errLink)
		}
	}
}

// destroy takes a machine away with its disks.
func (m *machine) destroy() {
	if m.life != nil {
		m.life.alive = false
		m.life.cutCalls()
		for _, ep := range m.life.endpoints {
			ep.cut()
		}
		m.life = nil
	}
	m.gone = true
	m.contents, m.voted = newContents(), map[meta.ContentID]bool{}
	m.w.tell("%s destroyed", m.name)
}

// point is where a process may be made to end.
func (l *life) point(name string) {
	w := l.w
	if l.dying(name) {
		l.m.crash(w.opt.Crash.Power, "point "+name)
		panic(killed{}) // tidy: unwinds the stack of the process that ended
	}
	if w.flaky && !w.opt.Calm && w.chance(400) {
		l.m.crash(w.chance(2), "point "+name)
		panic(killed{}) // tidy: unwinds the stack of the process that ended
	}
}

// dying counts a moment and tells whether it is the one of Options.Crash.
func (l *life) dying(name string) bool {
	w := l.w
	c := w.opt.Crash
	if w.oracle.closing {
		return false
	}
	if c != nil && c.Node >= 0 && (c.Node >= len(w.machines) || w.machines[c.Node] != l.m) {
		return false
	}
	passed := w.stats.Passed[name]
	w.stats.Passed[name]++
	if c == nil || w.crashed || c.At != name || passed != c.Count {
		return false
	}
	w.crashed = true
	return true
}

// wrote is called after a change of the state database or the store.
func (l *life) wrote(name string) {
	w := l.w
	if l.dying(name) {
		l.m.crash(w.opt.Crash.Power, "after a write: "+name)
		panic(killed{}) // tidy: unwinds the stack of the process that ended
	}
	if w.flaky && !w.opt.Calm && w.chance(1500) {
		l.m.crash(true, "after a write: "+name)
		panic(killed{}) // tidy: unwinds the stack of the process that ended
	}
}
