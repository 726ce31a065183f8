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
	most   int64 // bytes that may come by send/receive
	copied int64 // of these, bytes that have come
	data   uint32
	told   uint32  // data frames acknowledged to the sender
	pins   []*Pin  // of the fragments under way; some are of several
	ends   []mark  // of the announcements under way
	places []place // of the announcement that is made
	use    use
}

// mark is the end of an announcement.
type mark struct {
	last int64 // fragment
	pins int   // of its fragments
}

// Receive receives the next message. place gives the memory for it, of exactly that size; its error refuses the
// message. Receive blocks until all is there and the sender has word of that, or has left. After an error, also of ctx,
// the link is broken, and nothing works on the memory any more.
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

func (e *receiving) complete() bool { return e.begun && e.copied >= e.w.offset && e.w.over() }

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

// advance announces what is registered of the next fragments, or registers one, if the window is open, and reports
// whether it did.
func (e *receiving) advance(ctx context.Context) (bool, error) {
	if e.begun && e.w.next == e.w.count() && !e.use.over {
		return true, e.l.d.join(&e.use, Ask{Memory: e.m.Bytes(), Access: rdma.RemoteWrite, Keep: true, Claim: ClaimAhead})
	}
	if !e.begun || e.w.next == e.w.count() || int64(len(e.ends)) >= e.w.depth || e.w.held() >= announcedMax ||
		len(e.l.free) == 0 {
		return false, nil
	}
	if e.find(); len(e.places) == 0 {
		if done, err := e.register(ctx); !done {
			return err == nil && e.w.held() == 0, err
		}
	}
	first := e.w.next - int64(len(e.places))
	from, _ := e.w.at(first)
	_, to := e.w.at(e.w.next - 1)
	return true, e.announce(frame{kind: kindReady, at: first, size: to - from})
}

func (e *receiving) ask(i int64) Ask {
	from, to := e.w.at(i)
	return Ask{Memory: e.m.Bytes()[from:to], Access: rdma.RemoteWrite, Keep: e.s.keeps(), Claim: ClaimPeer, Lost: e.lost}
}

// find takes what is registered of the next fragments, as much as fits into one announcement. It is not bounded by the
// depth, but like everything else by the claim.
func (e *receiving) find() {
	room := (e.l.cfg.SlotBytes - headBytes) / keyBytes
	for e.s.keeps() && e.w.next < e.w.count() && e.w.held() < announcedMax && len(e.places) < room {
		if len(e.places) > 0 && e.extend() {
			continue
		}
		p := e.l.d.Find(e.ask(e.w.next))
		if p == nil {
			return
		}
		e.take(p)
	}
}

// extend takes the next fragment if it lies in the registration of the one before, which is announced with it.
func (e *receiving) extend() bool {
	from, to := e.w.at(e.w.next)
	p := e.pins[len(e.pins)-1]
	if !p.extend(to - from) {
		return false
	}
	sge := p.SGE()
	e.places = append(e.places, place{sge.Region.Key(), uint64(sge.Offset+sge.Length) - uint64(to-from)})
	e.w.next++
	return true
}

// register registers the next fragment, and reports whether the budget had room for that; if not, and nothing is held
// here, it has waited.
func (e *receiving) register(ctx context.Context) (bool, error) {
	a := e.ask(e.w.next)
	p, err := e.l.d.Try(a)
	if errors.Is(err, ErrBudget) && e.l.d.Room(ClaimPeer) >= int64(len(a.Memory)) {
		return false, e.l.awaitRoom(ctx, e.w.held())
	}
	if err == nil {
		e.take(p)
	}
	return err == nil, err
}

func (e *receiving) take(p *Pin) {
	sge := p.SGE()
	e.pins, e.places = append(e.pins, p), append(e.places, place{sge.Region.Key(), uint64(sge.Offset)})
	e.w.next++
	e.use.note(p)
}

// announce sends a frame with the places that were taken.
func (e *receiving) announce(f frame) error {
	f.taken, f.length = e.data, uint32(len(e.places)*keyBytes)
	if len(e.places) > 0 {
		pins := len(e.pins)
		for _, m := range e.ends {
			pins -= m.pins
		}
		e.ends = append(e.ends, mark{e.w.next - 1, pins})
	}
	err := e.l.post(f, func(b []byte) error { putPlaces(b, e.places); return nil })
	e.places = e.places[:0]
	return err
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

// match begins a message, and returns where its first fragment ends if there is one.
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
	e.begun, e.s, e.most = true, f.strategy, f.at
	depth := min(int64(f.depth), int64(e.l.cfg.Depth))
	if f.at == f.size {
		e.w = window{plan: plan{size: f.size, offset: f.size}, depth: 1}
	} else {
		if err := e.plan(f, depth); err != nil {
			return err
		}
		if err := e.announce(frame{kind: kindAck, size: e.w.offset, at: e.w.first, fragment: e.w.fragment}); err != nil {
			return err
		}
	}
	return e.keep(payload, 0)
}

// plan cuts the message, and takes what is registered of it. Where that reaches behind all that the sender may send
// by copies, fragments begin as early as they can: no time has to be filled by copies, and the sender stops when it
// hears of that.
func (e *receiving) plan(f *frame, depth int64) error {
	a := Ask{Memory: e.m.Bytes()}
	fragment := f.fragment
	if f.strategy.piped() {
		fragment = fragmentWithin(fragment, e.l.d.Room(ClaimPeer))
	}
	for _, offset := range []int64{int64(f.length), f.at} {
		e.w = window{plan: newPlan(f.size, offset, fragment, a.span().lo, f.strategy == CachedPipeline), depth: depth}
		e.find()
		if _, to := e.w.at(int64(len(e.places)) - 1); offset == f.at || len(e.places) > 0 && to > f.at {
			break
		}
		if err := e.release(); err != nil {
			return err
		}
		e.places, e.use = e.places[:0], use{}
	}
	return nil
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
	if f.at != e.copied || int64(len(payload)) > e.most-f.at || len(payload) == 0 {
		return fmt.Errorf("%w: %d bytes at %d, expected %d of %d", ErrProtocol, len(payload), f.at, e.copied, e.most)
	}
	if err := e.keep(payload, f.at); err != nil {
		return err
	}
	e.data++
	if e.data-e.told < uint32(e.l.cfg.Slots+1)/2 || e.copied == e.most || len(e.l.free) == 0 {
		return nil
	}
	e.told = e.data
	return e.l.post(frame{kind: kindTaken, taken: e.data}, nil)
}

func (e *receiving) written(int64) error {
	return fmt.Errorf("%w: a write that nobody posted", ErrProtocol)
}

// finished is called when all fragments of an announcement have come.
func (e *receiving) finished(i uint32) error {
	if len(e.ends) == 0 || int64(i) != e.ends[0].last {
		return fmt.Errorf("%w: end of fragment %d, announced up to %v", ErrProtocol, i, e.ends)
	}
	n := e.ends[0].pins
	pins := e.pins[:n]
	e.ends, e.pins, e.w.done = e.ends[1:], e.pins[n:], int64(i)+1
	return releaseAll(pins)
}

func (e *receiving) release() error {
	pins := e.pins
	e.pins = nil
	return releaseAll(pins)
}
