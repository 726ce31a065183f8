package slow

import (
	"slices"
	"time"
)

// patienceSteps is how many steps of its group a member may miss before it counts as standing still.
const patienceSteps = 4

// Patience is for how long a member of a group may make no step before it counts as standing still: as long as the
// group's own steps take, several times, and not less than least. ok is false while nobody has made a step: then
// nothing is known, and there is nobody to blame.
func Patience(g Group, least time.Duration) (d time.Duration, ok bool) {
	var steps []time.Duration
	for _, m := range g.Members {
		if m.Ready && m.Steps > 0 {
			steps = append(steps, m.Moved.Sub(g.Began)/time.Duration(m.Steps))
		}
	}
	if len(steps) == 0 {
		return 0, false
	}
	slices.Sort(steps)
	return max(least, patienceSteps*Median(steps)), true
}
