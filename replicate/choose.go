package replicate

import (
	"slices"
	"strconv"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// schedule.Choose chooses how a session sends, as in the benchmark. This file gathers the facts that the choice depends
// on.

// Labels of nodes that the choice looks at.
const (
	// rackLabel names the rack that a node is in.
	rackLabel = "rack"
	// oversubscriptionLabel says how many times more the nodes of a node's rack can send together than the rack's
	// uplink carries.
	oversubscriptionLabel = "oversubscription"
)

const (
	// groupBlockMax bounds the blocks of a group: beyond it the overhead of a block is next to nothing.
	groupBlockMax = 256 << 10
	// windowBytes is about what a group keeps in memory to relay from while messages are under way: enough that
	// blocks are seldom read back from the disk.
	windowBytes = 8 << 20
)

// Blocks of a group are whole chunks of a content, and a part of its blocks.
var _ = [1]struct{}{}[schedule.DefaultBlockSize-content.ChunkBytes]

// groupForm is what the ends of a group have in common. Racks are the racks of its members by rank, for
// schedule.Hybrid, else nil. SendRate caps what each end sends, in bytes a second; 0 is no cap.
type groupForm struct {
	BlockBytes int64
	Algorithm  schedule.Algorithm
	Racks      []int
	SendRate   uint64
	Priority   meta.Priority
}

// chooseForm chooses how so many bytes are sent to the members, the root first, under a policy. It does not know the
// pace of the links. Whether a small message goes by a group is chosen before (chooseWay). It chooses the hybrid only
// if all members have racks and a label says how far uplinks are oversubscribed.
func chooseForm(
	names meta.Reader, members []meta.NodeID, stream int64, policy meta.PolicyID,
) (groupForm, schedule.Choice, error) {
	facts, under, err := factsOf(names, members, stream, policy)
	if err != nil {
		return groupForm{}, schedule.Choice{}, err
	}
	choice, err := schedule.Choose(facts)
	form := formOf(facts, choice, under)
	if form.SendRate > 0 {
		choice.Reasons = append(choice.Reasons, "The policy lets each node send "+units.Rate(float64(form.SendRate))+".")
	}
	if form.Priority != meta.PriorityNormal {
		choice.Reasons = append(choice.Reasons, "The policy gives it "+priorityText(form.Priority)+" priority.")
	}
	return form, choice, err
}

// factsOf is what chooseForm goes by.
func factsOf(
	names meta.Reader, members []meta.NodeID, stream int64, policy meta.PolicyID,
) (schedule.Conditions, meta.Policy, error) {
	under, err := names.Policy(policy)
	if err != nil {
		return schedule.Conditions{}, under, err
	}
	racks, oversubscription := racksOf(names, members)
	blockMax := groupBlockMax
	if under.SendRate > 0 {
		blockMax = schedule.DefaultBlockSize // files of all sizes share a group, and with it the cap
	}
	return schedule.Conditions{
		Members: len(members), Size: uint64(stream), Racks: racks, Oversubscription: oversubscription,
		BlockMax: blockMax, WindowBytes: windowBytes,
	}, under, nil
}

// formOf is the form of a group that is chosen.
func formOf(facts schedule.Conditions, choice schedule.Choice, under meta.Policy) groupForm {
	form := groupForm{BlockBytes: int64(choice.BlockSize), Algorithm: choice.Algorithm, SendRate: under.SendRate,
		Priority: under.Priority}
	if choice.Algorithm == schedule.Hybrid {
		form.Racks = facts.Racks
	}
	return form
}

func priorityText(p meta.Priority) string {
	if p == meta.PriorityLow {
		return "low"
	}
	return "high"
}

// rdmcPriority is a policy's class in terms of the library.
func rdmcPriority(p meta.Priority) rdmc.Priority {
	switch p {
	case meta.PriorityLow:
		return rdmc.PriorityLow
	case meta.PriorityHigh:
		return rdmc.PriorityHigh
	}
	return rdmc.PriorityNormal
}

// racksOf numbers the racks of members by their labels, and returns the largest oversubscription of them. It returns
// nil if a member has no rack.
func racksOf(names meta.Reader, members []meta.NodeID) (racks []int, oversubscription float64) {
	var known []string
	for _, id := range members {
		n, err := names.Node(id)
		if err != nil || n.Labels[rackLabel] == "" {
			return nil, 0
		}
		rack := slices.Index(known, n.Labels[rackLabel])
		if rack < 0 {
			rack, known = len(known), append(known, n.Labels[rackLabel])
		}
		racks = append(racks, rack)
		if over, err := strconv.ParseFloat(n.Labels[oversubscriptionLabel], 64); err == nil && over > 1 && over < 1e6 {
			oversubscription = max(oversubscription, over)
		}
	}
	return racks, oversubscription
}
