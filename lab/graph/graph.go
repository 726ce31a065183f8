// Package graph is the data-flow graph of one member in one message of the multicast (DSN paper, section 2): all its
// receives and sends, as work requests on the queue pairs to its peers, with what each has to wait for. Posted as it
// is, on hardware whose send queues can wait for the receives of another queue pair (CORE-Direct's cross-channel
// requests), it would run without any software action between blocks. No fabric here has such requests
// (docs/decisions/026-offload.md).
//
// The requests of one queue of one queue pair follow each other by Number, which is also the order of steps. Beyond
// that a receive waits for nothing, and a send for the receive that brings its block. So it is a partial order,
// looser than the steps: sends to different peers may overtake each other. It has no cycle, as all that a request
// waits for is of an earlier step.
package graph

import (
	"iter"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Request is a work request of a graph.
type Request struct {
	// Transfer is the block, and the member at the other end of the queue pair.
	schedule.Transfer
	// Sends is true for a send, false for a receive.
	Sends bool
	// Step is the schedule's. A graph has at most one receive and one send in each.
	Step uint64
	// Number is the request's place in its queue: how many of the message's blocks go the same way between the two
	// before it.
	Number uint64
	// Awaits is, for a send of a member that is not the root, the receive that brings the block.
	Awaits Receipt
}

// Receipt names a receive of the same member: the one with number Number, from 0, of the receives from Peer. At the
// root there is none: Peer is -1.
type Receipt struct {
	Peer   int
	Number uint64
}

// Requests goes over a rank's requests in a message of the given number and length in blocks (see
// schedule.Plan.Message), in an order in which they may be posted: by steps, receives first. It remembers a receipt
// for each block that came.
func Requests(plan *schedule.Plan, rank int, number, blocks uint64) iter.Seq[Request] {
	return func(yield func(Request) bool) {
		s := plan.Message(number, blocks)
		sent, came := make([]uint64, plan.Members()), make([]uint64, plan.Members())
		brings := make(map[uint64]Receipt)
		for step := range s.Steps() {
			out, sends := s.Outgoing(rank, step)
			awaits := Receipt{Peer: -1}
			if sends && rank > 0 {
				awaits = brings[out.Block]
			}
			if in, ok := s.Incoming(rank, step); ok {
				brings[in.Block] = Receipt{in.Peer, came[in.Peer]}
				if !yield(Request{Transfer: in, Step: step, Number: came[in.Peer], Awaits: Receipt{Peer: -1}}) {
					return
				}
				came[in.Peer]++
			}
			if !sends {
				continue
			}
			if !yield(Request{Transfer: out, Sends: true, Step: step, Number: sent[out.Peer], Awaits: awaits}) {
				return
			}
			sent[out.Peer]++
		}
	}
}
