package pin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var (
	// ErrBudget is returned if others use so many registered bytes that these do not fit, or if the budget is smaller
	// than these. Send by the pipeline, with smaller fragments, or raise the budget.
	ErrBudget = errors.New("pin: budget of registered memory is used up")
	// ErrStale is what users of a registration hear when its memory changed: it was unmapped, or its file became
	// shorter.
	ErrStale = errors.New("pin: registered memory was changed under a transfer")
)

// Config says how a domain registers.
type Config struct {
	// Budget bounds the bytes that are registered at a time, of all users together; 0 is no bound.
	Budget int64
}

// Domain holds the registrations of a device. Its methods may be called from several goroutines.
type Domain struct {
	dev    rdma.Device
	budget int64

	mu     sync.Mutex
	book   ledger
	peak   uint64
	counts Stats
	news   chan struct{}    // closed and replaced whenever an entry has gone or lost a user
	live   map[*entry]*live // what the entries stand for
}

// live is a registration in the making, or made.
type live struct {
	ready  chan struct{} // closed when region or err is set
	region rdma.Region
	err    error
	lost   map[*Pin]func() // called at invalidation; guarded by Domain.mu
}

// Stats are counts since the domain was made, except Bytes and Entries.
type Stats struct {
	Bytes         int64 `json:"bytes"`         // registered now
	Entries       int   `json:"entries"`       // registrations now
	Peak          int64 `json:"peak"`          // most bytes at a time
	Hits          int64 `json:"hits"`          // found in the cache
	Made          int64 `json:"made"`          // registered
	MadeBytes     int64 `json:"madeBytes"`     // of them
	Evicted       int64 `json:"evicted"`       // to make room
	Invalidations int64 `json:"invalidations"` // registrations whose memory changed
}

// NewDomain makes the domain of a device, which stays the caller's. All that is registered elsewhere on it is not
// counted.
func NewDomain(dev rdma.Device, cfg Config) *Domain {
	return &Domain{
		dev: dev, budget: cfg.Budget, book: ledger{budget: uint64(max(cfg.Budget, 0))},
		news: make(chan struct{}), live: make(map[*entry]*live),
	}
}

// Device is the device of the domain.
func (d *Domain) Device() rdma.Device { return d.dev }

// Budget is the bound of registered bytes; 0 is none.
func (d *Domain) Budget() int64 { return d.budget }

// Stats counts what is registered, and what has been.
func (d *Domain) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.counts
	s.Bytes, s.Entries, s.Peak = int64(d.book.used), len(d.book.entries), int64(d.peak)
	return s
}

// Pin is one use of a registration.
type Pin struct {
	d      *Domain
	e      *entry
	l      *live
	offset int
	length int
	found  bool // not registered for this use
	once   sync.Once
}

// SGE is the memory that was asked for, as a piece of its region.
func (p *Pin) SGE() rdma.SGE {
	return rdma.SGE{Region: p.l.region, Offset: p.offset, Length: p.length}
}

// extend makes the pin n bytes longer, if its registration has them.
func (p *Pin) extend(n int64) bool {
	if uint64(p.offset+p.length)+uint64(n) > p.e.bytes() {
		return false
	}
	p.length += int(n)
	return true
}

// Ask is a request for registered memory.
type Ask struct {
	Memory []byte
	Access rdma.Access
	// Keep makes the registration findable by later asks for the same memory or a part of it, and keeps it when it is
	// not used.
	Keep bool
	// Claim bounds the part of the budget.
	Claim Claim
	// Lost, if set, is called when the memory is invalidated while it is used: the user makes its transfer fail and
	// releases the pin. It must not block, nor call the domain.
	Lost func()
}

func (a *Ask) span() span {
	lo := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(a.Memory))))
	return span{lo, lo + uint64(len(a.Memory))}
}

// Try registers memory, or finds it registered. It waits for the device, but not for other users: then it returns
// ErrBudget.
func (d *Domain) Try(a Ask) (*Pin, error) {
	return d.get(context.Background(), &a, false)
}

// Find is Try for what is registered already: nil if it is not, or is more than the claim may hold now. It does not
// wait.
func (d *Domain) Find(a Ask) *Pin {
	w := want{span: a.span(), access: a.Access, keep: a.Keep, claim: a.Claim}
	d.mu.Lock()
	e := d.book.reuse(w)
	if e == nil {
		d.mu.Unlock()
		return nil
	}
	p := d.foundLocked(e, &a)
	d.mu.Unlock()
	select {
	case <-p.l.ready:
		if p, err := d.made(p); err == nil {
			return p
		}
	default:
		_ = p.Release() // its maker holds it as well: nothing is deregistered
	}
	return nil
}

// Room is how many bytes may be registered with a claim if nobody else uses any, except allocated blocks.
func (d *Domain) Room(claim Claim) int64 {
	if d.budget == 0 {
		return math.MaxInt64
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return int64(d.book.share(want{claim: claim}))
}

// Register is Try that waits until the budget has room, or ctx is done. Memory larger than the budget is refused at
// once.
func (d *Domain) Register(ctx context.Context, a Ask) (*Pin, error) {
	return d.get(ctx, &a, true)
}

func (d *Domain) get(ctx context.Context, a *Ask, wait bool) (*Pin, error) {
	w := want{span: a.span(), access: a.Access, keep: a.Keep, claim: a.Claim}
	if w.empty() {
		return nil, fmt.Errorf("pin: register no memory: %w", rdma.ErrRequest)
	}
	for {
		d.mu.Lock()
		v, e, victims := d.book.take(w)
		switch v {
		case found:
			p := d.foundLocked(e, a)
			d.mu.Unlock()
			return d.made(p)
		case made:
			d.counts.Made++
			d.counts.MadeBytes += int64(len(a.Memory))
			d.peak = max(d.peak, d.book.used)
			l := &live{ready: make(chan struct{}), lost: make(map[*Pin]func())}
			d.live[e] = l
			p := d.useLocked(e, l, a)
			d.mu.Unlock()
			l.region, l.err = d.dev.Register(a.Memory, a.Access)
			close(l.ready)
			return d.made(p)
		case evicted:
			d.counts.Evicted += int64(len(victims))
			d.mu.Unlock()
			if err := d.deregister(victims); err != nil {
				return nil, err
			}
			continue
		case refused:
			if !wait || d.book.never(w) {
				d.mu.Unlock()
				return nil, d.tooMuch(a)
			}
		}
		news := d.news
		d.mu.Unlock()
		if !wait {
			if err := awaitEnd(news); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", d.tooMuch(a), context.Cause(ctx))
		}
	}
}

func (d *Domain) tooMuch(a *Ask) error {
	return fmt.Errorf("%w: %d bytes more, budget %d", ErrBudget, len(a.Memory), d.budget)
}

func (d *Domain) useLocked(e *entry, l *live, a *Ask) *Pin {
	p := &Pin{d: d, e: e, l: l, offset: int(a.span().lo - e.lo), length: len(a.Memory)}
	if a.Lost != nil {
		l.lost[p] = a.Lost
	}
	return p
}

// foundLocked is useLocked for an entry that was there.
func (d *Domain) foundLocked(e *entry, a *Ask) *Pin {
	d.counts.Hits++
	p := d.useLocked(e, d.live[e], a)
	p.found = true
	return p
}

// made waits until the device has registered, and gives up the use of what it has not, or what was invalidated
// meanwhile.
func (d *Domain) made(p *Pin) (*Pin, error) {
	<-p.l.ready // for one registration
	err := p.l.err
	d.mu.Lock()
	if err != nil {
		p.e.stale = true // to be found by nobody
	} else if p.e.stale {
		err = ErrStale
	}
	d.mu.Unlock()
	if err == nil {
		return p, nil
	}
	_ = p.Release()
	return nil, fmt.Errorf("pin: register %d bytes: %w", p.length, err)
}

// Release ends the use. A registration that is not kept, or whose memory changed, is deregistered by its last user:
// the device must not work on it any more, or Release waits for that.
func (p *Pin) Release() (err error) {
	p.once.Do(func() {
		d := p.d
		d.mu.Lock()
		delete(p.l.lost, p)
		leave := d.book.give(p.e)
		if !leave {
			d.tellLocked()
		}
		d.mu.Unlock()
		if leave {
			err = d.deregister([]*entry{p.e})
		}
	})
	return err
}

// tellLocked wakes all callers that wait for room.
func (d *Domain) tellLocked() {
	close(d.news)
	d.news = make(chan struct{})
}

// deregister ends registrations that the book calls leaving.
func (d *Domain) deregister(entries []*entry) error {
	var errs []error
	for _, e := range entries {
		d.mu.Lock()
		l := d.live[e]
		d.mu.Unlock()
		<-l.ready
		if l.region != nil {
			errs = append(errs, l.region.Close())
		}
		d.mu.Lock()
		d.book.gone(e)
		delete(d.live, e)
		d.tellLocked()
		d.mu.Unlock()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pin: deregister: %w", err)
	}
	return nil
}

// Invalidate says that memory is about to change in a way that registrations do not follow: it will be unmapped, or the
// file behind it becomes shorter. Registrations that share a byte with it are no longer found. The ones in use are
// withdrawn from peers, their users get notice, and they go when these users have ended. Invalidate does not wait for
// that: Drain does.
func (d *Domain) Invalidate(memory []byte) error {
	a := Ask{Memory: memory}
	d.mu.Lock()
	leave, inUse := d.book.invalidate(a.span())
	d.counts.Invalidations += int64(len(leave) + len(inUse))
	var lost []func()
	var regions []*live
	for _, e := range inUse {
		l := d.live[e]
		regions = append(regions, l)
		for _, f := range l.lost {
			lost = append(lost, f)
		}
	}
	d.mu.Unlock()
	for _, f := range lost {
		f()
	}
	for _, l := range regions {
		<-l.ready
		if l.region != nil {
			l.region.Invalidate()
		}
	}
	return d.deregister(leave)
}

// Drain waits until no registration shares a byte with memory, or ctx is done. Then it may be unmapped, and its file
// cut.
func (d *Domain) Drain(ctx context.Context, memory []byte) error {
	a := Ask{Memory: memory}
	for {
		d.mu.Lock()
		touched, news := d.book.touches(a.span()), d.news
		d.mu.Unlock()
		if !touched {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("pin: memory is still registered: %w", context.Cause(ctx))
		}
	}
}

// Flush deregisters all that nobody uses.
func (d *Domain) Flush() error {
	d.mu.Lock()
	var idle []*entry
	for _, e := range d.book.entries {
		if e.idle() {
			e.leaving = true
			idle = append(idle, e)
		}
	}
	d.mu.Unlock()
	return d.deregister(idle)
}
