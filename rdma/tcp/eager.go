package tcp

import "time"

const (
	// pollFor is how long the watch polls: as long as a round trip to another machine takes, or two wake-ups on a
	// slow one.
	pollFor = 200 * time.Microsecond
	// pollLost is how long others have the processor when there are too many of them for polling.
	pollLost = 500 * time.Microsecond
	// eagerMin and eagerMax bound the arrivals in a row that have to come within pollFor until the watch polls.
	eagerMin = 8
	eagerMax = 4096
	// deferMin and deferMax bound how many more looks have to be in vain than not before others run first. deferProbe
	// is how many times others then run first before a look is made right away again.
	deferMin   = 32
	deferMax   = 4096
	deferProbe = 16
)

// eagerness decides whether the watch polls before it waits: a wake-up costs several times what polling for a few µs
// does, but polling for what does not come, or while others want the processor, is waste. So it polls as long as what
// it waits for mostly comes soon, and after others have had the processor meanwhile, each time four times as much has
// to come soon before it polls again. It also decides whether others have the processor before the first look
// (defers).
type eagerness struct {
	soon int // arrivals within pollFor, up to need; a late one takes half of it away
	need int // from eagerMin to eagerMax; 0 is eagerMin

	// looks right after something was served: the vain ones less the others, from 0 to 2*after
	vain  int
	after int // from deferMin to deferMax; 0 is deferMin
	left  int // times that others run first until a look is made right then
}

// came notes an arrival, after a time in which nothing else had come.
func (e *eagerness) came(after time.Duration, polling bool) {
	e.need = max(e.need, eagerMin)
	if after > pollFor {
		e.soon = max(e.soon-e.need/2, 0)
		return
	}
	if polling {
		e.need = max(e.need-1, eagerMin)
	}
	e.soon = min(e.soon+1, e.need)
}

// calm resets the count of arrivals that came soon: as many must come again before the watch polls.
func (e *eagerness) calm() { e.soon = 0 }

// lost notes that others have had the processor for longer than pollLost.
func (e *eagerness) lost() {
	e.soon, e.need = 0, min(4*max(e.need, eagerMin), eagerMax)
}

// polls reports whether to poll when nothing has come for a while.
func (e *eagerness) polls(silent time.Duration) bool {
	return e.need > 0 && e.soon == e.need && silent < pollFor
}

// looked notes whether there was something right after something else had been served.
func (e *eagerness) looked(found bool) {
	e.after = max(e.after, deferMin)
	if found {
		e.vain = max(e.vain-1, 0)
	} else {
		e.vain = min(e.vain+1, 2*e.after)
	}
}

// defers reports whether other processes should run before a first look: where each waits for what another one makes
// of what it was sent, nothing has come by then, and it takes a few µs to learn that while they wait for the
// processor.
func (e *eagerness) defers() bool {
	if !e.polls(0) || e.after == 0 || e.vain < e.after {
		return false
	}
	if e.left == 0 {
		e.left = deferProbe
		return false
	}
	e.left--
	return true
}

// deferred notes for how long others ran first. If others have more to do than to answer, they run when nothing has
// come, as always, and each time it takes four times as many looks in vain until they run first again.
func (e *eagerness) deferred(silent time.Duration) {
	if silent > pollFor {
		e.vain, e.after = 0, min(4*e.after, deferMax)
	} else {
		e.after = max(e.after-1, deferMin)
	}
}
