package slow

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/meta/id"
)

func TestWhoIsSlowWithASmallContent(t *testing.T) {
	const mib = 1 << 20
	began := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	for name, tc := range map[string]struct {
		vote     time.Duration // of another member; 0: none
		since    time.Duration // for how long it had been alone when it was first looked at
		from, to int64         // bytes that were left then, and 2 s later
		slow     bool
	}{
		"nobody has voted":                 {since: time.Second, from: mib, to: mib * 9 / 10},
		"as fast as the others":            {vote: 3 * time.Second, since: 3 * time.Second, from: mib / 2, to: mib / 4},
		"a twentieth of their pace":        {vote: time.Second, since: time.Second, from: mib, to: mib * 9 / 10, slow: true},
		"slow, but done in a moment":       {vote: 10 * time.Millisecond, since: time.Second, from: mib, to: mib / 2},
		"waits for room":                   {vote: time.Second, since: time.Second, from: -1, to: -1},
		"its share was small, now it goes": {vote: time.Second, since: 30 * time.Second, from: mib, to: mib / 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewPuts(began, mib)
			w.Moved(2, tc.from)
			if tc.vote > 0 {
				w.Voted(at(tc.vote))
			}
			if why := w.Slow(2, []id.Node{2}, tc.since, 8, 4*time.Second); why != "" {
				t.Errorf("judged by what went beside others: %s", why)
			}
			w.Moved(2, tc.to)
			if why := w.Slow(2, []id.Node{2}, tc.since+2*time.Second, 8, 4*time.Second); (why != "") != tc.slow {
				t.Errorf("%q, want slow: %v", why, tc.slow)
			}
		})
	}
}

// TestBytesSentAgainCountOnce: what is sent for the second time is progress from where the first time had come to.
func TestBytesSentAgainCountOnce(t *testing.T) {
	w := NewPuts(time.Unix(1000, 0), 1000)
	for _, step := range []struct {
		left int64
		beat bool
	}{{-1, true}, {900, true}, {500, true}, {-1, false}, {900, false}, {500, false}, {400, true}, {0, true},
		{100, false}} {
		w.Moved(2, step.left)
		if got := w.Progressed(); got != step.beat {
			t.Errorf("%d left: progress %v, want %v", step.left, got, step.beat)
		}
	}
}

// TestPaceOfAnotherConnection: what goes over another connection is not measured from where the first had come to,
// nor with its pace. A pace is measured for as long as the others took.
func TestPaceOfAnotherConnection(t *testing.T) {
	const mib = 1 << 20
	began := time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		left []int64 // one second each, all of them alone
		slow bool
	}{
		"stalls, ends, and goes well again": {[]int64{900, 899, 1000, 900, 800, 700, 600}, false},
		"stalls, and goes well again":       {[]int64{900, 899, 899, 899, 800, 700, 600}, false},
		"goes slowly all the time":          {[]int64{900, 899, 898, 897, 896, 895, 894}, true},
		"ends, and goes slowly again":       {[]int64{900, 800, 1000, 999, 998, 997, 996, 995}, true},
	} {
		w := NewPuts(began, mib)
		w.Voted(began.Add(4 * time.Second))
		why := ""
		for i, left := range tc.left {
			w.Moved(2, left*mib/1000)
			why += w.Slow(2, []id.Node{2}, time.Duration(i)*time.Second, 8, 4*time.Second)
		}
		if (why != "") != tc.slow {
			t.Errorf("%s: %q, want slow: %v", name, why, tc.slow)
		}
	}
}

// TestSeveralSlowMembers: of four members two have voted after a tenth of a second. What goes to the others shares this
// node's link: they are slow if it is little, and not if it is as much as went to the first.
func TestSeveralSlowMembers(t *testing.T) {
	const mib = 1 << 20
	began := time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		left          int64 // for each, when they are looked at first
		third, fourth int64 // bytes a second
		slow          [2]bool
		votes         time.Duration
	}{
		"both are slow":             {mib, 20 << 10, 30 << 10, [2]bool{true, true}, 100 * time.Millisecond},
		"one is slow, one is not":   {mib, 20 << 10, 400 << 10, [2]bool{true, false}, 100 * time.Millisecond},
		"the link is full":          {80 * mib, 20 << 10, 18 << 20, [2]bool{false, false}, 100 * time.Millisecond},
		"one does not move":         {mib, 0, 20 << 10, [2]bool{false, true}, 100 * time.Millisecond},
		"the votes took no time":    {mib, 20 << 10, 30 << 10, [2]bool{true, true}, 0},
		"one is across, and silent": {mib, mib, 20 << 10, [2]bool{false, true}, 100 * time.Millisecond},
	} {
		w := NewPuts(began, mib)
		w.Voted(began.Add(tc.votes))
		w.Voted(began.Add(tc.votes))
		open, was := []id.Node{3, 4}, [2]bool{}
		for i := range int64(3) {
			for k, pace := range []int64{tc.third, tc.fourth} {
				w.Moved(open[k], max(tc.left-i*pace, 0))
			}
			for k, n := range open {
				was[k] = was[k] || w.Slow(n, open, time.Duration(i)*time.Second, 8, 4*time.Second) != ""
			}
		}
		if was != tc.slow {
			t.Errorf("%s: slow %v, want %v", name, was, tc.slow)
		}
	}
}

// TestConfined: only the time counts in which no other member shared the link, since the clock was first read for these
// members.
func TestConfined(t *testing.T) {
	var p Sharing
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	var c Clock
	reads := func(s int, want time.Duration, open ...id.Node) {
		t.Helper()
		if got := p.Confined(&c, open, at(s)); got != want {
			t.Errorf("at %d s for %v: %v, want %v", s, open, got, want)
		}
	}
	p.Begin(2, at(0))
	reads(1, 0, 2, 3)
	p.Begin(3, at(2))
	p.Begin(3, at(3))
	reads(4, 3*time.Second, 2, 3)
	p.Begin(4, at(5)) // that one is not among them
	reads(7, 4*time.Second, 2, 3)
	p.End(4, at(8))
	reads(9, 5*time.Second, 2, 3)
	p.End(2, at(10))
	p.End(3, at(11)) // one put to 3 is left
	reads(12, 8*time.Second, 2, 3)
	reads(12, 0, 3) // of others: from the begin
	reads(14, 2*time.Second, 3)
	p.End(3, at(15)) // nothing is under way
	reads(20, 3*time.Second, 3)
	if p.Stop(&c); len(p.clocks) != 0 {
		t.Error("a clock is kept")
	}
}
