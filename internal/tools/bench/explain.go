package bench

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// choose is schedule.Choose with names of the command line: Auto leaves the algorithm to it.
func choose(name string, of schedule.Conditions) (schedule.Choice, error) {
	if !strings.EqualFold(name, Auto) {
		a, err := parseAlgorithm(name)
		if err != nil {
			return schedule.Choice{}, err
		}
		of.Algorithm = a
	}
	if of.Algorithm == schedule.Hybrid {
		return schedule.Choice{},
			usage("hybrid needs the racks of the members, which no flag tells: take another algorithm, or auto")
	}
	choice, err := schedule.Choose(of)
	if err != nil && of.Algorithm != 0 {
		return choice, usage("%v has no schedule for %d members: take twin or circulant, or a power of two", of.Algorithm,
			of.Members)
	}
	return choice, err
}

// Bounds of the schedules that Explain shows step by step.
const (
	explainMembers = 16
	explainSteps   = 10
)

// Explain returns the reason why a case is sent as it is, and shows the first steps of its schedule in small groups.
func Explain(c Case) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d members, messages of %s, senders %d:\n", c.Members, units.Exact(c.Size), c.Senders)
	for _, why := range c.Reasons {
		fmt.Fprintf(&b, "  %s\n", why)
	}
	if c.measuresLinks() {
		b.WriteString("  a run measures the pace of the links first, and may take larger blocks then, or the chain if the " +
			"processor bounds it; --link-rate tells it\n")
	}
	if c.Small {
		return b.String()
	}
	k := rdmc.BlockCount(c.Size, c.BlockSize)
	plan, err := schedule.NewPlan(c.Algorithm, c.Members)
	if err != nil {
		fmt.Fprintf(&b, "  %v\n", err)
		return b.String()
	}
	s := plan.Message(1, k)
	least := k - 1 + uint64(bits.Len(uint(c.Members-1)))
	fmt.Fprintf(&b, "  blocks: %d, steps: %d; no schedule has fewer than %d\n", k, s.Steps(), least)
	if c.Members <= explainMembers {
		explainSchedule(&b, s)
	}
	return b.String()
}

func explainSchedule(b *strings.Builder, s schedule.Schedule) {
	shown := min(s.Steps(), explainSteps)
	for step := range shown {
		fmt.Fprintf(b, "  step %d:", step)
		for rank := range s.Members() {
			if t, ok := s.Outgoing(rank, step); ok {
				fmt.Fprintf(b, "  %d -b%d-> %d", rank, t.Block, t.Peer)
			}
		}
		b.WriteByte('\n')
	}
	if shown < s.Steps() {
		fmt.Fprintf(b, "  and so on, to step %d\n", s.Steps()-1)
	}
}
