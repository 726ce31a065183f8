package bench

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Choice is how a message is sent.
type Choice struct {
	Algorithm string `json:"algorithm"`
	BlockSize int    `json:"block_bytes"`
	Window    int    `json:"window"`
	// Why gives a reason for each of them.
	Why []string `json:"-"`
}

// Bounds of chosen blocks.
const (
	blockMin = 64 << 10
	blockMax = 1 << 20
	// blocksGoal is how many blocks a message should have: filling and draining a pipeline costs some block times.
	blocksGoal = 1024
	// directBytes bounds what the root sends in all when it sends to each of at most directMembers itself.
	directBytes   = 32 << 10
	directMembers = 16
)

// Choose picks algorithm, block size and window for messages of a size in a group of n members.
func Choose(n int, size uint64) Choice {
	c, err := choose(Auto, n, size, 0, 0)
	if err != nil {
		return Choice{Why: []string{err.Error()}}
	}
	return c
}

// choose fills in what is not given: name Auto, block 0, window 0.
func choose(name string, n int, size uint64, block, window int) (Choice, error) {
	c := Choice{BlockSize: block, Window: window}
	var algorithm schedule.Algorithm
	if strings.EqualFold(name, Auto) {
		algorithm = c.chooseAlgorithm(n, size)
	} else {
		var err error
		if algorithm, err = parseAlgorithm(name); err != nil {
			return c, err
		}
		c.because("algorithm %v: as asked for", algorithm)
	}
	if _, err := schedule.NewPlan(algorithm, n); err != nil {
		return c, usage("%v has no schedule for %d members: take twin or circulant, or a power of two", algorithm, n)
	}
	c.Algorithm = algorithm.String()
	c.chooseBlock(size)
	c.chooseWindow(n)
	return c, nil
}

func (c *Choice) because(format string, args ...any) {
	c.Why = append(c.Why, fmt.Sprintf(format, args...))
}

func (c *Choice) chooseAlgorithm(n int, size uint64) schedule.Algorithm {
	steps := bits.Len(uint(n - 1))
	switch {
	case size*uint64(n-1) <= directBytes && n > 2 && n <= directMembers:
		c.because("algorithm sequential: the root's %d sends, at most %s in all, take less time than relays would add",
			n-1, bytesText(directBytes))
		return schedule.Sequential
	case n&(n-1) == 0:
		c.because("algorithm binomial-pipeline, here the hypercube since %d is a power of two: "+
			"k-1+%d steps for k blocks, the least there can be", n, steps)
	default:
		c.because("algorithm binomial-pipeline, here the circulant since %d is no power of two: "+
			"k-1+%d steps for k blocks, the least there can be", n, steps)
	}
	return schedule.BinomialPipeline
}

func (c *Choice) chooseBlock(size uint64) {
	if c.BlockSize != 0 {
		c.because("blocks of %s: as asked for", bytesText(uint64(c.BlockSize)))
		return
	}
	c.BlockSize = blockMin
	for c.BlockSize < blockMax && size > uint64(c.BlockSize)*blocksGoal {
		c.BlockSize *= 2
	}
	switch {
	case size <= blockMin:
		c.because("blocks of %s: the message is one block", bytesText(uint64(c.BlockSize)))
	case c.BlockSize == blockMax:
		c.because("blocks of %s, the largest chosen: larger ones save no CPU time and overflow the queues of switch ports", bytesText(blockMax))
	default:
		c.because("blocks of %s: about %d to a message make the fill of the pipeline small; under %s the cost of each block shows",
			bytesText(uint64(c.BlockSize)), blocksGoal, bytesText(blockMin))
	}
}

func (c *Choice) chooseWindow(n int) {
	if c.Window != 0 {
		c.because("window of %d blocks: as asked for", c.Window)
		return
	}
	dims := bits.Len(uint(n))
	c.Window = 8 + 2*dims
	c.because("window of %d blocks, %s of memory a group: two for each of %d neighbours and 8 for delays, so that relays read nothing back",
		c.Window, bytesText(uint64(c.Window)*uint64(c.BlockSize)), dims)
}

// Bounds of the schedules that Explain shows step by step.
const (
	explainMembers = 16
	explainSteps   = 10
)

// Explain tells why a case is sent as it is, and shows the first steps of its schedule in small groups.
func Explain(c Case) string {
	var b strings.Builder
	k := rdmc.BlockCount(c.Size, c.BlockSize)
	fmt.Fprintf(&b, "%d members, messages of %s, senders %d:\n", c.Members, bytesText(c.Size), c.Senders)
	for _, why := range c.Why {
		fmt.Fprintf(&b, "  %s\n", why)
	}
	algorithm, err := schedule.ParseAlgorithm(c.Algorithm)
	if err != nil {
		return b.String()
	}
	s, err := schedule.New(algorithm, c.Members, k)
	if err != nil {
		fmt.Fprintf(&b, "  %v\n", err)
		return b.String()
	}
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
