package rdmc

import (
	"fmt"
	"testing"
	"time"
)

// TestSimPulses has the root ask about a member: pulses prove one that gets half of what others can get, and clear a
// healthy one.
func TestSimPulses(t *testing.T) {
	const suspect = 5
	for _, n := range []int{8, 13} {
		for _, part := range []float64{1, 0.95, 0.5} {
			t.Run(fmt.Sprintf("n=%d/rate=%v", n, part), func(t *testing.T) {
				u, w := paceWorld(n, 1, SlowReport)
				u.net.in[suspect] = paceLink * part
				u.message(w, 1, 1<<32, true)
				root := w.nodes[0]
				until := func(at time.Duration) {
					t.Helper()
					if err := u.run(at, never); err != nil {
						t.Fatal(err)
					}
				}
				until(1400 * time.Millisecond)
				w.run(root, func() { root.core.ask(suspect) })
				if root.core.pulses.suspect != suspect {
					t.Fatalf("%+v", root.core.pulses)
				}
				until(4 * time.Second)
				if p := root.core.pulses; p.suspect != 0 || p.rest.IsZero() {
					t.Errorf("pulses go on: %+v", p)
				}
				proven := len(root.slow) > 0 && root.slow[0].Pulse > 0
				if proven != (part == 0.5) {
					t.Errorf("told: %v", root.slow)
				}
			})
		}
	}
}

// TestPulses holds when blocks of a message may be sent in pulses.
func TestPulses(t *testing.T) {
	c := newCore(simPlan(4), 0, simBlock, 1, false, coreLimits{slow: SlowEject, slowFactor: 2, slowTime: time.Second, sends: 1})
	const period = 100 * time.Millisecond
	c.now = simStart
	c.pulses = pulses{suspect: 2, period: period, until: simStart.Add(time.Second)}
	for _, step := range []struct {
		at       time.Duration
		seq, pos uint64
		may      bool
	}{
		{0, 1, 17, true}, {0, 1, 21, true}, {0, 1, 22, false}, {99, 1, 22, false}, // what was begun is sent, then all catch up
		{100, 1, 22, true}, {101, 1, 32, true}, {102, 1, 33, false}, {200, 1, 33, true}, // a pulse each period
		{450, 1, 44, true}, {451, 1, 55, false}, // none is made up for
		{460, 2, 0, true}, {460, 2, 11, false}, // another message
	} {
		c.now, c.wakeAt = simStart.Add(step.at*time.Millisecond), time.Time{}
		if may := c.inPulse(step.seq, step.pos); may != step.may || may != c.wakeAt.IsZero() {
			t.Errorf("%+v: %t, told the time at %v", step, may, c.wakeAt)
		}
	}
	c.now = simStart.Add(2 * time.Second)
	c.pulsesOver()
	if !c.inPulse(2, 12) {
		t.Error("pulses without end")
	}
}

// TestPulsesRest has a group that somebody was cleared in not be asked about again soon, unless it has become slower.
func TestPulsesRest(t *testing.T) {
	c := newCore(simPlan(4), 0, simBlock, 1, false, coreLimits{slow: SlowEject, slowFactor: 1.6, slowTime: time.Second, sends: 1})
	at := func(after time.Duration, rate uint32) bool {
		c.now = simStart.Add(after)
		for rank := range c.members {
			c.members[rank].figures, c.members[rank].slow.heard = figures{pace: rate, rate: rate, peers: 2}, c.now
		}
		c.ask(1)
		asked := c.pulses.suspect == 1
		c.now = c.now.Add(time.Minute)
		c.pulsesOver()
		return asked
	}
	if !at(0, 20000) {
		t.Fatal("nobody was asked")
	}
	rest := time.Minute + pulseRest*time.Second
	for _, c := range []struct {
		after time.Duration
		rate  uint32
		want  bool
	}{{rest - time.Second, 20000, false}, {rest - time.Second, 13000, false}, {rest - time.Second, 12000, true}, {3 * rest, 20000, true}} {
		if got := at(c.after, c.rate); got != c.want {
			t.Errorf("%v later, at %d KiB a second: asked %t", c.after, c.rate, got)
		}
	}
}

// TestSimPulsesEndWhenHealed: pulses at the pace of a link that was nearly down do not hold a group back that is well
// again.
func TestSimPulsesEndWhenHealed(t *testing.T) {
	const slowTime = 2 * time.Second
	u := newUniverse(8, paceLink)
	w := u.group(1, 64<<10, PriorityNormal, func(int) coreLimits {
		l := bigLimits(0)
		l.slots, l.posted, l.pins = 16, 8, 4
		l.slow, l.slowFactor, l.slowTime = SlowReport, 8, slowTime
		return l
	}, 0, 1, 2, 3, 4, 5, 6, 7)
	u.message(w, 1, 1<<36, true)
	p := &w.nodes[0].core.pulses
	run := func(over time.Duration) {
		if err := u.run(u.now+over, never); err != nil {
			t.Fatal(err)
		}
	}
	run(slowTime / 2)
	u.net.in[5], u.net.out[5] = paceLink*0.06, paceLink*0.06
	for p.suspect == 0 {
		if u.now > 5*slowTime {
			t.Fatal("nobody is asked about")
		}
		run(50 * time.Millisecond)
	}
	u.net.in[5], u.net.out[5] = paceLink, paceLink
	got, from := w.nodes[2].core.pace.got, u.now
	run(slowTime)
	if rate := float64(w.nodes[2].core.pace.got-got) / (u.now - from).Seconds(); rate < paceLink/3 {
		t.Errorf("%.2f MB/s after the link was well again, want a third of %.1f at least", rate/1e6, float64(paceLink)/1e6)
	}
}

// TestAskedAgainAfterProof: who was told of does not keep another from being told of.
func TestAskedAgainAfterProof(t *testing.T) {
	const slowTime = 10 * time.Second
	c := newCore(simPlan(6), 0, simBlock, 1, false, coreLimits{slow: SlowReport, slowFactor: 8, slowTime: slowTime, sends: 1})
	c.now = simStart
	var told []int
	var at time.Time
	for range 40 {
		c.now = c.now.Add(slowTime / paceRounds)
		before := len(c.acts)
		suspect := 3 + len(told)
		for rank := 1; rank < len(c.members); rank++ {
			f := figures{pace: 90000, rate: 9000, busy: 5, peers: 3, pulse: 5000}
			if rank == suspect {
				f = figures{pace: 9000, rate: 9000, busy: 90, peers: 3, pulse: 1000}
			}
			c.learnFigures(rank, f)
		}
		c.pulsesOver()
		for _, a := range c.acts[before:] {
			if a.kind != actSlow {
				continue
			}
			if told = append(told, c.slowest.Rank); len(told) == 2 {
				if over := c.now.Sub(at); told[0] != 3 || told[1] != 4 || over > 3*slowTime {
					t.Fatalf("told of %v, the second %v later", told, over)
				}
				return
			}
			at = c.now
			break
		}
	}
	t.Fatalf("told of %v only", told)
}

// TestIgnoredAreNotAskedAbout has members tell their figures to a root that ignores stragglers: it sends as ever, and
// names nobody.
func TestIgnoredAreNotAskedAbout(t *testing.T) {
	const slowTime = 10 * time.Second
	c := newCore(simPlan(6), 0, simBlock, 1, false, coreLimits{slow: SlowIgnore, slowFactor: 8, slowTime: slowTime, sends: 1})
	c.now = simStart
	for range 3 * paceRounds {
		c.now = c.now.Add(slowTime / paceRounds)
		for rank := 1; rank < len(c.members); rank++ {
			f := figures{pace: 90000, rate: 9000, busy: 5, peers: 3}
			if rank == 3 {
				f = figures{pace: 9000, rate: 9000, busy: 90, peers: 3}
			}
			c.hear(c.laneOf[1], controlMessage{epoch: 1, figures: []memberFigures{{uint32(rank), f}}})
		}
		if c.pulses.suspect != 0 || c.members[3].figures != (figures{}) {
			t.Fatalf("asks about rank %d, by %+v", c.pulses.suspect, c.members[3].figures)
		}
	}
}
