package schedule

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// MaxMembers bounds the members of a group.
const MaxMembers = 1 << 16

// ErrInvalid is returned for a group size or algorithm that has no schedule.
var ErrInvalid = errors.New("schedule: invalid")

// Transfer is one side's view of a block that moves in one step.
type Transfer struct {
	// Peer is the rank at the other end: the target of an outgoing block, the source of an incoming one.
	Peer int
	// Block is the position of the block in the message, from 0.
	Block uint64
}

// Schedule is the whole order of transfers of one message. Rank 0 is the root. It is immutable and
// may be used by several goroutines.
type Schedule interface {
	// Members is the size of the group.
	Members() int
	// Blocks is the number of blocks of the message.
	Blocks() uint64
	// Steps is the number of steps; no transfer happens at or after it.
	Steps() uint64
	// Outgoing returns what rank sends in the step, or false if it sends nothing.
	Outgoing(rank int, step uint64) (Transfer, bool)
	// Incoming returns what rank receives in the step, or false if it receives nothing.
	Incoming(rank int, step uint64) (Transfer, bool)
	// Sends returns a span that holds all steps in which rank sends, Receives one that holds all steps in which it
	// receives: outside of them nobody has to look. They leave out what would take long to go over. A few idle steps,
	// and all of a leaf of a pipeline, may be within.
	Sends(rank int) Span
	Receives(rank int) Span
}

// Span is the steps from First to before End.
type Span struct{ First, End uint64 }

// moves are the transfers of one message for one group size; they get the number of blocks with each question, which is
// at least 1. Steps asked about are below steps(k).
type moves interface {
	steps(k uint64) uint64
	outgoing(rank int, step, k uint64) (Transfer, bool)
	incoming(rank int, step, k uint64) (Transfer, bool)
}

// spans is implemented by moves whose ranks are idle for as many steps as there are blocks, or more.
type spans interface {
	sends(rank int, k uint64) Span
	receives(rank int, k uint64) Span
}

// rule is an algorithm for one group size.
type rule interface {
	moves
	// links calls yield for each pair of ranks that a message may need, in any order, repeats allowed.
	links(rank int, yield func(peer int))
}

// Plan is an algorithm for a group of a given size. It is immutable and may be used by several goroutines.
type Plan struct {
	algorithm Algorithm
	members   int
	rule      rule
}

// NewPlan prepares an algorithm for a group of the given size, which costs O(n log n) at most.
// It returns ErrInvalid if the algorithm has no schedule for this size.
func NewPlan(algorithm Algorithm, members int) (*Plan, error) {
	if members < 1 || members > MaxMembers {
		return nil, fmt.Errorf("%w: %d members, want 1 to %d", ErrInvalid, members, MaxMembers)
	}
	r, err := newRule(algorithm, members)
	if err != nil {
		return nil, err
	}
	return &Plan{algorithm: algorithm, members: members, rule: r}, nil
}

func newRule(algorithm Algorithm, members int) (rule, error) {
	if algorithm == Hybrid {
		return nil, fmt.Errorf("%w: hybrid of %d members in unknown racks, NewHybridPlan takes them", ErrInvalid, members)
	}
	if members == 1 {
		return alone{}, algorithm.check()
	}
	switch algorithm {
	case Sequential:
		return sequential{members}, nil
	case Chain:
		return chain{members}, nil
	case BinomialTree:
		return binomialTree{members}, nil
	case Hypercube:
		if !isPowerOfTwo(members) {
			return nil, fmt.Errorf("%w: hypercube of %d members, want a power of two", ErrInvalid, members)
		}
		return newHypercube(members), nil
	case Twin:
		return newTwin(members), nil
	case Circulant:
		return newCirculant(members), nil
	case BinomialPipeline:
		return newSingle(members), nil
	}
	return nil, algorithm.check()
}

// Algorithm is what the plan was made for.
func (p *Plan) Algorithm() Algorithm { return p.algorithm }

// Members is the size of the group.
func (p *Plan) Members() int { return p.members }

// Schedule is the plan applied to a message of the given number of blocks, which costs O(1).
// No blocks make no steps.
func (p *Plan) Schedule(blocks uint64) Schedule { return p.Message(0, blocks) }

// Message is the schedule of a message with a number that all members know: messages of one block may take turns among
// several trees, so that relays share the work.
func (p *Plan) Message(number, blocks uint64) Schedule { return p.message(number, blocks) }

func (p *Plan) message(number, blocks uint64) message {
	m := message{plan: p, moves: p.rule, blocks: blocks}
	if s, ok := p.rule.(single); ok && blocks == 1 {
		m.moves = s.of(number)
	}
	return m
}

// turns is after how many messages of one block their schedules repeat.
func (p *Plan) turns(blocks uint64) uint64 {
	if s, ok := p.rule.(single); ok && blocks == 1 {
		return uint64(len(s.trees))
	}
	return 1
}

// Neighbours lists, ascending, the ranks that a rank exchanges blocks with in any message.
func (p *Plan) Neighbours(rank int) []int {
	var peers []int
	p.rule.links(rank, func(peer int) { peers = append(peers, peer) })
	slices.Sort(peers)
	return slices.Compact(peers)
}

// Tree spans the members along neighbours with few hops: it returns each rank's parent, -1 for the root.
// All members compute the same tree.
func (p *Plan) Tree() []int {
	parents := make([]int, p.members)
	for rank := range parents {
		parents[rank] = -1
	}
	queue := make([]int, 1, p.members)
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, peer := range p.Neighbours(at) {
			if peer != 0 && parents[peer] < 0 {
				parents[peer] = at
				queue = append(queue, peer)
			}
		}
	}
	return parents
}

// PartBlocks is the message that stands for all longer ones in Part: the filling of a pipeline is a small part of it.
const PartBlocks = 240

// Part is how many times a rank sends each block of a message of so many blocks on average: of a long one 1 for the
// root of a pipeline, of a single block as often as the root has children, 0 for a rank that relays nothing. It goes
// through the steps of at most PartBlocks blocks.
func (p *Plan) Part(rank int, blocks uint64) float64 {
	switch {
	case blocks == 0 || p.algorithm == Sequential && rank > 0:
		return 0
	case p.algorithm == Sequential:
		return float64(p.members - 1)
	}
	blocks = min(blocks, PartBlocks)
	turns, sends := p.turns(blocks), 0
	for number := range turns {
		s := p.Message(number, blocks)
		for step := range s.Steps() {
			if _, ok := s.Outgoing(rank, step); ok {
				sends++
			}
		}
	}
	return float64(sends) / float64(turns*blocks)
}

// message is a plan with a number of blocks.
type message struct {
	plan   *Plan
	moves  moves
	blocks uint64
}

func (m message) Members() int   { return m.plan.members }
func (m message) Blocks() uint64 { return m.blocks }

func (m message) Steps() uint64 {
	if m.blocks == 0 {
		return 0
	}
	return m.moves.steps(m.blocks)
}

func (m message) Outgoing(rank int, step uint64) (Transfer, bool) {
	if step >= m.Steps() {
		return Transfer{}, false
	}
	return m.moves.outgoing(rank, step, m.blocks)
}

func (m message) Incoming(rank int, step uint64) (Transfer, bool) {
	if step >= m.Steps() {
		return Transfer{}, false
	}
	return m.moves.incoming(rank, step, m.blocks)
}

func (m message) Sends(rank int) Span {
	if s, ok := m.moves.(spans); ok {
		return s.sends(rank, m.blocks)
	}
	return Span{End: m.Steps()}
}

func (m message) Receives(rank int) Span {
	if s, ok := m.moves.(spans); ok {
		return s.receives(rank, m.blocks)
	}
	return Span{End: m.Steps()}
}

// alone is the schedule of a group without receivers.
type alone struct{}

func (alone) steps(uint64) uint64                                { return 0 }
func (alone) outgoing(int, uint64, uint64) (t Transfer, ok bool) { return }
func (alone) incoming(int, uint64, uint64) (t Transfer, ok bool) { return }
func (alone) links(int, func(int))                               {}

func isPowerOfTwo(n int) bool { return n&(n-1) == 0 }

// ceilLog2 is the number of doublings from 1 to at least n.
func ceilLog2(n int) int { return bits.Len(uint(n - 1)) }
