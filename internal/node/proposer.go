package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/newnames"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// raftLog is what a proposer needs of the consensus.
type raftLog interface {
	Propose(ctx context.Context, data []byte, opts consensus.ProposeOptions) (consensus.Proposed, error)
}

const (
	// unknownRetry is how often a proposal whose outcome is unknown is made again. However long the log was silent, the
	// outcome is known soon after: without a quorum an attempt costs nothing.
	unknownRetry = time.Second
	// fencedRetries bounds how often a proposal of a fenced incarnation is made again under the next one.
	fencedRetries = 5
	// fencedWait is how long one such retry waits for the next incarnation.
	fencedWait = 5 * time.Second
	// endRetry is the pause between attempts to end a session that was refused.
	endRetry = time.Second
)

// proposer gives proposals their identity and makes sure that each is applied at most once. The same bytes are proposed
// until their outcome is known; if need be that goes on after the caller was answered "unknown".
type proposer struct {
	log        raftLog
	generation uint32
	names      *newnames.Holder // gives new names by itself; nil: none. Set before anybody proposes
	format     func() uint64    // of the cluster; nil: the first. Set before anybody proposes

	ctx  context.Context // ends with the node
	work sync.WaitGroup

	mu      sync.Mutex
	self    meta.Lease
	booted  chan struct{} // closed and replaced when self changes
	next    uint64
	pending map[uint64]admin.Unresolved // by sequence: every proposal not answered yet
	unknown map[uint64]bool             // those whose caller was answered so
	again   chan struct{}               // closed and replaced when those are to be proposed again
	known   chan struct{}               // closed and replaced when none of them is left
	refused error                       // why the log refused the last attempt
	room    chan struct{}               // closed when one is answered; nil if nobody waits for that
}

func newProposer(ctx context.Context, log raftLog, node meta.NodeID, generation uint32) *proposer {
	return &proposer{
		log: log, generation: generation, ctx: ctx,
		self: meta.Lease{Node: node}, booted: make(chan struct{}),
		next: 1, pending: map[uint64]admin.Unresolved{}, unknown: map[uint64]bool{},
		again: make(chan struct{}), known: make(chan struct{}),
	}
}

// lease is this node's number and current incarnation; the incarnation is 0 before the first boot.
func (p *proposer) lease() meta.Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.self
}

// beginIncarnation starts a new incarnation: sequences start again.
func (p *proposer) beginIncarnation(incarnation uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if incarnation <= p.self.Incarnation {
		return
	}
	p.self.Incarnation = incarnation
	p.next = 1
	p.pending = map[uint64]admin.Unresolved{}
	p.unknown = map[uint64]bool{}
	p.wakeWaitersLocked()
	p.makeRoomLocked()
	close(p.booted)
	p.booted = make(chan struct{})
}

// propose orders an operation and returns its result once this node has applied it. A proposal that was refused
// because the incarnation had ended is made again under the next one: it was not applied, unless a snapshot hides that.
func (p *proposer) propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	res, _, err := p.proposeVisible(ctx, op, consensus.ProposeOptions{})
	return res, err
}

// order is propose for what programs and commands ask: this node may give new names by itself.
func (p *proposer) order(ctx context.Context, op meta.Op, opts consensus.ProposeOptions) (meta.Result, error) {
	if p.names == nil {
		return p.with(opts)(ctx, op)
	}
	return p.names.Propose(ctx, op, p.with(opts))
}

// request is order for commands.
func (p *proposer) request(ctx context.Context, op meta.Op) (meta.Result, error) {
	return p.order(ctx, op, consensus.ProposeOptions{})
}

// view is the namespace with the files that only this node knows yet.
func (p *proposer) view(db *meta.DB) meta.Reader {
	if p.names == nil {
		return db
	}
	return p.names.View()
}

// with is the log for callers that propose with options.
func (p *proposer) with(opts consensus.ProposeOptions) newnames.Log {
	return func(ctx context.Context, op meta.Op) (meta.Result, error) {
		res, _, err := p.proposeVisible(ctx, op, opts)
		return res, err
	}
}

func (p *proposer) proposeVisible(
	ctx context.Context, op meta.Op, opts consensus.ProposeOptions,
) (meta.Result, consensus.Proposed, error) {
	for try := 0; ; try++ {
		lease, booted := p.current()
		if lease.Incarnation == 0 {
			if err := p.awaitBoot(ctx, booted); err != nil {
				return meta.Result{}, consensus.Proposed{}, err
			}
			continue
		}
		res, out, err := p.once(ctx, lease, op, opts)
		if err != nil || !res.Fenced || try == fencedRetries {
			return res, out, err
		}
		if out.Skipped && !endsWithIncarnation(op) {
			return res, out, fmt.Errorf("node: refused as of an ended incarnation, but it may have been made before: %w",
				replicate.ErrUnknown)
		}
		if err := p.awaitBoot(ctx, booted); err != nil {
			return res, out, err
		}
	}
}

// endsWithIncarnation reports whether an operation leaves nothing behind under the next incarnation, and can't be
// applied any more.
func endsWithIncarnation(op meta.Op) bool {
	switch op := op.(type) {
	case *meta.Publish:
		return true // belongs to a session of the ended incarnation
	case *meta.Create:
		return op.Kind == meta.KindFile // a reservation, freed with the incarnation
	}
	return false
}

func (p *proposer) current() (meta.Lease, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.self, p.booted
}

func (p *proposer) awaitBoot(ctx context.Context, booted chan struct{}) error {
	timer := time.NewTimer(fencedWait)
	defer timer.Stop()
	select {
	case <-booted:
		return nil
	case <-timer.C:
		return fmt.Errorf("node: this node has not been let in by the cluster yet: %w", consensus.ErrNoQuorum)
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ctx.Done():
		return consensus.ErrClosed
	}
}

// once proposes under one incarnation. The caller's context does not cancel the proposal, which goes on until its
// outcome is known: it only ends the caller's wait.
func (p *proposer) once(
	ctx context.Context, lease meta.Lease, op meta.Op, opts consensus.ProposeOptions,
) (meta.Result, consensus.Proposed, error) {
	if _, err := p.awaitKnown(ctx, lease, opts.Patient); err != nil {
		return meta.Result{}, consensus.Proposed{}, err
	}
	data, seq, ok, err := p.admitInTime(ctx, lease, op, opts.Patient)
	if err != nil {
		return meta.Result{}, consensus.Proposed{}, err
	}
	if !ok { // as apply would refuse it
		return meta.Result{Errno: syscall.ESTALE, Fenced: true}, consensus.Proposed{}, nil
	}
	out, err := p.log.Propose(ctx, data, opts) // bounded by the log
	if errors.Is(err, consensus.ErrUnknown) {
		p.noteUnknown(lease, seq)
		outcome := make(chan meta.Result, 1)
		p.work.Go(func() {
			defer close(outcome)
			out, err := p.resolve(data)
			p.noteAnswered(lease, seq)
			if err != nil {
				return
			}
			p.endRefused(op, out)
			if res, ok := out.Result.(meta.Result); ok {
				outcome <- res
			}
		})
		return meta.Result{}, out, &fs.UnknownError{Err: wrapUnknown(err), Outcome: outcome}
	}
	p.noteAnswered(lease, seq)
	if err != nil {
		return meta.Result{}, out, err
	}
	p.wakeResolvers()
	res, ok := out.Result.(meta.Result)
	if !ok {
		return meta.Result{}, out, fmt.Errorf("node: proposal %d: no result: %w", seq, replicate.ErrUnknown)
	}
	return res, out, nil
}

// endRefused ends the session of a publish that was refused after its writer got the answer that the outcome is
// unknown. Nobody else would end it, and the members keep their votes until the log has decided.
func (p *proposer) endRefused(op meta.Op, out consensus.Proposed) {
	publish, isPublish := op.(*meta.Publish)
	res, ok := out.Result.(meta.Result)
	if !isPublish || !ok || res.Errno == 0 {
		return
	}
	p.work.Go(func() {
		for {
			res, err := p.propose(p.ctx, &meta.Abort{Session: publish.Session})
			if err == nil && res.Errno != syscall.EAGAIN || errors.Is(err, replicate.ErrUnknown) ||
				errors.Is(err, consensus.ErrClosed) {
				return // what is unknown is proposed again by itself
			}
			if !pause(p.ctx, endRetry) {
				return
			}
		}
	})
}

func wrapUnknown(err error) error {
	if errors.Is(err, consensus.ErrUnknown) {
		return fmt.Errorf("%w: %w", replicate.ErrUnknown, err)
	}
	return err
}

// admitInTime is admit, except that it first waits while the oldest proposal without an answer is so far behind that
// apply could not remember all that came since.
func (p *proposer) admitInTime(
	ctx context.Context, lease meta.Lease, op meta.Op, patient bool,
) (data []byte, seq uint64, ok bool, err error) {
	bound := orderWait
	if patient {
		bound = orderWaitPatient
	}
	data, seq, room := p.admit(lease, op)
	if room == nil {
		return data, seq, data != nil, nil
	}
	end := time.NewTimer(bound)
	defer end.Stop()
	for room != nil {
		select {
		case <-room:
		case <-end.C:
			return nil, 0, false, fmt.Errorf("node: an earlier change has not been answered in %v: %w", bound, consensus.ErrBusy)
		case <-ctx.Done():
			return nil, 0, false, ctx.Err()
		case <-p.ctx.Done():
			return nil, 0, false, consensus.ErrClosed
		}
		if _, err := p.awaitKnown(ctx, lease, patient); err != nil {
			return nil, 0, false, err
		}
		data, seq, room = p.admit(lease, op)
	}
	return data, seq, data != nil, nil
}

// admit gives the operation its sequence and its bytes: nil when the incarnation is no longer current, or there is no
// room. Then it returns a channel that is closed when there may be room.
func (p *proposer) admit(lease meta.Lease, op meta.Op) (data []byte, seq uint64, room <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lease != p.self {
		return nil, 0, nil
	}
	seq = p.next
	acked := seq - 1
	for s := range p.pending {
		acked = min(acked, s-1)
	}
	if seq > acked+meta.WindowSize {
		if p.room == nil {
			p.room = make(chan struct{})
		}
		return nil, 0, p.room
	}
	p.next++
	p.pending[seq] = admin.Unresolved{Seq: seq, What: opText(op), Since: time.Now()}
	data = meta.EncodeEntry(meta.Entry{
		Node: lease.Node, Incarnation: lease.Incarnation, Seq: seq, Acked: acked,
		Generation: p.generation, Format: numberOf(p.format), Op: op,
	})
	return data, seq, nil
}

// makeRoomLocked wakes the callers that wait for room.
func (p *proposer) makeRoomLocked() {
	if p.room != nil {
		close(p.room)
		p.room = nil
	}
}

// noteAnswered notes that the outcome of a proposal is known.
func (p *proposer) noteAnswered(lease meta.Lease, seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lease == p.self {
		delete(p.pending, seq)
		delete(p.unknown, seq)
		p.makeRoomLocked()
		if len(p.unknown) == 0 {
			p.wakeWaitersLocked()
		}
	}
}

// resolve proposes the same bytes until their outcome is known: exactly-once makes that harmless.
func (p *proposer) resolve(data []byte) (consensus.Proposed, error) {
	p.mu.Lock()
	again := p.again
	p.mu.Unlock()
	for {
		timer := time.NewTimer(unknownRetry)
		select {
		case <-p.ctx.Done():
			timer.Stop()
			return consensus.Proposed{}, consensus.ErrClosed
		case <-again:
			timer.Stop()
		case <-timer.C:
		}
		p.mu.Lock()
		again = p.again
		p.mu.Unlock()
		out, err := p.log.Propose(p.ctx, data, consensus.ProposeOptions{})
		if err == nil || errors.Is(err, consensus.ErrClosed) {
			return out, err
		}
		p.noteRefusal(err)
	}
}

// wakeResolvers makes proposals whose outcome is unknown be proposed again at once, as the log answers: while one is
// left it bounds how many others the log takes.
func (p *proposer) wakeResolvers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unknown) > 0 {
		p.wakeLocked()
	}
}

// unresolved lists the proposals whose callers got the answer that the outcome is unknown.
func (p *proposer) unresolved() []admin.Unresolved {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]admin.Unresolved, 0, len(p.unknown))
	for seq := range p.unknown {
		out = append(out, p.pending[seq])
	}
	return out
}
