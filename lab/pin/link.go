package pin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// ErrBroken is returned by calls on a link whose queue pair has failed, or that was ended by an earlier failure.
var ErrBroken = errors.New("pin: link is broken")

// controlSlots are the buffers for all that is neither data nor about a fragment.
const controlSlots = 8

// Bounds of what a peer may propose.
const (
	fragmentMin = 4 << 10
	depthMax    = 64
)

// LinkConfig says how messages of a link are cut. Zero values are the defaults. The two ends may differ, except in
// SlotBytes and Slots.
type LinkConfig struct {
	// SlotBytes is the size of a registered buffer, with 64 bytes for a head; default 32 KiB.
	SlotBytes int
	// Slots is how many of them carry data at a time; default 8.
	Slots int
	// Eager bounds the bytes that go with the first message, and Offset where the pipelines begin to write. Default:
	// what fits into a buffer, and four times that.
	Eager, Offset int64
	// Fragment is the size of a piece that the pipelines register and write; default 256 KiB. It is up to four times
	// that in long messages, and smaller where a budget has no room.
	Fragment int64
	// Depth is how many of them are registered at a time, at each end; default 4.
	Depth int
}

func (c LinkConfig) withDefaults() (LinkConfig, error) {
	c.SlotBytes = or(c.SlotBytes, 32<<10)
	c.Slots = or(c.Slots, 8)
	c.Fragment = or(c.Fragment, 256<<10)
	c.Depth = or(c.Depth, 4)
	c.Eager = min(or(c.Eager, int64(c.SlotBytes-headBytes)), int64(c.SlotBytes-headBytes))
	c.Offset = or(c.Offset, 4*c.Eager)
	if c.SlotBytes < 2*headBytes || c.Slots < 2 || c.Fragment < fragmentMin || c.Depth < 1 || c.Depth > depthMax ||
		c.Eager < 0 || c.Offset < 0 {
		return c, fmt.Errorf("pin: link with %d buffers of %d bytes, %d fragments (1 to %d) of %d bytes (%d at least), "+
			"%d and %d bytes by send: %w",
			c.Slots, c.SlotBytes, c.Depth, depthMax, c.Fragment, fragmentMin, c.Eager, c.Offset, rdma.ErrRequest)
	}
	return c, nil
}

// Check refuses, with rdma.ErrRequest, what NewLink would.
func (c LinkConfig) Check() error {
	_, err := c.withDefaults()
	return err
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Link is one end of a connection that carries messages one at a time, either way. Its methods, except Abort, are not
// for several goroutines at once. After an error of Send or Receive the link is broken, and only that link.
type Link struct {
	d     *Domain
	cfg   LinkConfig
	dev   rdma.Device
	cq    rdma.CompletionQueue
	qp    rdma.QueuePair
	slots *Block // receives, then sends
	n     int    // of each
	free  []int  // send slots
	seq   uint32
	// parked is what came of the next message before this one ended here: the sender does not hold back its first data.
	parked [][]byte
	batch  [16]rdma.Completion
	list   []rdma.SGE
	err    error
}

// NewLink makes an end that is not connected. Its buffers count against the domain's budget.
func NewLink(d *Domain, cfg LinkConfig) (*Link, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Link{d: d, cfg: cfg, dev: d.dev, n: cfg.Slots + 2*cfg.Depth + controlSlots}
	if l.slots, err = d.Alloc(2*l.n*cfg.SlotBytes, 0); err != nil {
		return nil, err
	}
	for i := range l.n {
		l.free = append(l.free, i)
	}
	if err := l.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("pin: new link: %w", err), l.Close())
	}
	return l, nil
}

func (l *Link) open() (err error) {
	if l.cq, err = l.dev.NewCQ(4 * l.n); err != nil {
		return err
	}
	l.qp, err = l.dev.NewQP(rdma.QPConfig{SendCQ: l.cq, RecvCQ: l.cq, SendDepth: l.n + depthMax, RecvDepth: l.n})
	for i := 0; err == nil && i < l.n; i++ {
		err = l.postRecv(i)
	}
	return err
}

// Address is for the peer's Connect.
func (l *Link) Address() []byte { return l.qp.Address() }

// Connect joins two ends; both sides call it.
func (l *Link) Connect(ctx context.Context, remote []byte) error {
	if err := l.qp.Connect(ctx, remote); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	return nil
}

// Abort breaks the link without waiting: calls under way return.
func (l *Link) Abort() { l.qp.Abort() }

// Close ends the link and frees its buffers. No call may be under way.
func (l *Link) Close() error {
	var errs []error
	if l.qp != nil {
		errs = append(errs, l.qp.Close())
	}
	if l.cq != nil {
		errs = append(errs, l.cq.Close())
	}
	l.err = ErrBroken
	return errors.Join(append(errs, l.slots.Close())...)
}

func (l *Link) slot(i int) []byte { return l.slots.Bytes()[i*l.cfg.SlotBytes : (i+1)*l.cfg.SlotBytes] }

func (l *Link) slotList(i, length int) []rdma.SGE {
	l.list = append(l.list[:0], rdma.SGE{Region: l.slots.Region, Offset: i * l.cfg.SlotBytes, Length: length})
	return l.list
}

func (l *Link) postRecv(i int) error {
	return l.qp.PostRecv(rdma.RecvWR{ID: uint64(i), List: l.slotList(i, l.cfg.SlotBytes)})
}

// writeID marks the number of a fragment in the ID of its write.
const writeID = 1 << 63

// post sends a frame; fill, if not nil, puts length bytes of payload behind it. The caller has made sure that there is
// a free slot.
func (l *Link) post(f frame, fill func(payload []byte) error) error {
	i := l.free[len(l.free)-1]
	f.seq = l.seq
	b := l.slot(l.n + i)
	f.put(b)
	if fill != nil {
		if err := fill(b[headBytes : headBytes+f.length]); err != nil {
			return err
		}
	}
	wr := rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, List: l.slotList(l.n+i, headBytes+int(f.length))}
	if err := l.qp.PostSend(wr); err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	l.free = l.free[:len(l.free)-1]
	return nil
}

// end is one side of a message under way.
type end interface {
	// frame takes a message of the peer; the payload is valid until it returns.
	frame(f *frame, payload []byte) error
	// written is called when our write of a fragment has ended.
	written(i int64) error
	// finished is called when the peer has written all fragments up to i.
	finished(i uint32) error
	// release gives up all registrations: nothing works on them any more.
	release() error
}

// step handles completions. With wait it blocks until there is one, or ctx is done.
func (l *Link) step(ctx context.Context, e end, wait bool) error {
	n := l.cq.Poll(l.batch[:])
	if n == 0 && wait {
		if err := l.cq.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return err
		}
		n = l.cq.Poll(l.batch[:])
	}
	for i := range n {
		if err := l.complete(&l.batch[i], e); err != nil {
			return l.withReason(err, l.batch[i:n])
		}
	}
	return context.Cause(ctx)
}

func (l *Link) complete(c *rdma.Completion, e end) error {
	if c.Status != rdma.StatusOK {
		return fmt.Errorf("%w: %v: %v", ErrBroken, c.Op, c.Status)
	}
	switch c.Op {
	case rdma.OpSend:
		l.free = append(l.free, int(c.ID))
		return nil
	case rdma.OpWrite, rdma.OpWriteImm:
		return e.written(int64(c.ID &^ writeID))
	case rdma.OpRecvWriteImm:
		_ = l.postRecv(int(c.ID)) // as below
		return e.finished(c.Imm)
	}
	b := l.slot(int(c.ID))[:c.Bytes]
	f, payload, err := decodeFrame(b)
	switch {
	case err != nil:
	case f.seq == l.seq+1 && (f.kind == kindMatch || f.kind == kindData) && len(l.parked) <= l.cfg.Slots:
		l.parked = append(l.parked, bytes.Clone(b))
	case f.kind == kindError:
		err = peerError(payload)
	default:
		err = e.frame(&f, payload)
	}
	if err == nil {
		_ = l.postRecv(int(c.ID)) // it fails only on a broken pair, which completions report
	}
	return err
}

// peerError is what the peer says before it ends the link.
type peerError string

func (e peerError) Error() string { return fmt.Sprintf("the peer says: %.200q", string(e)) }
func (e peerError) Unwrap() error { return ErrBroken }

// withReason looks for the peer's reason in completions that came with or after a failure.
func (l *Link) withReason(cause error, after []rdma.Completion) error {
	if errors.As(cause, new(peerError)) {
		return cause
	}
	for _, c := range after {
		if c.Op != rdma.OpRecv || c.Status != rdma.StatusOK {
			continue
		}
		if f, payload, err := decodeFrame(l.slot(int(c.ID))[:c.Bytes]); err == nil && f.kind == kindError {
			return fmt.Errorf("%w (%w)", peerError(payload), cause)
		}
	}
	return cause
}

// budgetPatience is how long an end that holds nothing waits for the budget before it looks whether the peer is still
// there.
const budgetPatience = 20 * time.Millisecond

// awaitRoom waits for others to release registered memory. An end that holds some itself goes on when that use has
// ended.
func (l *Link) awaitRoom(ctx context.Context, held int64) error {
	if held > 0 {
		return nil
	}
	l.d.mu.Lock()
	news := l.d.news
	l.d.mu.Unlock()
	timer := time.NewTimer(budgetPatience)
	defer timer.Stop()
	select {
	case <-news:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// farewell bounds how long a failing end waits until the peer has the reason.
const farewell = 500 * time.Millisecond

// fail ends the link. The peer gets the reason, if it can be reached, and nothing works on registered memory when fail
// returns.
func (l *Link) fail(e end, m Memory, cause error) error {
	if f, ok := m.(interface{ Check() error }); ok && !errors.Is(cause, ErrStale) {
		if err := f.Check(); err != nil {
			cause = fmt.Errorf("%w (%w)", err, cause)
		}
	}
	if !errors.Is(cause, ErrBroken) && len(l.free) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		text := cause.Error()
		text = text[:min(len(text), 200)]
		free := len(l.free)
		err := l.post(frame{kind: kindError, length: uint32(len(text))}, func(p []byte) error { copy(p, text); return nil })
		for err == nil && len(l.free) < free {
			err = l.step(ctx, deaf{}, true)
		}
		cancel()
	}
	l.qp.Abort()
	closeErr := l.qp.Close()
	for n := l.cq.Poll(l.batch[:]); n > 0; n = l.cq.Poll(l.batch[:]) {
		cause = l.withReason(cause, l.batch[:n])
	}
	l.err = fmt.Errorf("%w by an earlier failure: %w", ErrBroken, cause)
	return errors.Join(cause, closeErr, e.release())
}

// deaf is the end of a message that has failed.
type deaf struct{}

func (deaf) frame(*frame, []byte) error { return nil }
func (deaf) written(int64) error        { return nil }
func (deaf) finished(uint32) error      { return nil }
func (deaf) release() error             { return nil }
