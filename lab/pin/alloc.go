package pin

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Block is memory that a domain allocated: a region that counts against the budget until Close.
type Block struct {
	rdma.Region
	d    *Domain
	e    *entry
	once sync.Once
	err  error
}

// Alloc makes the device map and register size bytes, if the budget has room or idle registrations can make room; else
// it returns ErrBudget. The block's Region, not the block, is what work requests name.
func (d *Domain) Alloc(size int, access rdma.Access) (*Block, error) {
	if size <= 0 {
		return nil, fmt.Errorf("pin: allocate %d bytes: %w", size, rdma.ErrRequest)
	}
	e, l, err := d.fixed(size)
	if err != nil {
		return nil, err
	}
	return d.alloc(e, l, size, access)
}

// fixed enters size bytes into the book, outside of what claims share.
func (d *Domain) fixed(size int) (*entry, *live, error) {
	for {
		d.mu.Lock()
		v, e, victims := d.book.take(want{span: span{0, uint64(size)}, fixed: true}) // where nothing is mapped ever
		news := d.news
		if v == made {
			d.counts.Made++
			d.counts.MadeBytes += int64(size)
			d.peak = max(d.peak, d.book.used)
			l := &live{ready: make(chan struct{}), lost: make(map[*Pin]func())}
			d.live[e] = l
			d.mu.Unlock()
			return e, l, nil
		}
		d.counts.Evicted += int64(len(victims))
		d.mu.Unlock()
		switch v {
		case evicted:
			if err := d.deregister(victims); err != nil {
				return nil, nil, err
			}
		case waiting:
			if err := awaitEnd(news); err != nil {
				return nil, nil, err
			}
		default:
			return nil, nil, fmt.Errorf("%w: %d bytes more, budget %d", ErrBudget, size, d.budget)
		}
	}
}

// endPatience is how long a device may take to end a registration that nobody uses.
const endPatience = 10 * time.Second

// awaitEnd waits for others to deregister what nobody uses.
func awaitEnd(news <-chan struct{}) error {
	timer := time.NewTimer(endPatience)
	defer timer.Stop()
	select {
	case <-news:
		return nil
	case <-timer.C:
		return fmt.Errorf("%w: the device did not end a registration in %v", ErrBudget, endPatience)
	}
}

func (d *Domain) alloc(e *entry, l *live, size int, access rdma.Access) (*Block, error) {
	l.region, l.err = d.dev.AllocRegion(size, access)
	close(l.ready)
	b := &Block{Region: l.region, d: d, e: e}
	if l.err != nil {
		_ = b.Close()
		return nil, fmt.Errorf("pin: allocate %d bytes: %w", size, l.err)
	}
	return b, nil
}

// Close waits until no work uses the block, and frees it.
func (b *Block) Close() error {
	b.once.Do(func() {
		b.d.mu.Lock()
		b.d.book.give(b.e)
		b.d.mu.Unlock()
		b.err = b.d.deregister([]*entry{b.e})
	})
	return b.err
}

// Reserve takes size bytes of the budget, until Close, for regions that the caller makes by itself on the domain's
// device; it returns ErrBudget if there is no room. The block has no Region.
func (d *Domain) Reserve(size int) (*Block, error) {
	if size <= 0 {
		return nil, fmt.Errorf("pin: reserve %d bytes: %w", size, rdma.ErrRequest)
	}
	e, l, err := d.fixed(size)
	if err != nil {
		return nil, err
	}
	close(l.ready)
	return &Block{d: d, e: e}, nil
}

// Free is how much of the budget nobody uses; kept registrations that are idle count as free.
func (d *Domain) Free() int64 {
	if d.budget == 0 {
		return math.MaxInt64
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	free := d.budget
	for _, e := range d.book.entries {
		if !e.idle() {
			free -= int64(e.bytes())
		}
	}
	return free
}
