package schedule

import "fmt"

// DefaultBlockSize is the block size that Choose takes: of those measured the one with the best order over shaped links, 1.02 of
// iperf3's time for 8 members (docs/BENCHMARKS.md), as filling and draining the pipeline is counted in block times. At this
// size a message of 2^48 bytes has 2^32 blocks.
const DefaultBlockSize = 64 << 10

// Conditions are what a choice of algorithm goes by.
type Conditions struct {
	// Members is the size of the group, the root included.
	Members int
	// Size is the message's length in bytes.
	Size uint64
	// SmallBytes bounds the messages that the group can send straight into posted receives; 0 if it cannot.
	SmallBytes int
	// Racks are the members' racks by rank, or nil if they are not known.
	Racks []int
	// Oversubscription is how many times more the members of a rack can send together than its uplink carries; 0 means 1, an
	// uplink that is never in the way.
	Oversubscription float64
}

// Choice is how to send a message, and why.
type Choice struct {
	// Small says that the message should go straight to the members, not by a schedule.
	Small     bool
	Algorithm Algorithm
	// BlockSize is in bytes.
	BlockSize int
	// Reasons has a sentence for each part of the choice.
	Reasons []string
}

// Choose picks the way to send a message, which the caller is free not to follow. It is a pure function: all members that know
// the same conditions choose the same. It returns ErrInvalid for conditions that cannot be.
func Choose(c Conditions) (Choice, error) {
	if c.Members < 1 || c.Members > MaxMembers || c.Racks != nil && len(c.Racks) != c.Members || c.Oversubscription < 0 {
		return Choice{}, fmt.Errorf("%w: %d members, racks of %d, oversubscription %g", ErrInvalid, c.Members, len(c.Racks), c.Oversubscription)
	}
	choice := Choice{BlockSize: DefaultBlockSize}
	if choice.small(c) {
		return choice, nil
	}
	if !choice.hybrid(c) {
		choice.flat(c.Members)
	}
	choice.because("blocks of %d KiB: the pipeline is filled and drained in block times, so small blocks keep close to the link's time",
		choice.BlockSize>>10)
	return choice, nil
}

func (c *Choice) because(format string, args ...any) {
	c.Reasons = append(c.Reasons, fmt.Sprintf(format, args...))
}

// small takes the way of small messages if the group has it and the message fits.
func (c *Choice) small(of Conditions) bool {
	if of.Size > uint64(max(of.SmallBytes, 0)) || of.Size == 0 {
		return false
	}
	c.Small, c.Algorithm = true, BinomialPipeline
	c.because("small message: %d bytes are within the bound of %d, and straight into posted receives it takes no announcement and no relay by blocks",
		of.Size, of.SmallBytes)
	return true
}

// hybrid takes the hybrid if racks and their uplinks make it the faster one. In block times for each block, the flat pipeline takes
// as long as its share of sends between racks makes the uplinks busy; the hybrid two, or what one crossing in and one out take.
func (c *Choice) hybrid(of Conditions) bool {
	racks, largest := rackShape(of.Racks)
	if racks < 2 || largest < 2 {
		return false
	}
	over := max(of.Oversubscription, 1)
	share := crossing(of.Racks)
	flat, hybrid := max(1, share*over), max(2, over/float64(largest))
	if hybrid >= flat {
		c.because("not the hybrid: with %d racks oversubscribed %.3g times the flat pipeline takes %.2f block times a block, the hybrid %.2f, "+
			"as leaders send each block about twice", racks, over, flat, hybrid)
		return false
	}
	c.Algorithm = Hybrid
	c.because("hybrid: %.0f%% of the flat pipeline's sends cross between %d racks oversubscribed %.3g times, which takes %.2f block times a block; "+
		"the hybrid crosses once for each rack and takes %.2f", 100*share, racks, over, flat, hybrid)
	return true
}

func rackShape(racks []int) (count, largest int) {
	sizes := make(map[int]int)
	for _, rack := range racks {
		sizes[rack]++
		largest = max(largest, sizes[rack])
	}
	return len(sizes), largest
}

// crossing is the share of the flat pipeline's sends that go from one rack to another, found by going through a short message.
func crossing(racks []int) float64 {
	const blocks = 32
	p := Plan{algorithm: BinomialPipeline, members: len(racks), rule: pipeline(len(racks))}
	s := p.Schedule(blocks)
	cross := 0
	for step := range s.Steps() {
		for rank := range racks {
			if to, ok := s.Outgoing(rank, step); ok && racks[to.Peer] != racks[rank] {
				cross++
			}
		}
	}
	return float64(cross) / float64(blocks*(len(racks)-1))
}

// flat takes the binomial pipeline.
func (c *Choice) flat(members int) {
	c.Algorithm = BinomialPipeline
	steps := ceilLog2(members)
	switch {
	case members <= 2:
		c.because("binomial-pipeline: there is nobody to relay, each block is sent once")
	case isPowerOfTwo(members):
		c.because("binomial-pipeline as a hypercube, %d being a power of two: k blocks take k-1+%d steps, the least there can be", members, steps)
	default:
		c.because("binomial-pipeline on a circulant graph, %d being no power of two: k blocks take k-1+%d steps, the least there can be", members, steps)
	}
}
