package sim

import (
	"math/rand/v2"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
)

// wrongClocks makes one machine's wall clock wrong at a time, by days or years, for one start or while it runs. It has randomness of
// its own: what else happens under a seed does not depend on it.
type wrongClocks struct {
	rng *rand.Rand
	at  *machine // whose clock is wrong; nil if none is
	by  time.Duration
}

const (
	// stampAhead is how far the log's time may be ahead of the truth, with right clocks that differ by up to 4 s.
	stampAhead = 15 * time.Second
	// stampBehind is how far it may be behind: a leader that has not heard of other clocks begins at the log's last time.
	stampBehind = 10 * time.Minute
)

func newWrongClocks(seed uint64) *wrongClocks {
	return &wrongClocks{rng: rand.New(rand.NewPCG(seed, 0x636c6f636b))}
}

// change steps a machine's clock, or puts the wrong one right again; once in so many times. At first all are right: a single node
// has nobody to ask.
func (c *wrongClocks) change(w *world, m *machine, once int) {
	if !w.flaky || w.opt.Calm || !w.gathered || c.rng.IntN(once) > 0 {
		return
	}
	if c.at == m {
		c.at, c.by = nil, 0
		w.tell("%s's clock is right again", m.name)
	} else if c.at == nil || c.at.gone {
		days := time.Duration(1 + c.rng.IntN(40))
		if c.rng.IntN(2) == 0 {
			days *= 300
		}
		if c.rng.IntN(2) == 0 {
			days = -days
		}
		c.at, c.by = m, days*24*time.Hour
		w.stats.WrongClocks++
		w.tell("%s's clock is wrong by %v", m.name, c.by)
	}
}

// now is the clock of the machine.
func (m *machine) now() int64 {
	now := m.w.now + int64(m.skew)
	if m.w.clocks.at == m {
		now += int64(m.w.clocks.by)
	}
	return now
}

// now is the cluster's time as the process knows it: it stamps entries.
func (l *life) now() int64 { return l.clock.Now(l.mono(), l.m.now()) }

// mono is the monotonic clock of the process.
func (l *life) mono() int64 { return l.w.now - l.born }

// tendClock reads the clocks of those that can be reached, and judges, as consensus.Node does. A reading takes no time here.
func (l *life) tendClock() {
	l.w.clocks.change(l.w, l.m, 15)
	l.clock.SeeLog(l.mono(), l.db.Time())
	others := false
	for _, n := range l.book {
		others = others || n.ID != l.m.node
		if p := l.peer(raftID(n.ID, n.Store)); p != nil && p.life != nil && p != l.m && !l.w.isCut(l.m, p) {
			l.clock.Read(p.raftID, l.mono(), p.now())
		}
	}
	if l.raft.core != nil {
		l.clock.Judge(l.mono(), l.m.now(), consensus.Voters(l.know.conf), others)
	}
}

// stamped holds that a leader is not behind the truth by much, whatever one machine's clock shows. That it is not ahead is held where
// entries are applied.
func (o *oracle) stamped(l *life, at int64) {
	if by := time.Duration(o.w.now - at); by > stampBehind {
		o.w.fail("%s stamps an entry %v behind the truth; its clock is %v ahead", l.m.name, by, time.Duration(l.m.now()-o.w.now))
	}
}
