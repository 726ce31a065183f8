package slow

import (
	"iter"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/units"
)

// members returns the members of groups that a filter takes.
func members(groups []Group, take func(*Member) bool) iter.Seq[*Member] {
	return func(yield func(*Member) bool) {
		for i := range groups {
			for k := range groups[i].Members {
				if m := &groups[i].Members[k]; take(m) && !yield(m) {
					return
				}
			}
		}
	}
}

func everybody(*Member) bool { return true }

// pace is what a member has received a second, in bytes, while there was something to receive.
func (j *Judge) pace(now time.Time, m *Member) float64 {
	end := now
	if m.Done.After(j.since) {
		end = m.Done
	}
	return units.PerSecond(m.Bytes-j.marks[m.Node].Bytes, end.Sub(j.since))
}

// paces returns the paces of the members that a filter takes and that were not left out, in ascending order. A member
// that had everything before the comparison has none.
func (j *Judge) paces(now time.Time, groups []Group, take func(*Member) bool) (list []float64) {
	for m := range members(groups, take) {
		if !m.Out && (m.Done.IsZero() || m.Done.After(j.since)) {
			list = append(list, j.pace(now, m))
		}
	}
	slices.Sort(list)
	return list
}

// enough reports whether the members that a filter takes have made steps enough for a comparison, in the median, or
// have everything.
func (j *Judge) enough(groups []Group, take func(*Member) bool) bool {
	few, all := 0, 0
	for m := range members(groups, take) {
		if m.Out {
			continue
		}
		if all++; m.Ready && m.Bytes-j.marks[m.Node].Bytes < stepsLeast*j.lim.Step {
			few++
		}
	}
	return 2*few <= all
}

// doubt is how much higher a pace may be than it looks: the step that is on its way has not been reported.
func (j *Judge) doubt(now time.Time) float64 { return units.PerSecond(j.lim.Step, now.Sub(j.since)) }

// rest is how long the members that a filter takes still need for their blocks, at most, at a pace.
func rest(groups []Group, take func(*Member) bool, pace float64) time.Duration {
	most := int64(0)
	for i := range groups {
		for m := range members(groups[i:i+1], take) {
			if groups[i].Up && m.Ready {
				most = max(most, groups[i].Bytes-m.Bytes)
			}
		}
	}
	const forEver = 1000 * time.Hour
	if pace <= 0 {
		return forEver
	}
	return time.Duration(min(float64(most)/pace*float64(time.Second), float64(forEver)))
}

// Median of a sorted list, the lower one of two; 0 of none.
func Median[T float64 | time.Duration](list []T) T {
	if len(list) == 0 {
		return 0
	}
	return list[(len(list)-1)/2]
}
