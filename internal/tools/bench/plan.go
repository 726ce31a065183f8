package bench

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// ErrUsage is matched by errors that another command line would avoid; their text says how.
var ErrUsage = errors.New("bench: unusable options")

// Bounds of a plan.
const (
	maxProcesses = 1024
	maxCases     = 10_000
	maxRounds    = 1_000_000
	// maxBatch is a little below what a group queues.
	maxBatch = 4000
	// maxQueue is what a queue pair holds over TCP; it bounds a window and the sends outstanding.
	maxQueue = 1 << 14
)

// Auto is the algorithm that stands for the choice of [schedule.Choose].
const Auto = "auto"

// Plan is what a run measures: each combination of its lists is a case. All members of a run must have the same plan.
type Plan struct {
	// Members is how many processes take part.
	Members int `json:"members"`
	// GroupSizes are sizes of groups, each at most Members; none means Members.
	GroupSizes []int `json:"group_sizes,omitempty"`
	// Sizes are bytes per message.
	Sizes []uint64 `json:"sizes"`
	// BlockSizes are bytes per block; 0 means the choice of schedule.Choose.
	BlockSizes []int `json:"block_sizes"`
	// Algorithms are names that schedule.ParseAlgorithm takes, or Auto.
	Algorithms []string `json:"algorithms"`
	// Senders says how many members send at once, each in a group of its own with the same members: one, half, all.
	Senders []string `json:"senders"`
	// Rounds is how often each case is measured, Batch how many messages each sender sends in a round.
	// Depth is how many of them it has under way at once, 0 all.
	Rounds int `json:"rounds"`
	Batch  int `json:"batch"`
	Depth  int `json:"depth,omitempty"`

	// LinkRate is how many bytes a second a link carries; 0 if it is to be measured when the choice of blocks needs it.
	LinkRate float64 `json:"link_rate,omitempty"`
	// LinkBusy is the part of a processor's time that the busier end of such a link spends; 0 if it is not known.
	LinkBusy float64 `json:"link_busy,omitempty"`

	// Congestion is the congestion control of our sockets, as tcp.Config has it.
	Congestion string `json:"congestion,omitempty"`
	// Window, Grants and MaxSends are those of rdmc.GroupConfig; 0 leaves them to schedule.Choose and the library.
	Window   int `json:"window,omitempty"`
	Grants   int `json:"grants,omitempty"`
	MaxSends int `json:"max_sends,omitempty"`
}

// Case is one thing that is measured.
type Case struct {
	Members int    `json:"members"`
	Senders int    `json:"senders"`
	Size    uint64 `json:"message_bytes"`
	schedule.Choice
	// LinkRate is how many bytes a second a link carries, as given or as measured; 0 if that is not known.
	LinkRate float64 `json:"link_bytes_per_second,omitempty"`
	// LinkBusy is the part of a processor's time that the busier end of a link spent when LinkRate was measured; 0 if
	// that is not known.
	LinkBusy float64 `json:"link_busy,omitempty"`

	Grants   int `json:"grants,omitempty"`
	MaxSends int `json:"max_sends,omitempty"`
	Rounds   int `json:"rounds"`
	Batch    int `json:"batch"`
	Depth    int `json:"depth"`

	// Asked is what Choice was made from.
	Asked schedule.Conditions `json:"-"`
}

// measuresLinks says that the choice would be better if the pace of the links were known.
func (c Case) measuresLinks() bool {
	return c.Asked.LinkRate == 0 && (c.Asked.BlockSize == 0 || c.Asked.Algorithm == 0) && !c.Small &&
		c.Size > schedule.DefaultBlockSize
}

func usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUsage, fmt.Sprintf(format, args...))
}

// Cases lists the plan's cases in the order in which they are measured. Its errors match ErrUsage.
func (p Plan) Cases() ([]Case, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	var cases []Case
	for _, n := range p.groupSizes() {
		for _, who := range p.Senders {
			senders, err := senderCount(who, n)
			if err != nil {
				return nil, err
			}
			for _, size := range p.Sizes {
				some, err := p.casesOf(n, senders, size)
				if err != nil {
					return nil, err
				}
				cases = append(cases, some...)
			}
		}
	}
	if len(cases) > maxCases {
		return nil, usage("%d cases, at most %d: give shorter lists", len(cases), maxCases)
	}
	return cases, nil
}

func (p Plan) depth() int {
	if p.Depth == 0 {
		return p.Batch
	}
	return min(p.Depth, p.Batch)
}

func (p Plan) groupSizes() []int {
	if len(p.GroupSizes) == 0 {
		return []int{p.Members}
	}
	return p.GroupSizes
}

// casesOf returns the cases of one group, number of senders and message size.
func (p Plan) casesOf(n, senders int, size uint64) ([]Case, error) {
	var out []Case
	for _, name := range p.Algorithms {
		for _, block := range p.BlockSizes {
			c := Case{Members: n, Senders: senders, Size: size, LinkRate: p.LinkRate, LinkBusy: p.LinkBusy,
				Grants: p.Grants, MaxSends: p.MaxSends, Rounds: p.Rounds, Batch: p.Batch, Depth: p.depth()}
			c.Asked = schedule.Conditions{Members: n, Size: size, SmallBytes: rdmc.DefaultSmallBytes, LinkRate: p.LinkRate,
				LinkBusy: p.LinkBusy, Copies: true, BlockSize: block, Window: p.Window}
			var err error
			if c.Choice, err = choose(name, c.Asked); err != nil {
				return nil, err
			}
			if !c.Small && !strings.EqualFold(name, Auto) {
				c.Asked.Algorithm = c.Algorithm
			}
			if rdmc.BlockCount(size, c.BlockSize) > rdmc.MaxMessageBlocks {
				return nil, usage("%d bytes make more than %d blocks of %d: take a larger block", size,
					uint64(rdmc.MaxMessageBlocks), c.BlockSize)
			}
			out = append(out, c)
		}
	}
	return out, nil
}

func (p Plan) check() error {
	switch {
	case p.Members < 2 || p.Members > maxProcesses:
		return usage("%d members: give --members 2 to %d", p.Members, maxProcesses)
	case len(p.Sizes) == 0 || len(p.BlockSizes) == 0 || len(p.Algorithms) == 0 || len(p.Senders) == 0:
		return usage("an empty list of sizes, blocks, algorithms or senders")
	case p.Rounds < 1 || p.Rounds > maxRounds:
		return usage("%d rounds: give --count 1 to %d", p.Rounds, maxRounds)
	case p.Batch < 1 || p.Batch > maxBatch:
		return usage("%d messages in a round: give --batch 1 to %d", p.Batch, maxBatch)
	case p.Depth < 0:
		return usage("%d messages under way at once: give --depth 1 or more; 0 is all of the batch", p.Depth)
	case !(p.LinkRate >= 0) || math.IsInf(p.LinkRate, 0):
		return usage("links of %g bytes a second: give --link-rate a size like 25MB; without it links are measured",
			p.LinkRate)
	case p.Window == 1 || p.Window < 0 || p.Grants < 0 || p.MaxSends < 0 || max(p.Window, p.MaxSends) > maxQueue:
		return usage("--window must be 2 to %d, --grants at least 1, --sends 1 to %[1]d; 0 leaves the choice to the program",
			maxQueue)
	}
	for _, n := range p.GroupSizes {
		if n < 2 || n > p.Members {
			return usage("a group of %d with %d members: give --groups 2 to %d, or more --members", n, p.Members, p.Members)
		}
	}
	for _, size := range p.Sizes {
		if size < 1 || size > rdmc.MaxMessageBytes {
			return usage("a message of %d bytes: give --sizes 1 to 256TiB", size)
		}
	}
	for _, block := range p.BlockSizes {
		if block < 0 || block > rdmc.MaxBlockSize {
			return usage("a block of %d bytes: give --blocks 1 to 64MiB, or auto", block)
		}
	}
	return nil
}

// senderCount is how many of n members send.
func senderCount(who string, n int) (int, error) {
	switch strings.ToLower(who) {
	case "one":
		return 1, nil
	case "half":
		return (n + 1) / 2, nil
	case "all":
		return n, nil
	}
	return 0, usage("senders %q: give one, half or all", who)
}

// parseAlgorithm is schedule.ParseAlgorithm with an error for the command line.
func parseAlgorithm(name string) (schedule.Algorithm, error) {
	a, err := schedule.ParseAlgorithm(name)
	if err != nil {
		return 0, usage("algorithm %q: give auto, all, or some of %s", name, strings.Join(AlgorithmNames(), ", "))
	}
	return a, nil
}

// AlgorithmNames are the names of all algorithms.
func AlgorithmNames() []string {
	var names []string
	for _, a := range schedule.Algorithms() {
		names = append(names, a.String())
	}
	return names
}

// AllAlgorithms returns the names of the algorithms that have a schedule for each of the plan's groups.
func (p Plan) AllAlgorithms() []string {
	return slices.DeleteFunc(AlgorithmNames(), func(name string) bool {
		return slices.ContainsFunc(p.groupSizes(), func(n int) bool {
			_, err := choose(name, schedule.Conditions{Members: n, Size: 1})
			return err != nil
		})
	})
}

// Memory is how many bytes of messages a number of members hold in the plan's largest case; larger results are cut to
// the largest int64.
func (p Plan) Memory(members int) (uint64, error) {
	cases, err := p.Cases()
	if err != nil {
		return 0, err
	}
	var most uint64
	for _, c := range cases {
		most = max(most, c.memory())
	}
	return atMost(uint64(members), most), nil
}

func (c Case) memory() uint64 { return atMost(uint64(c.Senders)*uint64(c.Batch), c.Size) }

// atMost is a product, or the largest int64.
func atMost(a, b uint64) uint64 {
	if high, low := bits.Mul64(a, b); high == 0 {
		return min(low, math.MaxInt64)
	}
	return math.MaxInt64
}
