package schedule

import "iter"

// Graph is the data-flow graph of one member in one message (DSN paper, section 2): all its receives and sends, as work requests
// on the queue pairs to its peers, with what each has to wait for. Posted as it is, on hardware whose send queues can wait for the
// receives of another queue pair (CORE-Direct's cross-channel requests), it runs without any software action between blocks.
//
// The requests of one queue of one queue pair follow each other by Number, which is also the order of steps. Beyond that a receive
// waits for nothing, and a send for the receive that brings its block. So it is a partial order, looser than the steps: sends to
// different peers may overtake each other. It has no cycle, as all that a request waits for is of an earlier step.
//
// Any request is computed in O(log n) from its step, except of a hypercube with twins O(log² n); the graph itself holds nothing. It is a
// value and may be used by several goroutines.
type Graph struct {
	message message
	rank    int
}

// Request is a work request of a graph.
type Request struct {
	// Transfer is who is at the other end of the queue pair, and the block.
	Transfer
	// Sends tells a send from a receive.
	Sends bool
	// Step is the schedule's. A graph has at most one receive and one send in each.
	Step uint64
	// Number is the request's place in its queue: how many of the message's blocks go the same way between the two before it.
	Number uint64
	// Awaits is, for a send of a member that is not the root, the receive that brings the block.
	Awaits Receipt
}

// Receipt names a receive of the same member: number Number, from 0, of those from Peer. At the root there is none: Peer is -1.
type Receipt struct {
	Peer   int
	Number uint64
}

// Graph is the data-flow graph of a rank in a message of the given number and length in blocks (see Message), which costs O(1).
func (p *Plan) Graph(rank int, number, blocks uint64) Graph {
	return Graph{message: p.message(number, blocks), rank: rank}
}

// Steps is that of the schedule.
func (g Graph) Steps() uint64 { return g.message.Steps() }

// Receive is the receive of a step, or false if there is none.
func (g Graph) Receive(step uint64) (Request, bool) {
	t, ok := g.message.Incoming(g.rank, step)
	if !ok {
		return Request{}, false
	}
	return Request{Transfer: t, Step: step, Number: g.message.moves.before(g.rank, t.Peer, step, g.message.blocks), Awaits: Receipt{Peer: -1}}, true
}

// Send is the send of a step, or false if there is none.
func (g Graph) Send(step uint64) (Request, bool) {
	t, ok := g.message.Outgoing(g.rank, step)
	if !ok {
		return Request{}, false
	}
	number := g.message.moves.before(t.Peer, g.rank, step, g.message.blocks)
	return Request{Transfer: t, Sends: true, Step: step, Number: number, Awaits: g.Receipt(t.Block)}, true
}

// Receipt is the receive that brings a block.
func (g Graph) Receipt(block uint64) Receipt {
	if g.rank == 0 {
		return Receipt{Peer: -1}
	}
	r := g.message.moves
	step := r.arrival(g.rank, block, g.message.blocks)
	t, _ := r.incoming(g.rank, step, g.message.blocks)
	return Receipt{Peer: t.Peer, Number: r.before(g.rank, t.Peer, step, g.message.blocks)}
}

// Requests goes over the requests of the steps from first up to, not including, end, in an order in which they may be posted: by steps.
// A caller that posts a window at a time goes on at the step where it stopped.
func (g Graph) Requests(first, end uint64) iter.Seq[Request] {
	return func(yield func(Request) bool) {
		for step := first; step < min(end, g.Steps()); step++ {
			if r, ok := g.Receive(step); ok && !yield(r) {
				return
			}
			if r, ok := g.Send(step); ok && !yield(r) {
				return
			}
		}
	}
}
