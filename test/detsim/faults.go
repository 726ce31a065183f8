package detsim

import (
	"time"

	"github.com/rdmcfs/rdmcfs/replicate"
)

// faults makes things go wrong until end.
func (w *world) faults(end time.Time) {
	for time.Now().Before(end) && !w.failed() {
		pass(w.between(200*time.Millisecond, 6*time.Second))
		w.clocks()
		w.fault()
		w.clocks()
	}
}

// fault does one thing wrong, and starts what takes it back.
func (w *world) fault() {
	m := w.machines[w.intn(len(w.machines))]
	if m.gone {
		return
	}
	switch r := w.intn(100); {
	case r < 11:
		w.crash(m, w.chance(2), "at random")
	case r < 22:
		w.crashLater(m)
	case r < 26:
		w.slowDisk(m)
	case r < 40:
		w.pause(m)
	case r < 62:
		w.part(m)
	case r < 67:
		w.jump(m)
	case r < 70:
		w.rot(m)
	case r < 76:
		w.slow(m)
	case r < 82:
		w.empty(m)
	case r < 90:
		w.putBack(m)
	case r < 93:
		w.grow()
	case r < 95:
		w.replace(m)
	case r < 96:
		w.dark()
	default:
		w.shrink(m)
	}
}

// crash kills a process, and starts it again some time later.
func (w *world) crash(m *machine, power bool, why string) {
	if m.p == nil {
		return
	}
	if power {
		w.stats.PowerLosses++
	} else {
		w.stats.Kills++
	}
	m.kill(power, why)
	w.startLater(m)
}

// contentPoint precedes the steps of the content store in the list of points.
const contentPoint = "content "

// points are where a process can be killed (docs/TESTING.md).
var points = []string{
	replicate.PointVote, replicate.PointPropose, replicate.PointCommit, replicate.PointVisible, replicate.PointReply,
	replicate.PointApply,
	contentPoint + "create", contentPoint + "rename", contentPoint + "unlink", contentPoint + "apply",
	contentPoint + "fsync", contentPoint + "fsync dir",
}

// wishFor is how long a process is given to reach a point.
const wishFor = 5 * time.Second

// crashLater kills a process when it next passes a certain point.
func (w *world) crashLater(m *machine) {
	if m.p == nil || m.wish != nil {
		return
	}
	wish := &wish{point: points[w.intn(len(points))], count: 1 + w.intn(4), power: w.chance(2)}
	m.wish = wish
	w.work.Go(func() {
		w.until(wishFor, 100*time.Millisecond, func() bool { return m.wish != wish || w.calm() })
		if m.wish == wish {
			m.wish = nil
		} else if !w.failed() {
			w.stats.AtPoints++
		}
	})
}

// calm reports whether no more faults will come.
func (w *world) calm() bool {
	select {
	case <-w.quiet:
		return true
	default:
		return false
	}
}

// dark is a power loss of all machines.
func (w *world) dark() {
	w.tell("the power of all is lost")
	for _, m := range w.machines {
		if !m.gone {
			w.crash(m, true, "with all")
		}
	}
}

// hold lets a fault last for a time, or until faults are to end, and then takes it back.
func (w *world) hold(d time.Duration, back func(), on ...*machine) {
	for _, m := range on {
		m.faults++
	}
	w.work.Go(func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-w.quiet:
		}
		back()
		for _, m := range on {
			m.faults--
			m.touch()
		}
	})
}

// pause stops a process, as SIGSTOP does, for up to several leases.
func (w *world) pause(m *machine) {
	if m.p == nil || m.stopped {
		return
	}
	w.stats.Stops++
	d := w.between(100*time.Millisecond, 12*time.Second)
	w.tell("%s stands still for %v", m.host, d)
	m.stopped = true
	p := m.p
	w.net.stop(m.host)
	w.fabric.Stop(m.host)
	w.hold(d, func() {
		if m.p == p && m.stopped {
			m.goOn()
		}
	}, m)
}

func (m *machine) goOn() {
	m.w.tell("%s goes on", m.host)
	m.stopped = false
	m.w.fabric.Resume(m.host)
	m.w.net.resume(m.host)
}

// part cuts a machine off from some or all others, in one or both directions: now and then a voter from the other
// voters alone, which the nodes that follow it in the log have to notice.
func (w *world) part(m *machine) {
	w.stats.Cuts++
	d := w.between(100*time.Millisecond, 12*time.Second)
	way := w.intn(3)
	all := w.chance(2)
	voters := !all && w.votes(m) && w.chance(2)
	cut := []*machine{m}
	for _, x := range w.machines {
		if x == m || voters && !w.votes(x) || !voters && !all && w.chance(2) {
			continue
		}
		cut = append(cut, x)
		w.lines(way, m, x, w.net.cut)
		w.fabric.Cut(m.host, x.host)
	}
	held := cut
	if all && len(cut) > 2 {
		held = cut[:1] // the others are well
	}
	w.tell("%s is cut off from %d (way %d) for %v", m.host, len(cut)-1, way, d)
	w.hold(d, func() {
		w.tell("the lines of %s are whole", m.host)
		for _, x := range cut[1:] {
			w.lines(way, m, x, func(from, to string) {
				if w.net.heal(from, to) {
					w.fabric.Heal(from, to)
				}
			})
		}
	}, held...)
}

// lines does something with a line: way 0 is both directions, 1 what others send to m, 2 what it sends.
func (w *world) lines(way int, m, x *machine, do func(from, to string)) {
	if way != 1 {
		do(m.host, x.host)
	}
	if way != 2 {
		do(x.host, m.host)
	}
}

// jump sets a machine's clock wrong, by up to years, or right again. The clocks of most machines, and of most voters,
// stay right: the cluster's time is theirs.
func (w *world) jump(m *machine) {
	wrong, voters, wrongVoters := 0, 0, 0
	for _, x := range w.staying() {
		bad := x != m && x.ahead.Abs() > skewMax
		if bad {
			wrong++
		}
		if w.votes(x) {
			voters++
			if bad {
				wrongVoters++
			}
		}
	}
	w.stats.Jumps++
	switch kind := w.intn(4); {
	case kind == 0:
		m.ahead = 0
	case kind == 1 || 2*(wrong+1) >= len(w.staying()) || 2*(wrongVoters+1) >= voters:
		m.ahead = w.between(-skewMax, skewMax)
	case kind == 2:
		m.ahead = w.between(-40*day, 40*day)
	default:
		m.ahead = w.between(-5*365*day, 5*365*day)
	}
	w.tell("the clock of %s is %v ahead", m.host, m.ahead)
}

// skewMax is how far off a clock may be and still count as right.
const (
	skewMax = 5 * time.Second
	day     = 24 * time.Hour
)

// stopFaults takes all faults back.
func (w *world) stopFaults() {
	w.tell("no faults from now on")
	close(w.quiet)
	for _, m := range w.machines {
		m.ahead = 0
	}
}
