package slow

import (
	"testing"
	"time"
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
			w := NewPuts(began)
			w.Moved(2, tc.from)
			if tc.vote > 0 {
				w.Voted(at(tc.vote))
			}
			if why := w.Slow(2, tc.since, 8, 4*time.Second); why != "" {
				t.Errorf("judged by what went beside others: %s", why)
			}
			w.Moved(2, tc.to)
			if why := w.Slow(2, tc.since+2*time.Second, 8, 4*time.Second); (why != "") != tc.slow {
				t.Errorf("%q, want slow: %v", why, tc.slow)
			}
		})
	}
}

// TestBytesSentAgainCountOnce: what is sent for the second time is progress from where the first time had come to.
func TestBytesSentAgainCountOnce(t *testing.T) {
	w := NewPuts(time.Unix(1000, 0))
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
		w := NewPuts(began)
		w.Voted(began.Add(4 * time.Second))
		why := ""
		for i, left := range tc.left {
			w.Moved(2, left*mib/1000)
			why += w.Slow(2, time.Duration(i)*time.Second, 8, 4*time.Second)
		}
		if (why != "") != tc.slow {
			t.Errorf("%s: %q, want slow: %v", name, why, tc.slow)
		}
	}
}
