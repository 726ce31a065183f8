package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Faults of a FaultPlan.
const (
	// FaultKill kills the victim's process.
	FaultKill = "kill"
	// FaultStop stops it, and has it go on when the others are done.
	FaultStop = "stop"
	// FaultCut cuts the victim's link; without namespaces what it sends and receives is dropped.
	FaultCut = "cut"
	// FaultNone strikes nobody: who is out was left out by mistake.
	FaultNone = "none"
)

// Victims of a FaultPlan.
const (
	// VictimLeaf is the member that sends the fewest blocks on.
	VictimLeaf = "leaf"
	// VictimRelay is the member that sends the most.
	VictimRelay = "relay"
	// VictimRoot is the root.
	VictimRoot = "root"
)

// FaultPlan says what happens to which node while a file is replicated, and when. Blocks and algorithm are what the
// file system chooses.
type FaultPlan struct {
	Members int    `json:"members"`
	Size    uint64 `json:"file_bytes"`
	// Congestion is the congestion control of the sockets, as tcp.Config has it; empty is the daemon's.
	Congestion string `json:"congestion,omitempty"`

	// Fault is one of FaultKill, FaultStop, FaultCut, FaultNone; Victim one of VictimLeaf, VictimRelay,
	// VictimRoot.
	Fault  string `json:"fault"`
	Victim string `json:"victim"`
	// At is the part of the file that the root has begun to send when the victim is struck, 0 to 1.
	At float64 `json:"at"`
	// Hold has the root wait at that point until the victim has been struck, so that a short file is not over before.
	Hold bool `json:"hold,omitempty"`
	// Detect bounds the time until all have heard.
	Detect time.Duration `json:"detect_ns"`
	// Rounds is how many files are sent with FaultNone.
	Rounds int `json:"rounds,omitempty"`
}

const (
	// DefaultDetect is what replication promises of a fault: silence counts after 2 s, and the others are told then.
	DefaultDetect = 3 * time.Second
	minDetect     = 100 * time.Millisecond
	maxDetect     = 10 * time.Minute
	// leastFile is more than what goes to each member in one call: such files have no session.
	leastFile = 1<<20 + 1
	// downAfter is after how long a silent node is declared down, as the daemon's leader does.
	downAfter = 3 * time.Second
)

// Check tells what makes no sense. Its errors match ErrUsage.
func (p FaultPlan) Check() error {
	switch {
	case p.Members < 2 || p.Members > maxProcesses:
		return usage("%d members: give --members 2 to %d", p.Members, maxProcesses)
	case p.Size < leastFile || p.Size > 1<<40:
		return usage("a file of %d bytes: give --sizes above 1MiB, to 1TiB: smaller ones are sent whole to each node", p.Size)
	case !slices.Contains([]string{FaultKill, FaultStop, FaultCut, FaultNone}, p.Fault):
		return usage("--fault %q: give kill, stop, cut or none", p.Fault)
	case !slices.Contains([]string{VictimLeaf, VictimRelay, VictimRoot}, p.Victim):
		return usage("--victim %q: give leaf, relay or root", p.Victim)
	case !(p.At >= 0 && p.At <= 1):
		return usage("--at %g%%: give 0%% to 100%%", 100*p.At)
	case p.Detect < minDetect || p.Detect > maxDetect:
		return usage("--detect %v: give %v to %v", p.Detect, minDetect, maxDetect)
	case p.Members == 2 && p.Fault != FaultNone && p.Victim != VictimRoot:
		return usage("--fault %s of the only other node leaves nobody to send to: give --members 3 or more, or --victim root", p.Fault)
	case p.Fault == FaultNone && (p.Rounds < 1 || p.Rounds > maxRounds):
		return usage("%d rounds: give --count 1 to %d", p.Rounds, maxRounds)
	}
	_, err := p.victim()
	return err
}

// messages is how many are sent in all: the undisturbed one first.
func (p FaultPlan) messages() int {
	if p.Fault == FaultNone {
		return p.Rounds
	}
	return 2
}

// victim is the rank of who is struck, or -1.
func (p FaultPlan) victim() (int, error) {
	if p.Fault == FaultNone {
		return -1, nil
	}
	if p.Victim == VictimRoot {
		return 0, nil
	}
	choice, err := schedule.Choose(schedule.Conditions{Members: p.Members, Size: p.Size})
	if err != nil {
		return 0, usage("%d members: %v", p.Members, err)
	}
	plan, err := schedule.NewPlan(choice.Algorithm, p.Members)
	if err != nil {
		return 0, usage("%v for %d members: %v", choice.Algorithm, p.Members, err)
	}
	leaf, relay := leafAndRelay(plan)
	if p.Victim == VictimLeaf {
		return leaf, nil
	}
	return relay, nil
}

// leafAndRelay are the members that send the fewest and the most blocks of a message that is long enough to tell. Of
// equals the leaf is the last and the relay the first.
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
	Rank   int    `json:"rank"`
	Reason string `json:"reason"`
}

// FaultResult is what was measured of a plan. Times are in seconds from when the victim was struck, unless they say
// otherwise.
type FaultResult struct {
	FaultPlan
	// VictimRank is -1 if nobody was struck.
	VictimRank int `json:"victim_rank"`
	// Undisturbed are the times from the close of a file to its publish without a fault; Total is that with it. 0 if
	// the root was struck.
	Undisturbed []float64 `json:"undisturbed_seconds"`
	Total       float64   `json:"total_seconds"`
	// Told is when each survivor heard of the failure, by rank.
	Told map[int]float64 `json:"told_seconds"`
	// Ended is when the log had ended the session at each survivor, by rank, if the root was struck.
	Ended map[int]float64 `json:"ended_seconds,omitempty"`
	// Verified are the survivors whose bytes are the root's, and still were after a stopped victim had gone on.
	Verified []int `json:"verified"`
	// Out are those that the session left out.
	Out []Lost `json:"out"`
	// VictimHas tells that a victim that went on has the file nevertheless.
	VictimHas bool `json:"victim_has,omitempty"`
	// Groups is how many groups the disturbed session took.
	Groups int `json:"groups"`
}

// ToldLast is when the last survivor heard.
func (r FaultResult) ToldLast() float64 {
	last := 0.0
	for _, s := range r.Told {
		last = max(last, s)
	}
	return last
}

// Ratio is the total time to the undisturbed one.
func (r FaultResult) Ratio() float64 { return r.Total / Median(r.Undisturbed) }

// RatioToBound is the total time to the undisturbed one and the detection bound.
func (r FaultResult) RatioToBound() float64 {
	return r.Total / (Median(r.Undisturbed) + r.Detect.Seconds())
}

// Late tells of a survivor that heard later than the bound.
func (r FaultResult) Late() error {
	if r.ToldLast() > r.Detect.Seconds() {
		return fmt.Errorf("bench: the last survivor heard after %.2f s, bound %v", r.ToldLast(), r.Detect)
	}
	return nil
}

// survivors are the ranks that are not struck.
func (p FaultPlan) survivors(victim int) (ranks []int) {
	for rank := range p.Members {
		if rank != victim {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Check tells what the sessions did wrong: a survivor left out, one that was not told, or bytes that differ
// (ErrDiffers).
func (r FaultResult) Check() error {
	want := r.survivors(r.VictimRank)
	if r.VictimRank == 0 {
		want = nil
	}
	for _, lost := range r.Out {
		if lost.Rank != r.VictimRank {
			return fmt.Errorf("bench: rank %d was left out by mistake: %s", lost.Rank, lost.Reason)
		}
	}
	for _, rank := range r.survivors(r.VictimRank) {
		if _, ok := r.Told[rank]; !ok && r.VictimRank >= 0 {
			return fmt.Errorf("bench: rank %d was never told of the failure", rank)
		}
	}
	if !slices.Equal(r.Verified, want) {
		return fmt.Errorf("%w: ranks %v have the message, want %v", ErrDiffers, r.Verified, want)
	}
	return nil
}

// Cut cuts a node's link, without a word to anybody.
func (l *Links) Cut(ctx context.Context, node int) error {
	if out, err := l.command(ctx, "cut", fmt.Sprint(node)).CombinedOutput(); err != nil {
		return fmt.Errorf("bench: cut node %d: %w: %s", node, err, out)
	}
	return nil
}
