package schedule

import (
	"fmt"
	"math/bits"
)

// DefaultBlockSize is the block size that Choose takes for links that are slow, or whose pace is not known: of the
// measured sizes the one with the best order over shaped links, 1.02 of iperf3's time for 8 members
// (docs/BENCHMARKS.md), as filling and draining the pipeline is counted in block times. At this size a message of 2^48
// bytes has 2^32 blocks.
const DefaultBlockSize = 64 << 10

// What blocks are chosen by.
const (
	blockSizeMax = 1 << 20
	// slowRate is the pace, in bytes a second, up to which a processor is hardly busy with blocks of DefaultBlockSize.
	slowRate = 2e9 / 8
	// blocksPerSecond is the pace of blocks on faster links: each takes a millisecond.
	blocksPerSecond = 1000
	// driftBlocks is how many blocks larger than DefaultBlockSize a message should have where the pace of the links
	// is not known: members drift apart by some twenty, which is under 1% of it
	// (docs/decisions/001-tcp-congestion.md).
	driftBlocks = 2048
	// windowMin and windowMax bound a window that is given in bytes.
	windowMin = 16
	windowMax = 64
	// blocksMin is how many blocks larger than DefaultBlockSize a message should have, for the fill of the pipeline
	// to stay small.
	blocksMin = 32
	// fastRate is the pace, in bytes a second, from which the processor and not the link bounds what a relay moves if
	// it has to copy.
	fastRate = 20e9 / 8
	// busyShare is the part of a processor's time that one end of a link spends on it, from which the processor
	// bounds the link: a relay receives and sends.
	busyShare = 0.4
	// callExtra is what a session of a group costs beyond its bytes, as bytes on the root's link: it is announced and
	// begun at each member, and its first block is relayed. At 100 Mbit/s this is 21 ms
	// (docs/decisions/050-small-by-group.md).
	callExtra = 256 << 10
)

// Conditions are what a choice depends on.
type Conditions struct {
	// Members is the size of the group, the root included.
	Members int
	// Size is the message's length in bytes.
	Size uint64
	// SmallBytes bounds the messages that the group can send straight into posted receives; 0 if it cannot.
	SmallBytes int
	// CallBytes bounds the messages that can go to each member in a call of its own; 0 if none can.
	CallBytes int
	// Queued is how many bytes of other messages go first on the group.
	Queued uint64
	// LinkRate is how many bytes a second a link carries from one member to another; 0 if it is not known.
	LinkRate float64
	// LinkBusy is the part of a processor's time that the busier end of such a link spends at LinkRate; 0 if it is
	// not known.
	LinkBusy float64
	// Copies says that the processor moves the bytes, as with TCP, not the network card.
	Copies bool
	// Racks are the members' racks by rank, or nil if they are not known.
	Racks []int
	// Oversubscription is how many times more the members of a rack can send together than its uplink carries; 0
	// means 1, an uplink that is never in the way.
	Oversubscription float64
	// BlockMax is how many bytes the blocks of a long message may have where LinkRate is not known; 0 means
	// DefaultBlockSize.
	BlockMax int
	// WindowBytes is the memory in which a group should have room to relay from; 0 leaves it to the number of
	// neighbours.
	WindowBytes int

	// Algorithm, BlockSize and Window are what the caller has chosen itself; 0 leaves it to Choose. If the caller has
	// chosen an algorithm no message is small, and none goes by calls.
	Algorithm Algorithm
	BlockSize int
	Window    int
}

// Choice is how to send a message, and why.
type Choice struct {
	// Small says that the message should go straight to the members, not by a schedule.
	Small bool `json:"small,omitempty"`
	// Calls says that the message should go to each member in a call of its own, without the group: there are no blocks
	// and no window.
	Calls     bool      `json:"calls,omitempty"`
	Algorithm Algorithm `json:"algorithm"`
	// BlockSize is in bytes.
	BlockSize int `json:"block_bytes"`
	// Window is how many block buffers a member needs to relay without reading blocks back.
	Window int `json:"window"`
	// Reasons has a sentence for each part of the choice.
	Reasons []string `json:"-"`
}

// Choose picks the way to send a message, which the caller is free not to follow. It is a pure function: all members
// that know the same conditions choose the same. It returns ErrInvalid for conditions that cannot be.
func Choose(c Conditions) (Choice, error) {
	if c.Members < 1 || c.Members > MaxMembers || c.Racks != nil && len(c.Racks) != c.Members ||
		!(c.Oversubscription >= 0) || !(c.LinkRate >= 0) || !(c.LinkBusy >= 0) || c.BlockSize < 0 || c.Window < 0 ||
		c.BlockMax < 0 || c.WindowBytes < 0 || c.CallBytes < 0 {
		return Choice{},
			fmt.Errorf("%w: %d members, racks of %d, oversubscription %g, links of %g bytes a second that take %g of a "+
				"processor, blocks of %d (%d at most) bytes, window of %d (%d bytes), calls of %d bytes",
				ErrInvalid, c.Members, len(c.Racks), c.Oversubscription, c.LinkRate, c.LinkBusy, c.BlockSize, c.BlockMax, c.Window,
				c.WindowBytes, c.CallBytes)
	}
	var choice Choice
	if choice.calls(c) {
		return choice, nil
	}
	if err := choice.algorithm(c); err != nil {
		return Choice{}, err
	}
	choice.block(c)
	choice.window(c)
	return choice, nil
}

func (c *Choice) algorithm(of Conditions) error {
	if of.Algorithm == 0 {
		if !c.small(of) && !c.hybrid(of) {
			c.flat(of)
		}
		return nil
	}
	var err error
	if of.Algorithm == Hybrid {
		_, err = NewHybridPlan(of.Racks)
	} else {
		_, err = NewPlan(of.Algorithm, of.Members)
	}
	c.Algorithm = of.Algorithm
	c.because("%v: as asked for", of.Algorithm)
	return err
}

// block takes blocks that are small beside the message and the link, as log2 n of them fill the pipeline and members
// drift apart by some twenty (docs/decisions/001-tcp-congestion.md), and no smaller than that, since each costs
// processor time.
func (c *Choice) block(of Conditions) {
	c.BlockSize = DefaultBlockSize
	switch {
	case of.BlockSize > 0:
		c.BlockSize = of.BlockSize
		c.because("blocks of %d bytes: as asked for", of.BlockSize)
	case c.Small || of.Size <= DefaultBlockSize:
		c.because("blocks of %d KiB: the message is no longer than one", DefaultBlockSize>>10)
	case of.LinkRate == 0 && of.BlockMax > DefaultBlockSize:
		c.BlockSize = longBlock(of)
		c.because("blocks of %d KiB: the pace of the links is not known; they grow with the message, up to %d KiB, while "+
			"it has more than %d of them, "+
			"so that what members drift apart stays under 1%% of it", c.BlockSize>>10, of.BlockMax>>10, driftBlocks)
	case of.LinkRate == 0:
		c.because("blocks of %d KiB: the pace of the links is not known, and small blocks keep close to a slow link's time, "+
			"as the pipeline is filled and drained in block times", DefaultBlockSize>>10)
	case of.LinkRate <= slowRate:
		c.because("blocks of %d KiB: links of %.3g MB/s are slow, so small blocks cost the processor little and keep "+
			"close to the link's time, "+
			"as the pipeline is filled and drained in block times", DefaultBlockSize>>10, of.LinkRate/1e6)
	default:
		c.BlockSize = pacedBlock(of)
		c.because("blocks of %d KiB: on links of %.3g MB/s the processor's time for each block counts; they are about a "+
			"millisecond's bytes, "+
			"at most %d KiB, and no larger than a part in %d of the message", c.BlockSize>>10, of.LinkRate/1e6, blockSizeMax>>10,
			blocksMin)
	}
}

// longBlock is the size of blocks that grow with the message.
func longBlock(of Conditions) int {
	size := DefaultBlockSize
	for size*2 <= of.BlockMax && of.Size/uint64(size) > driftBlocks {
		size *= 2
	}
	return size
}

// pacedBlock is the size of blocks on links that are fast.
func pacedBlock(of Conditions) int {
	size, pace := DefaultBlockSize, int(min(of.LinkRate/blocksPerSecond, blockSizeMax))
	for size < blockSizeMax && size*2 <= pace && uint64(size)*2*blocksMin <= of.Size {
		size *= 2
	}
	return size
}

func (c *Choice) window(of Conditions) {
	if of.Window > 0 {
		c.Window = of.Window
		c.because("window of %d blocks: as asked for", c.Window)
		return
	}
	if of.WindowBytes > 0 {
		c.Window = WindowOf(of.WindowBytes, c.BlockSize)
		c.because("window of %d blocks: about %d KiB to relay from, so that blocks are seldom read back", c.Window,
			of.WindowBytes>>10)
		return
	}
	neighbours := bits.Len(uint(of.Members))
	c.Window = 8 + 2*neighbours
	c.because("window of %d blocks, %d KiB of memory a group: two for each of %d neighbours and 8 for delays, so that "+
		"relays read nothing back",
		c.Window, uint64(c.Window)*uint64(c.BlockSize)>>10, neighbours)
}

// WindowOf is how many blocks of a size have room in so many bytes of window: 16 to 64.
func WindowOf(bytes, blockSize int) int { return min(max(bytes/blockSize, windowMin), windowMax) }

func (c *Choice) because(format string, args ...any) {
	c.Reasons = append(c.Reasons, fmt.Sprintf(format, args...))
}

// calls sends the message to each member in a call of its own if that is less on the root's link than the message, what
// goes before it on the group, and what a session of the group costs.
func (c *Choice) calls(of Conditions) bool {
	if of.Algorithm != 0 || of.CallBytes <= 0 || of.Size > uint64(of.CallBytes) {
		return false
	}
	copies := uint64(of.Members - 1)
	if of.Saved() > 0 {
		c.because("not by calls: %d copies of %d bytes are more on the root's link than one, %d KiB before it, and the "+
			"%d KiB that a session of the group is worth", copies, of.Size, of.Queued>>10, callExtra>>10)
		return false
	}
	c.Calls, c.Algorithm = true, Sequential
	c.because("calls: %d copies of %d bytes are no more on the root's link than one, %d KiB before it, and the %d KiB "+
		"that a session of the group is worth", copies, of.Size, of.Queued>>10, callExtra>>10)
	return true
}

// Saved is how many bytes fewer are on the root's link if the message goes by the group and not by calls, with what is
// queued on the group and what a session of it costs; below 0: how many more.
func (of Conditions) Saved() int64 {
	copies := int64(of.Members - 1)
	return (copies-1)*int64(of.Size) - int64(of.Queued) - callExtra
}

// small sends the message as a small one if the group can and the message fits.
func (c *Choice) small(of Conditions) bool {
	if of.Size > uint64(max(of.SmallBytes, 0)) || of.Size == 0 {
		return false
	}
	c.Small, c.Algorithm = true, BinomialPipeline
	c.because("small message: %d bytes are within the bound of %d, and straight into posted receives it takes no "+
		"announcement and no relay by blocks",
		of.Size, of.SmallBytes)
	return true
}

// hybrid takes the hybrid if racks and their uplinks make it the faster one. In block times for each block, the flat
// pipeline takes as long as its share of sends between racks makes the uplinks busy. The hybrid takes two, or what one
// crossing in and one out take.
func (c *Choice) hybrid(of Conditions) bool {
	racks, largest := rackShape(of.Racks)
	if racks < 2 || largest < 2 {
		return false
	}
	over := max(of.Oversubscription, 1)
	share := crossing(of.Racks)
	flat, hybrid := max(1, share*over), max(2, over/float64(largest))
	if hybrid >= flat {
		c.because("not the hybrid: with %d racks oversubscribed %.3g times the flat pipeline takes %.2f block times a "+
			"block, the hybrid %.2f, "+
			"as leaders send each block about twice", racks, over, flat, hybrid)
		return false
	}
	c.Algorithm = Hybrid
	c.because("hybrid: %.0f%% of the flat pipeline's sends cross between %d racks oversubscribed %.3g times, which "+
		"takes %.2f block times a block; "+
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

// crossing is the share of the flat pipeline's sends that go from one rack to another, found by going through a short
// message.
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

// chain takes the chain if the processor's copies bound the pace and not the links, and the message has enough blocks:
// each member then relays what it has just received, while it is in the cache, which costs the least.
func (c *Choice) chain(of Conditions) bool {
	if !of.Copies || !of.copiesBound() || of.Members <= 2 {
		return false
	}
	size := of.BlockSize
	if size == 0 {
		size = pacedBlock(of)
	}
	if of.Size/uint64(size) < uint64(of.Members-2)*blocksMin {
		return false
	}
	c.Algorithm = Chain
	c.because("chain: links carry the %.3g MB/s that a processor copies, and a relay that hands on what it has just "+
		"received copies from its cache; "+
		"its %d steps to fill are less than a part in %d of the message's", of.LinkRate/1e6, of.Members-2, blocksMin)
	return true
}

// copiesBound reports whether the processor, not the link, bounds what a relay moves if it has to copy.
func (of Conditions) copiesBound() bool {
	return of.LinkRate >= fastRate || of.LinkRate > slowRate && of.LinkBusy >= busyShare
}

// flat takes the binomial pipeline, or the chain.
func (c *Choice) flat(of Conditions) {
	if c.chain(of) {
		return
	}
	members := of.Members
	c.Algorithm = BinomialPipeline
	steps := ceilLog2(members)
	switch {
	case members <= 2:
		c.because("binomial-pipeline: there is nobody to relay, each block is sent once")
	case isPowerOfTwo(members):
		c.because("binomial-pipeline as a hypercube, %d being a power of two: k blocks take k-1+%d steps, the least there "+
			"can be", members, steps)
	default:
		c.because("binomial-pipeline on a circulant graph, %d being no power of two: k blocks take k-1+%d steps, the "+
			"least there can be", members, steps)
	}
}
