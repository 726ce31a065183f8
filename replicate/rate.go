package replicate

import "time"

const (
	// rateWindow is the time that a rate in status is taken over.
	rateWindow = 3 * time.Second
	// rateStep is the least time between two marks of the window.
	rateStep = 250 * time.Millisecond
)

// recentRate is the rate of something that counts up, over the last rateWindow. The zero value has no marks.
type recentRate struct {
	marks []rateMark // oldest first; at most rateWindow/rateStep and a few
}

type rateMark struct {
	at    time.Time
	bytes int64
}

// restart starts over from a count that is no progress, such as what a member had from an earlier epoch.
func (r *recentRate) restart(now time.Time, bytes int64) {
	r.marks = append(r.marks[:0], rateMark{now, bytes})
}

// perSec takes the count as of now and returns the rate over the window that ends now.
func (r *recentRate) perSec(now time.Time, bytes int64) float64 {
	n := len(r.marks)
	if n == 0 || bytes < r.marks[n-1].bytes {
		r.restart(now, bytes)
		return 0
	}
	if now.Sub(r.marks[n-1].at) >= rateStep {
		r.marks = append(r.marks, rateMark{now, bytes})
	}
	for len(r.marks) > 1 && now.Sub(r.marks[1].at) >= rateWindow {
		r.marks = r.marks[1:]
	}
	took := now.Sub(r.marks[0].at)
	if took <= 0 {
		return 0
	}
	return float64(bytes-r.marks[0].bytes) / took.Seconds()
}

// memberTrack is what status remembers of a member of a transfer between two looks.
type memberTrack struct {
	recent recentRate
	epoch  uint32
	asked  bool  // its answer to the epoch's announcement had not come
	most   int64 // bytes that it has had
}

// look takes what a member has now. It returns what status shows: the most that the member has had, and the present
// rate. What the answer to an announcement says was there before, so it counts as no progress.
func (t *memberTrack) look(now time.Time, epoch uint32, asked bool, bytes int64) (most int64, rate float64) {
	if epoch != t.epoch || asked != t.asked {
		t.recent.restart(now, bytes)
	}
	t.epoch, t.asked = epoch, asked
	t.most = max(t.most, bytes)
	return t.most, t.recent.perSec(now, bytes)
}
