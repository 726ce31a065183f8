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
	taken  uint32   // data frames that the receiver has taken
	posted int64    // fragments whose write was posted
	places []place  // of the announced ones behind those
	ends   []int64  // last fragment of each announcement that is not posted to its end
	pins   [][]*Pin // of the fragments from w.done on that are registered; none where they are those before
	use    use
}

// Send sends a message with a strategy. It blocks until the receiver has all of it. After an error, also of ctx, the
// link is broken, and nothing works on the memory any more. ErrBudget: the strategy needs more registered bytes than
// the domain may have. ErrStale: the memory changed meanwhile.
func (l *Link) Send(ctx context.Context, s Strategy, m Memory) error {
	if l.err != nil {
		return l.err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	size := int64(len(m.Bytes()))
	if limit := l.dev.Limits().MaxMessage; !s.piped() && s != Copy && size > int64(limit) {
		return fmt.Errorf("pin: send %d bytes in one write, limit of %s %d: send by the pipeline: %w", size, l.dev.Name(),
			limit, rdma.ErrRequest)
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

// match announces the message, with its first bytes if the strategy sends any by send/receive.
func (e *sending) match(size int64) error {
	c := &e.l.cfg
	f := frame{kind: kindMatch, strategy: e.s, size: size, fragment: c.Fragment, depth: uint16(c.Depth)}
	switch {
	case e.s == Copy:
		f.at = size
	case e.s.piped():
		f.at = min(size, max(c.Offset, c.Eager))
		f.fragment = fragmentWithin(grown(f.fragment, size, e.l.d.Room(ClaimAhead)), e.l.d.Room(ClaimAhead))
	default:
		f.fragment, f.depth = max(size, fragmentMin), 1
	}
	if e.s != CachedPipeline || f.at == size || !e.found() {
		f.length = uint32(min(f.at, c.Eager))
	}
	e.copied = int64(f.length)
	e.w = window{plan: plan{size: size, offset: f.at, fragment: f.fragment}, depth: int64(f.depth)}
	return e.l.post(f, func(p []byte) error { return readFull(e.m, p, 0) })
}

// found reports whether all the memory is registered as one piece. The receiver's may be, too, so its answer is worth
// more than bytes with the first message.
func (e *sending) found() bool {
	p := e.l.d.Find(Ask{Memory: e.m.Bytes(), Keep: true, Claim: ClaimAhead})
	return p != nil && p.Release() == nil
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

// advance does one thing, the one that keeps the wire busy first, and reports whether it did.
func (e *sending) advance(ctx context.Context) (bool, error) {
	switch {
	case len(e.places) > 0 && (e.posted < e.w.next || e.w.open()):
		return e.write(ctx)
	case e.copied < e.w.offset && e.data-e.taken < uint32(e.l.cfg.Slots) && len(e.l.free) > controlSlots/2:
		return true, e.sendData()
	case e.acked && e.w.open():
		return e.register(ClaimAhead)
	case e.acked && e.posted == e.w.count() && !e.use.over:
		return true, e.l.d.join(&e.use, Ask{Memory: e.m.Bytes(), Keep: true, Claim: ClaimAhead})
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

// register makes the next fragment be registered, and reports whether the budget has room for that.
func (e *sending) register(claim Claim) (bool, error) {
	from, to := e.at(e.w.next)
	try := func(a Ask) (*Pin, error) {
		a.Claim = claim
		return e.l.d.Try(a)
	}
	pins, err := e.pinPieces(from, to, try)
	if errors.Is(err, ErrBudget) && e.s == CachedPipeline && claim == ClaimNow {
		pins, err = e.pin(nil, from, from, to, false, try) // others wait for this one: it makes do with little
	}
	switch {
	case err == nil:
		e.take(pins)
		return true, nil
	case errors.Is(err, ErrBudget) && (claim != ClaimNow || e.l.d.Room(claim) >= to-from):
		return false, nil
	}
	return false, err
}

func (e *sending) take(pins []*Pin) {
	e.pins = append(e.pins, pins)
	e.w.next++
	for _, p := range pins {
		e.use.note(p)
	}
}

// extend takes the next fragment, of n bytes, if it lies in the registration that the one before ends in, with which
// it goes in one write.
func (e *sending) extend(p *Pin, n int64) bool {
	if !e.s.keeps() || !p.extend(n) {
		return false
	}
	e.pins = append(e.pins, nil)
	e.w.next++
	return true
}

// errNotThere is how an ask ends that only looks for what is registered.
var errNotThere = errors.New("not registered")

// find takes the next fragment if it is registered, and reports whether it did.
func (e *sending) find() bool {
	if !e.s.keeps() {
		return false
	}
	from, to := e.at(e.w.next)
	pins, err := e.pinPieces(from, to, func(a Ask) (*Pin, error) {
		a.Claim = ClaimNow
		if p := e.l.d.Find(a); p != nil {
			return p, nil
		}
		return nil, errNotThere
	})
	if err == nil {
		e.take(pins)
	}
	return err == nil
}

// pinPieces gets [from, to) of the memory: as one piece, or in pieces that end on boundaries if they are to be found
// again.
func (e *sending) pinPieces(from, to int64, get func(Ask) (*Pin, error)) (pins []*Pin, err error) {
	if e.s != CachedPipeline {
		return e.pin(nil, from, from, to, e.s.keeps(), get)
	}
	for from < to && err == nil {
		lo, hi := segment(e.m.Bytes(), from, e.w.fragment)
		pins, err = e.pin(pins, lo, from, hi, true, get)
		from = hi
	}
	if err == nil {
		last := pins[len(pins)-1]
		last.length -= int(from - to)
	}
	return pins, err
}

// pin gets [lo, hi), of which what begins at from is sent. With an error all pins are released.
func (e *sending) pin(pins []*Pin, lo, from, hi int64, keep bool, get func(Ask) (*Pin, error)) ([]*Pin, error) {
	p, err := get(Ask{Memory: e.m.Bytes()[lo:hi], Keep: keep, Lost: e.lost})
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

// write writes what was announced first, and reports whether it did: its registration may have to wait for the budget.
// The last fragment of an announcement shows the receiver that all of them are there.
func (e *sending) write(ctx context.Context) (bool, error) {
	if e.posted == e.w.next { // not ahead
		done, err := e.register(ClaimNow)
		if err != nil {
			return false, err
		}
		if !done {
			return e.w.held() == 0, e.l.awaitRoom(ctx, e.w.held())
		}
	}
	n := e.gather()
	last := e.posted + n - 1
	wr := rdma.SendWR{ID: writeID | uint64(last), Op: rdma.OpWrite, List: e.l.list, RemoteKey: e.places[0].key,
		RemoteAddr: e.places[0].addr}
	if last == e.ends[0] {
		wr.Op, wr.Imm = rdma.OpWriteImm, uint32(last)
		e.ends = e.ends[1:]
	}
	e.places, e.posted = e.places[n:], e.posted+n
	if err := e.l.qp.PostSend(wr); err != nil {
		return false, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return true, nil
}

// frame takes the receiver's answers.
func (e *sending) frame(f *frame, payload []byte) error {
	if f.seq != e.l.seq || f.taken > e.data || f.taken < e.taken {
		return fmt.Errorf("%w: answer to message %d, this is %d", ErrProtocol, f.seq, e.l.seq)
	}
	e.taken = f.taken
	switch {
	case f.kind == kindAck && !e.acked && f.at > 0 && f.at <= f.fragment && f.size <= e.w.offset &&
		f.fragment <= e.w.fragment && f.fragment >= fragmentMin:
		e.acked, e.w.offset, e.w.first, e.w.fragment = true, f.size, f.at, f.fragment
		if err := e.announced(payload); err != nil {
			return err
		}
		return e.skip()
	case f.kind == kindReady && e.acked && f.at == e.posted+int64(len(e.places)) && len(payload) > 0:
		if err := e.announced(payload); err != nil {
			return err
		}
		from, _ := e.w.at(f.at)
		if _, to := e.w.at(e.ends[len(e.ends)-1]); f.size != to-from {
			return fmt.Errorf("%w: %d bytes for fragments of %d", ErrProtocol, f.size, to-from)
		}
	case f.kind == kindDone && e.copied >= e.w.offset && (e.w.offset == e.w.size || e.acked && e.posted == e.w.count()):
		e.over = true
	case f.kind == kindTaken:
	default:
		return fmt.Errorf("%w: answer of kind %d", ErrProtocol, f.kind)
	}
	return nil
}

// announced notes where fragments may be written from now on.
func (e *sending) announced(payload []byte) (err error) {
	if e.places, err = appendPlaces(e.places, payload); err != nil {
		return err
	}
	last := e.posted + int64(len(e.places)) - 1
	if last >= e.w.count() {
		return fmt.Errorf("%w: fragment %d of %d", ErrProtocol, last, e.w.count())
	}
	if len(payload) > 0 {
		e.ends = append(e.ends, last)
	}
	return nil
}

// skip leaves out what was sent by copies while the receiver found out that nothing had to be: it may be written from
// an earlier byte on.
func (e *sending) skip() error {
	for n := 0; e.copied > e.w.offset; n++ {
		from, to := e.w.at(int64(n))
		switch {
		case n == len(e.places):
			return fmt.Errorf("%w: fragments from %d on, %d bytes sent, and %d places", ErrProtocol, e.w.offset, e.copied, n)
		case to > e.copied:
			e.places = e.places[n:]
			e.places[0].addr += uint64(e.copied - from)
			e.posted, e.w.next, e.w.done = int64(n), int64(n), int64(n)
			return nil
		}
	}
	return nil
}

// at is what is written of fragment i.
func (e *sending) at(i int64) (from, to int64) {
	from, to = e.w.at(i)
	return max(from, e.copied), to
}

// written is called when the receiver has all fragments up to i: their memory is not needed any more.
func (e *sending) written(i int64) error {
	n := i + 1 - e.w.done
	pins := e.pins[:n]
	e.pins, e.w.done = e.pins[n:], i+1
	return releaseEach(pins)
}

func (e *sending) finished(uint32) error {
	return fmt.Errorf("%w: a write where none was announced", ErrProtocol)
}

func (e *sending) release() error {
	pins := e.pins
	e.pins = nil
	return releaseEach(pins)
}

func releaseEach(list [][]*Pin) error {
	var errs []error
	for _, pins := range list {
		errs = append(errs, releaseAll(pins))
	}
	return errors.Join(errs...)
}
