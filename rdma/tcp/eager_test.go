package tcp

import (
	"testing"
	"time"
)

// hear makes arrivals come, each after a time, and reports whether the watch polls then.
func (e *eagerness) hear(times int, after time.Duration, polling bool) bool {
	for range times {
		e.came(after, polling)
	}
	return e.polls(0)
}

func TestEagerWhereArrivalsComeSoon(t *testing.T) {
	var e eagerness
	if e.polls(0) || e.hear(eagerMin-1, pollFor, false) {
		t.Error("polls before enough has come soon")
	}
	if !e.hear(1, pollFor, false) {
		t.Error("does not poll for what comes soon")
	}
	if e.polls(pollFor) {
		t.Error("polls for longer than pollFor")
	}
	if e.hear(1, pollFor+1, true) || e.hear(eagerMin/2-1, 0, false) {
		t.Error("polls soon after something came late")
	}
	if !e.hear(1, 0, false) {
		t.Error("one late arrival ends the polling for good")
	}
	e.calm()
	if e.polls(0) || e.hear(eagerMin-1, 0, false) || !e.hear(1, 0, false) {
		t.Error("what is not small does not have as many come soon again")
	}
}

// TestEagerAmongOthers: each time that others take the processor it takes longer until the watch polls again, up to a
// bound, and less so after it has polled well.
func TestEagerAmongOthers(t *testing.T) {
	var e eagerness
	e.hear(eagerMin, 0, false)
	for want := 4 * eagerMin; want <= 4*eagerMax; want *= 4 {
		e.lost()
		need := min(want, eagerMax)
		if e.hear(need-1, 0, false) || !e.hear(1, 0, false) {
			t.Fatalf("does not poll after exactly %d arrivals", need)
		}
	}
	if !e.hear(eagerMax, 0, true) || e.need != eagerMin {
		t.Errorf("after polling well %d arrivals are needed", e.need)
	}
}

// TestEagerDefers: others run first where most first looks are in vain, until probes find that this is over, or
// others take long.
func TestEagerDefers(t *testing.T) {
	var e eagerness
	defers := func(looks int, found bool) (n int) {
		for range looks {
			if e.defers() {
				n++
				e.deferred(pollFor)
			} else {
				e.looked(found)
			}
		}
		return n
	}
	if defers(2*deferMin, false) != 0 {
		t.Error("others run first though nothing has come soon")
	}
	e = eagerness{}
	e.hear(eagerMin, 0, false)
	if defers(100, true) != 0 {
		t.Error("others run first though there is something each time")
	}
	if defers(deferMin, false) != 0 {
		t.Error("others run first before enough looks were in vain")
	}
	if n := defers(deferProbe*10, false); n < deferProbe*9 || n >= deferProbe*10 {
		t.Errorf("others ran first %d times of %d, want most but not all", n, deferProbe*10)
	}
	if n := defers(deferProbe*100, true); n > deferProbe*2*deferMin || e.defers() {
		t.Errorf("others ran first %d times of %d after there was something again, and run first on: %v", n, deferProbe*100,
			e.defers())
	}
	defers(2*deferMin, false)
	if e.calm(); e.defers() {
		t.Error("others run first though the watch does not poll")
	}
	e.hear(eagerMin, 0, false)
	for range 6 {
		need := min(4*e.after, deferMax)
		e.deferred(pollFor + 1)
		if defers(need, false) != 0 {
			t.Fatalf("others run first after %d looks in vain, soon after they took long", need)
		}
		if defers(2, false) == 0 {
			t.Fatalf("others do not run first after %d looks in vain", need)
		}
	}
	if defers(2*deferMax, false); e.after != deferMin {
		t.Errorf("%d looks are needed after others took little time", e.after)
	}
}
