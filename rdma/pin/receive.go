package pin

import (
	"context"
	"errors"
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// receiving is the receiver's side of a message.
type receiving struct {
	l      *Link
	place  func(size int64) (Memory, error)
	m      Memory
	s      Strategy
	w      window
	lost   func()
	end    func() // of the use of the memory
	begun  bool
	copied int64 // bytes that came by send/receive
	data   uint32
	told   uint32 // of data frames
	pins   []*Pin // of fragment i at i % depth
}

// Receive receives the next message. place gives the memory for it, of exactly that size; its error refuses the message. Receive blocks until all is there and the
// sender has been told, or has left. After an error, also of ctx, the link is broken, and nothing works on the memory any more.
func (l *Link) Receive(ctx context.Context, place func(size int64) (Memory, error)) (Memory, error) {
	if l.err != nil {
		return nil, l.err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.seq++
	e := &receiving{l: l, place: place, lost: func() { cancel(ErrStale) }, end: func() {}}
	defer func() { e.end() }()
	err := e.unpark()
	for err == nil && !e.complete() {
		var busy bool
		if busy, err = e.advance(ctx); err == nil {
			err = l.step(ctx, e, !busy)
		}
	}
	for err == nil && len(l.free) == 0 {
		err = l.step(ctx, deaf{}, true)
	}
	if err == nil {
		err = l.post(frame{kind: kindDone, taken: e.data}, nil)
	}
	for told := err == nil; told && len(l.free) < l.n; {
		if err := l.step(ctx, deaf{}, true); err != nil { // the sender has left
			_ = l.fail(e, nil, err)
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("pin: receive: %w", l.fail(e, e.m, err))
	}
	return e.m, nil
}

func (e *receiving) complete() bool { return e.begun && e.copied == e.w.offset && e.w.over() }

// unpark takes the beginning of the message, if it came while the one before ended.
func (e *receiving) unpark() error {
	parked := e.l.parked
	e.l.parked = nil
	for _, b := range parked {
		f, payload, err := decodeFrame(b)
		if err == nil {
			err = e.frame(&f, payload)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// advance registers and announces the next fragment, if the window is open, and reports whether it did.
func (e *receiving) advance(ctx context.Context) (bool, error) {
	if !e.begun || !e.w.open() || len(e.l.free) == 0 {
		return false, nil
	}
	from, to := e.w.at(e.w.next)
	a := Ask{Memory: e.m.Bytes()[from:to], Access: rdma.RemoteWrite, Keep: e.s.keeps(), Claim: ClaimPeer, Lost: e.lost}
	p, err := e.l.d.Try(a)
	if errors.Is(err, ErrBudget) && e.l.d.Room(ClaimPeer) >= to-from {
		return e.w.held() == 0, e.l.awaitRoom(ctx, e.w.held())
	}
	if err != nil {
		return false, err
	}
	e.pins[e.w.next%e.w.depth] = p
	sge := p.SGE()
	err = e.l.post(frame{kind: kindReady, taken: e.data, at: e.w.next, size: to - from, key: uint64(sge.Region.Key()), addr: uint64(sge.Offset)}, nil)
	e.w.next++
	return true, err
}

func (e *receiving) frame(f *frame, payload []byte) error {
	if f.seq != e.l.seq || (f.kind == kindMatch) == e.begun {
		return fmt.Errorf("%w: kind %d of message %d, this is %d", ErrProtocol, f.kind, f.seq, e.l.seq)
	}
	switch f.kind {
	case kindMatch:
		return e.match(f, payload)
	case kindData:
		return e.takeData(f, payload)
	}
	return fmt.Errorf("%w: kind %d at the receiver", ErrProtocol, f.kind)
}

// match begins a message, and answers where its first fragment ends if there is one.
func (e *receiving) match(f *frame, payload []byte) (err error) {
	if err := f.checkMatch(); err != nil {
		return err
	}
	if e.m, err = e.place(f.size); err != nil {
		return err
	}
	if w, ok := e.m.(watched); ok {
		end, err := w.watch(e.lost)
		if err != nil {
			return err
		}
		e.end = end
	}
	mem := e.m.Bytes()
	if int64(len(mem)) != f.size {
		return fmt.Errorf("pin: %d bytes of memory for a message of %d: %w", len(mem), f.size, rdma.ErrRequest)
	}
	e.begun, e.s = true, f.strategy
	depth := min(int64(f.depth), int64(e.l.cfg.Depth))
	if f.at == f.size {
		e.w = window{plan: plan{size: f.size, offset: f.size}, depth: 1}
	} else {
		a := Ask{Memory: mem}
		e.w = window{plan: newPlan(f.size, f.at, f.fragment, a.span().lo, f.strategy == CachedPipeline), depth: depth}
		e.pins = make([]*Pin, depth)
		if err := e.l.post(frame{kind: kindAck, at: e.w.first}, nil); err != nil {
			return err
		}
	}
	return e.keep(payload, 0)
}

// keep copies what came by send/receive to its place.
func (e *receiving) keep(payload []byte, at int64) error {
	if len(payload) == 0 {
		return nil
	}
	if _, err := e.m.WriteAt(payload, at); err != nil {
		return fmt.Errorf("pin: write %d bytes at %d: %w", len(payload), at, err)
	}
	e.copied += int64(len(payload))
	return nil
}

func (e *receiving) takeData(f *frame, payload []byte) error {
	if f.at != e.copied || int64(len(payload)) > e.w.offset-f.at || len(payload) == 0 {
		return fmt.Errorf("%w: %d bytes at %d, expected %d of %d", ErrProtocol, len(payload), f.at, e.copied, e.w.offset)
	}
	if err := e.keep(payload, f.at); err != nil {
		return err
	}
	e.data++
	if e.data-e.told < uint32(e.l.cfg.Slots+1)/2 || e.copied == e.w.offset || len(e.l.free) == 0 {
		return nil
	}
	e.told = e.data
	return e.l.post(frame{kind: kindTaken, taken: e.data}, nil)
}

func (e *receiving) written(int64) error {
	return fmt.Errorf("%w: a write that nobody posted", ErrProtocol)
}

// finished is told that a fragment has come.
func (e *receiving) finished(i uint32) error {
	if int64(i) != e.w.done || e.w.held() == 0 {
		return fmt.Errorf("%w: end of fragment %d, expected %d", ErrProtocol, i, e.w.done)
	}
	k := e.w.done % e.w.depth
	p := e.pins[k]
	e.pins[k] = nil
	e.w.done++
	return p.Release()
}

func (e *receiving) release() error {
	var errs []error
	for i, p := range e.pins {
		if p != nil {
			errs = append(errs, p.Release())
			e.pins[i] = nil
		}
	}
	return errors.Join(errs...)
}
