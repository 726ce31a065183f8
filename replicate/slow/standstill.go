package slow

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/meta/id"
)

const (
	// patienceOthers and patienceOwn are how many steps of the others, and of its own, a member may miss before it
	// counts as standing still.
	patienceOthers = 4
	patienceOwn    = 2
)

// Patience is for how long a member may make no step before it counts as standing still: as long as several steps
// take, by what the members of these groups have made and what it has made itself, and not less than least. known is
// false while nobody has made a step: then there is nobody to blame.
func Patience(groups []Group, node id.Node, least time.Duration) (d time.Duration, known bool) {
	var all []time.Duration
	for i := range groups {
		for _, m := range groups[i].Members {
			if !m.Ready || m.Steps == 0 {
				continue
			}
			step := m.Moved.Sub(groups[i].Began) / time.Duration(m.Steps)
			if all = append(all, step); m.Node == node {
				least = max(least, patienceOwn*step)
			}
		}
	}
	if len(all) == 0 {
		return 0, false
	}
	slices.Sort(all)
	return max(least, patienceOthers*Median(all)), true
}
