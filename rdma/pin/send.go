package pin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// sending is the sender's side of a message.
type sending struct {
	l      *Link
	m      Memory
	s      Strategy
	w      window
	lost   func() // a registration of ours became stale
	acked  bool   // the plan is known
	over   bool
	copied int64 // next byte to go by send/receive
	data   uint32
	taken  uint32 // data frames that the receiver has taken
	posted int64  // fragments whose write was posted
	ready  []frame
	pins   [][]*Pin // of fragment i at i % depth
}

// Send sends a message with a strategy. It blocks until the receiver has all of it. After an error, also of ctx, the link is broken, and
// nothing works on the memory any more. ErrBudget: the strategy needs more registered bytes than the domain may have. ErrStale: the memory
// changed meanwhile.
func (l *Link) Send(ctx context.Context, s Strategy, m Memory) error {
	if l.err != nil {
		return l.err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	size := int64(len(m.Bytes()))
	if limit := l.dev.Limits().MaxMessage; !s.piped() && s != Copy && size > int64(limit) {
		return fmt.Errorf("pin: send %d bytes in one write, limit of %s %d: send by the pipeline: %w", size, l.dev.Name(), limit, rdma.ErrRequest)
	}
	lost := func() { cancel(ErrStale) }
	if w, ok := m.(watched); ok {
		end, err := w.watch(lost)
		if err != nil {
			return fmt.Errorf("pin: send: %w", err)
		}
		defer end()
	}
	l.seq++
	e := &sending{l: l, m: m, s: s, lost: lost}
	err := e.match(size)
	for err == nil && !e.finishedAll() {
		var busy bool
		if busy, err = e.advance(ctx); err == nil {
			err = l.step(ctx, e, !busy)
		}
	}
	if err != nil && e.over && e.w.over() { // the receiver has it, and left
		_ = l.fail(e, nil, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("pin: send %d bytes by %v: %w", size, s, l.fail(e, m, err))
	}
	return nil
}

// finishedAll reports whether the receiver has all, and nothing of ours is under way.
func (e *sending) finishedAll() bool { return e.over && e.w.over() && len(e.l.free) == e.l.n }

// match tells of the message, with its first bytes where the strategy sends any by send/receive.
func (e *sending) match(size int64) error {
	c := &e.l.cfg
	f := frame{kind: kindMatch, strategy: e.s, size: size, fragment: c.Fragment, depth: uint16(c.Depth)}
	switch {
	case e.s == Copy:
		f.at = size
	case e.s.piped():
		f.at = min(size, max(c.Offset, c.Eager))
		f.fragment = max(min(f.fragment, e.l.d.Room(ClaimAhead))&^(fragmentMin-1), fragmentMin)
	default:
		f.fragment, f.depth = max(size, fragmentMin), 1
	}
	f.length = uint32(min(f.at, c.Eager))
	e.copied = int64(f.length)
	e.w = window{plan: plan{size: size, offset: f.at, fragment: f.fragment}, depth: int64(f.depth)}
	e.pins = make([][]*Pin, f.depth)
	return e.l.post(f, func(p []byte) error { return readFull(e.m, p, 0) })
}

func readFull(m Memory, p []byte, at int64) error {
	if len(p) == 0 {
		return nil
	}
	n, err := m.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("pin: read %d bytes at %d: %w", len(p), at, err)
}

// advance does one thing, that which keeps the wire busy first, and reports whether it did.
func (e *sending) advance(ctx context.Context) (bool, error) {
	switch {
	case len(e.ready) > 0 && (e.ready[0].at < e.w.next || e.w.open()):
		return e.write(ctx)
	case e.copied < e.w.offset && e.data-e.taken < uint32(e.l.cfg.Slots) && len(e.l.free) > controlSlots/2:
		return true, e.sendData()
	case e.acked && e.w.open():
		return e.register(ClaimAhead)
	}
	return false, nil
}

// sendData sends the next bytes by send/receive, with a copy.
func (e *sending) sendData() error {
	at := e.copied
	n := min(e.w.offset-at, int64(e.l.cfg.SlotBytes-headBytes))
	e.copied += n
	e.data++
	return e.l.post(frame{kind: kindData, at: at, length: uint32(n)}, func(p []byte) error { return readFull(e.m, p, at) })
}

// register has the next fragment registered, and reports whether the budget has room for that.
func (e *sending) register(claim Claim) (bool, error) {
	from, to := e.w.at(e.w.next)
	pins, err := e.pinPieces(from, to, claim)
	if errors.Is(err, ErrBudget) && e.s == CachedPipeline && claim == ClaimNow {
		pins, err = e.pin(nil, from, from, to, false, claim) // who is waited for does with little
	}
	switch {
	case err == nil:
		e.pins[e.w.next%e.w.depth] = pins
		e.w.next++
		return true, nil
	case errors.Is(err, ErrBudget) && (claim != ClaimNow || e.l.d.Room(claim) >= to-from):
		return false, nil
	}
	return false, err
}

// pinPieces registers [from, to) of the memory: as one piece, or in pieces that end on boundaries if they are to be found again.
func (e *sending) pinPieces(from, to int64, claim Claim) (pins []*Pin, err error) {
	if e.s != CachedPipeline {
		return e.pin(nil, from, from, to, e.s.keeps(), claim)
	}
	for from < to && err == nil {
		lo, hi := segment(e.m.Bytes(), from, e.w.fragment)
		pins, err = e.pin(pins, lo, from, hi, true, claim)
		from = hi
	}
	if err == nil {
		last := pins[len(pins)-1]
		last.length -= int(from - to)
	}
	return pins, err
}

// pin registers [lo, hi), of which what begins at from is sent. With an error all pins are released.
func (e *sending) pin(pins []*Pin, lo, from, hi int64, keep bool, claim Claim) ([]*Pin, error) {
	p, err := e.l.d.Try(Ask{Memory: e.m.Bytes()[lo:hi], Keep: keep, Claim: claim, Lost: e.lost})
	if err != nil {
		return nil, errors.Join(err, releaseAll(pins))
	}
	p.offset += int(from - lo)
	p.length -= int(from - lo)
	return append(pins, p), nil
}

// segment is the piece of mem between boundaries of fragment bytes that at lies in.
func segment(mem []byte, at, fragment int64) (lo, hi int64) {
	a := Ask{Memory: mem}
	base := a.span().lo
	lo = at - int64((base+uint64(at))%uint64(fragment))
	return max(lo, 0), min(lo+fragment, int64(len(mem)))
}

func releaseAll(pins []*Pin) error {
	var errs []error
	for _, p := range pins {
		errs = append(errs, p.Release())
	}
	return errors.Join(errs...)
}

// write writes the fragment that was announced first, and reports whether it did: its registration may have to wait for the budget.
func (e *sending) write(ctx context.Context) (bool, error) {
	f := e.ready[0]
	if f.at == e.w.next { // not ahead
		done, err := e.register(ClaimNow)
		if err != nil {
			return false, err
		}
		if !done {
			return e.w.held() == 0, e.l.awaitRoom(ctx, e.w.held())
		}
	}
	e.ready = e.ready[1:]
	l := e.l
	l.list = l.list[:0]
	for _, p := range e.pins[f.at%e.w.depth] {
		l.list = append(l.list, p.SGE())
	}
	e.posted++
	err := l.qp.PostSend(rdma.SendWR{ID: writeID | uint64(f.at), Op: rdma.OpWriteImm, List: l.list, Imm: uint32(f.at),
		RemoteKey: rdma.RegionKey(f.key), RemoteAddr: f.addr})
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return true, nil
}

// frame takes the receiver's answers.
func (e *sending) frame(f *frame, _ []byte) error {
	if f.seq != e.l.seq || f.taken > e.data || f.taken < e.taken {
		return fmt.Errorf("%w: answer to message %d, this is %d", ErrProtocol, f.seq, e.l.seq)
	}
	e.taken = f.taken
	switch {
	case f.kind == kindAck && !e.acked && f.at > 0 && f.at <= e.w.fragment:
		e.acked, e.w.first = true, f.at
	case f.kind == kindReady && e.acked && f.at == e.posted+int64(len(e.ready)) && int64(len(e.ready)) < e.w.depth && f.at < e.w.count():
		if from, to := e.w.at(f.at); f.size != to-from {
			return fmt.Errorf("%w: %d bytes for a fragment of %d", ErrProtocol, f.size, to-from)
		}
		e.ready = append(e.ready, *f)
	case f.kind == kindDone && e.copied == e.w.offset && (e.w.offset == e.w.size || e.acked && e.posted == e.w.count()):
		e.over = true
	case f.kind == kindTaken:
	default:
		return fmt.Errorf("%w: answer of kind %d", ErrProtocol, f.kind)
	}
	return nil
}

// written is told that the receiver has a fragment: its memory is not needed any more.
func (e *sending) written(i int64) error {
	pins := e.pins[i%e.w.depth]
	e.pins[i%e.w.depth] = nil
	e.w.done++
	return releaseAll(pins)
}

func (e *sending) finished(uint32) error {
	return fmt.Errorf("%w: a write where none was announced", ErrProtocol)
}

func (e *sending) release() error {
	var errs []error
	for i, pins := range e.pins {
		errs = append(errs, releaseAll(pins))
		e.pins[i] = nil
	}
	return errors.Join(errs...)
}
