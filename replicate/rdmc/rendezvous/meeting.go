package rendezvous

import (
	"slices"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// bloodlessMax is how many epochs in a row may fail without costing a member.
const bloodlessMax = 3

// verdict is who is out after a group failed, as members of the session; ids are the group's by rank. The root asks
// it, so the root lives: where it is a suspect, the member that reported it is out in its place. fatal says that no
// other group would help: the root's source has an error.
func verdict(failure *rdmc.GroupError, ids []int) (out []int, fatal bool) {
	if failure.Reason == rdmc.ReasonSource {
		return nil, true
	}
	for _, rank := range failure.Suspects {
		if rank == 0 {
			rank = failure.Reporter
		}
		if rank > 0 && rank < len(ids) && !slices.Contains(out, ids[rank]) {
			out = append(out, ids[rank])
		}
	}
	return out, false
}

// rootSuspected reports whether a failure says that the root is gone.
func rootSuspected(failure *rdmc.GroupError) bool { return slices.Contains(failure.Suspects, 0) }

// absent is the ranks of a group's members that are not among those who are called.
func absent(ids, called []int) (ranks []int) {
	for rank, id := range ids {
		if !slices.Contains(called, id) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// roll is who has been called to a meeting, and who came.
type roll struct {
	awaited map[int]bool
	came    map[int]rdmc.Ranges // with what they have
}

func newRoll(ids []int) *roll {
	r := &roll{awaited: make(map[int]bool), came: make(map[int]rdmc.Ranges)}
	for _, id := range ids {
		if id != 0 {
			r.awaited[id] = true
		}
	}
	return r
}

// come notes a member with what it has.
func (r *roll) come(id int, have rdmc.Ranges) {
	if r.awaited[id] {
		delete(r.awaited, id)
		r.came[id] = have
	}
}

// gone notes that a member will not come, or has left again.
func (r *roll) gone(id int) {
	delete(r.awaited, id)
	delete(r.came, id)
}

// all reports whether nobody is awaited any more.
func (r *roll) all() bool { return len(r.awaited) == 0 }

// present is the root and who came, in order.
func (r *roll) present() []int {
	ids := []int{0}
	for id := range r.came {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// lacking is the blocks of a message that one of those who came lacks.
func (r *roll) lacking(blocks uint64) rdmc.Ranges {
	var sets []rdmc.Ranges
	for _, have := range r.came {
		sets = append(sets, have.Missing(blocks))
	}
	all := rdmc.Union(sets...)
	if len(all) > maxRuns {
		return rdmc.AllBlocks(blocks)
	}
	return all
}

// algorithmFor is the algorithm for a group of n: the one asked for, where it has a schedule for n.
func algorithmFor(asked schedule.Algorithm, n int) schedule.Algorithm {
	if asked == 0 || asked == schedule.Hybrid {
		return schedule.BinomialPipeline
	}
	if _, err := schedule.NewPlan(asked, n); err != nil {
		return schedule.BinomialPipeline
	}
	return asked
}
