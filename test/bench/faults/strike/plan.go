package strike

import (
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Faults of a Plan.
const (
	// Kill kills the victim's process.
	Kill = "kill"
	// Stop stops it, and lets it go on when the others are done.
	Stop = "stop"
	// Cut cuts the victim's link; without namespaces what it sends and receives is dropped.
	Cut = "cut"
	// None strikes nobody: a member that is left out was left out by mistake.
	None = "none"
)

// Victims of a Plan.
const (
	// Leaf is the member that sends the fewest blocks on.
	Leaf = "leaf"
	// Relay is the member that sends the most.
	Relay = "relay"
	// Root is the root.
	Root = "root"
)

// Plan says what happens to which node while a file is replicated, and when. Blocks and algorithm are what the file
// system chooses.
type Plan struct {
	Members int
	Size    uint64 // of the file
	// Congestion is the congestion control of the sockets, as tcp.Config has it; empty is the daemon's.
	Congestion string

	// Fault is one of Kill, Stop, Cut, None; Victim one of Leaf, Relay, Root.
	Fault  string
	Victim string
	// At is the part of the file, 0 to 1, that the root has begun to send when the victim is struck.
	At float64
	// Hold makes the root wait at that point until the victim has been struck, so that a short file is not over before.
	Hold bool
	// Detect bounds the time until all have heard.
	Detect time.Duration
	// Rounds is how many files are sent with None.
	Rounds int
}

const (
	// DefaultDetect is what replication promises for a fault: silence counts after 2 s, and the others get word then.
	DefaultDetect = 3 * time.Second
	minDetect     = 100 * time.Millisecond
	maxDetect     = 10 * time.Minute
	// leastFile is more than what goes to each member in one call: such files have no session.
	leastFile = 1<<20 + 1
	// downAfter is after how long a silent node is declared down, as the daemon's leader does.
	downAfter = 3 * time.Second
	// maxMembers is the most nodes of test/netns/netns.sh.
	maxMembers = 250
)

// Check returns what makes no sense, in the words of the flags of test/bench/faults.
func (p Plan) Check() error {
	switch {
	case p.Members < 2 || p.Members > maxMembers:
		return fmt.Errorf("%d nodes: give -nodes 2 to %d", p.Members, maxMembers)
	case p.Size < leastFile || p.Size > 1<<40:
		return fmt.Errorf("a file of %d bytes: give -size above 1 MiB, to 1 TiB: smaller ones are sent whole to each node",
			p.Size)
	case !slices.Contains([]string{Kill, Stop, Cut, None}, p.Fault):
		return fmt.Errorf("fault %q: want kill, stop, cut or none", p.Fault)
	case !slices.Contains([]string{Leaf, Relay, Root}, p.Victim):
		return fmt.Errorf("victim %q: want leaf, relay or root", p.Victim)
	case !(p.At >= 0 && p.At <= 1):
		return fmt.Errorf("at %g of the file: want 0 to 1", p.At)
	case p.Detect < minDetect || p.Detect > maxDetect:
		return fmt.Errorf("-detect %v: give %v to %v", p.Detect, minDetect, maxDetect)
	case p.Members == 2 && p.Fault != None && p.Victim != Root:
		return fmt.Errorf("%s of the only other node leaves nobody to send to: give -nodes 3 or more", p.Fault)
	case p.Fault == None && p.Rounds < 1:
		return fmt.Errorf("%d rounds: give -rounds 1 or more", p.Rounds)
	}
	_, err := p.victim()
	return err
}

// messages is how many are sent in all: the undisturbed one first.
func (p Plan) messages() int {
	if p.Fault == None {
		return p.Rounds
	}
	return 2
}

// victim returns the rank of the struck member, or -1.
func (p Plan) victim() (int, error) {
	if p.Fault == None {
		return -1, nil
	}
	if p.Victim == Root {
		return 0, nil
	}
	choice, err := schedule.Choose(schedule.Conditions{Members: p.Members, Size: p.Size})
	if err != nil {
		return 0, fmt.Errorf("%d members: %v", p.Members, err)
	}
	plan, err := schedule.NewPlan(choice.Algorithm, p.Members)
	if err != nil {
		return 0, fmt.Errorf("%v for %d members: %v", choice.Algorithm, p.Members, err)
	}
	leaf, relay := leafAndRelay(plan)
	if p.Victim == Leaf {
		return leaf, nil
	}
	return relay, nil
}

// leafAndRelay are the members that send the fewest and the most blocks of a message that is long enough to show that.
// Of equals the leaf is the last and the relay the first.
func leafAndRelay(plan *schedule.Plan) (leaf, relay int) {
	const blocks = 64
	s := plan.Schedule(blocks)
	sends := make([]int, plan.Members())
	for rank := range sends {
		for step := range s.Steps() {
			if _, ok := s.Outgoing(rank, step); ok {
				sends[rank]++
			}
		}
	}
	leaf, relay = 1, 1
	for rank := 2; rank < len(sends); rank++ {
		if sends[rank] <= sends[leaf] {
			leaf = rank
		}
		if sends[rank] > sends[relay] {
			relay = rank
		}
	}
	return leaf, relay
}

// Lost is a node that a session left out, with the reason: it is owed the file.
type Lost struct {
	Rank   int
	Reason string
}

// Result is what was measured of a plan. Times are in seconds from when the victim was struck, unless they say
// otherwise.
type Result struct {
	Plan
	// VictimRank is -1 if nobody was struck.
	VictimRank int
	// Undisturbed are the times from the close of a file to its publish without a fault; Total is that with it. 0 if
	// the root was struck.
	Undisturbed []float64
	Total       float64
	// Told is when each survivor heard of the failure, by rank.
	Told map[int]float64
	// Ended is when the log had ended the session at each survivor, by rank, if the root was struck.
	Ended map[int]float64
	// Verified are the survivors whose bytes are the root's, and still were after a stopped victim had gone on.
	Verified []int
	// Out are the members that the session left out.
	Out []Lost
	// VictimHas says that a victim that went on has the file nevertheless.
	VictimHas bool
	// Groups is how many groups the disturbed session took.
	Groups int
}

// ToldLast is when the last survivor heard.
func (r Result) ToldLast() float64 {
	last := 0.0
	for _, s := range r.Told {
		last = max(last, s)
	}
	return last
}

// Ratio is the total time to the undisturbed one.
func (r Result) Ratio() float64 { return r.Total / bench.Median(r.Undisturbed) }

// RatioToBound is the total time to the undisturbed one and the detection bound.
func (r Result) RatioToBound() float64 {
	return r.Total / (bench.Median(r.Undisturbed) + r.Detect.Seconds())
}

// Late returns an error if a survivor heard later than the bound.
func (r Result) Late() error {
	if r.ToldLast() > r.Detect.Seconds() {
		return fmt.Errorf("strike: the last survivor heard after %.2f s, bound %v", r.ToldLast(), r.Detect)
	}
	return nil
}

// survivors are the ranks that are not struck.
func (p Plan) survivors(victim int) (ranks []int) {
	for rank := range p.Members {
		if rank != victim {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Check returns what the sessions did wrong: a survivor was left out, one did not hear of the fault, or bytes differ
// (bench.ErrDiffers).
func (r Result) Check() error {
	want := r.survivors(r.VictimRank)
	if r.VictimRank == 0 {
		want = nil
	}
	for _, lost := range r.Out {
		if lost.Rank != r.VictimRank {
			return fmt.Errorf("strike: rank %d was left out by mistake: %s", lost.Rank, lost.Reason)
		}
	}
	for _, rank := range r.survivors(r.VictimRank) {
		if _, ok := r.Told[rank]; !ok && r.VictimRank >= 0 {
			return fmt.Errorf("strike: rank %d was never told of the failure", rank)
		}
	}
	if !slices.Equal(r.Verified, want) {
		return fmt.Errorf("%w: ranks %v have the message, want %v", bench.ErrDiffers, r.Verified, want)
	}
	return nil
}
