package share

import "github.com/rdmcfs/rdmcfs/replicate/schedule"

// partMin bounds what Cost makes of ranks that relay few blocks.
const partMin = 0.25

// Costs is what a byte costs a rank, in Units. A rank that relays only a part of the blocks needs only that part of the
// bytes to keep the pace of a group, and others need not wait until it has had as many bytes as they. A rank that sends
// a single block three times needs them all. A rank that sends each block of a long message several times, by an
// algorithm that does not relay, gets no more for it.
type Costs struct {
	Single int64 // of a message of one block
	Long   int64 // of one of more blocks: such messages overlap, so that even short ones go as a long one does
	Leaf   bool  // long messages end here: nothing is relayed
}

// NewCosts is what a byte costs a rank of the plan.
func NewCosts(plan *schedule.Plan, rank int) Costs {
	part := plan.Part(rank, schedule.PartBlocks)
	return Costs{Single: Cost(plan.Part(rank, 1)), Long: Cost(min(1, part)), Leaf: part == 0}
}

// Of is the cost of a byte of a message of so many blocks.
func (c Costs) Of(blocks uint64) int64 {
	if blocks == 1 {
		return c.Single
	}
	return c.Long
}

// Cost is what a byte costs a member that sends a part of the bytes of a message (2 if it sends each twice), in Units.
func Cost(part float64) int64 { return max(1, int64(Unit/max(part, partMin))) }
