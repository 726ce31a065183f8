//go:build linux

package uring

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/pages"
	"github.com/rdmcfs/rdmcfs/rdma"
)

// tableSlots bounds the regions of a device, pairsMax its queue pairs.
const (
	tableSlots = 4096
	pairsMax   = 64
)

// Config says how a device connects.
type Config struct {
	// Listen is the IP address that queue pairs are dialled at; default 127.0.0.1.
	Listen string
	// PacingBytesPerSec is SO_MAX_PACING_RATE of the sockets; 0 leaves it off.
	PacingBytesPerSec uint64
	// SocketBuffer is SO_SNDBUF and SO_RCVBUF in bytes; 0 leaves the kernel's tuning.
	SocketBuffer int
}

// Device pins memory and moves it over TCP.
type Device struct {
	cfg   Config
	ring  *ring
	free  []uint32 // slots of the table
	table map[rdma.RegionKey]*region
	pairs [pairsMax]*pair
	spent Spent
}

// Spent is the time that registering took.
type Spent struct {
	Registering, Deregistering time.Duration
	Registrations              int
	Bytes                      int64
}

var _ rdma.Device = (*Device)(nil)

// New makes a device of this thread, which must be locked to its goroutine.
func New(cfg Config) (*Device, error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1"
	}
	r, err := newRing(tableSlots)
	if err != nil {
		return nil, err
	}
	d := &Device{cfg: cfg, ring: r, table: make(map[rdma.RegionKey]*region)}
	for i := range uint32(tableSlots) {
		d.free = append(d.free, tableSlots-1-i)
	}
	return d, nil
}

// Name is "uring".
func (d *Device) Name() string { return "uring" }

// Limits are those of registered buffers.
func (d *Device) Limits() rdma.Limits {
	return rdma.Limits{MaxQueueDepth: 1 << 12, MaxSGE: 8, MaxMessage: 1 << 30}
}

// OrderedWrites is false: the kernel copies in any order.
func (d *Device) OrderedWrites() bool { return false }

// Spent returns how long registering has taken so far.
func (d *Device) Spent() Spent { return d.spent }

// region is a slot of the table.
type region struct {
	d      *Device
	mem    []byte
	slot   uint32
	access rdma.Access
	mapped bool
	stale  bool
	closed bool
}

// AllocRegion maps and pins anonymous memory.
func (d *Device) AllocRegion(size int, access rdma.Access) (rdma.Region, error) {
	mem, err := pages.Map(size)
	if err != nil {
		return nil, fmt.Errorf("uring: %w", err)
	}
	r, err := d.Register(mem, access)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(mem))
	}
	r.(*region).mapped = true
	return r, nil
}

// Register pins the caller's memory.
func (d *Device) Register(mem []byte, access rdma.Access) (rdma.Region, error) {
	if len(mem) == 0 || len(d.free) == 0 {
		return nil, fmt.Errorf("uring: register %d bytes, %d slots left: %w", len(mem), len(d.free), rdma.ErrRequest)
	}
	slot := d.free[len(d.free)-1]
	began := time.Now()
	err := d.ring.buffer(slot, mem)
	d.spent.Registering += time.Since(began)
	if errors.Is(err, unix.ENOMEM) {
		return nil, fmt.Errorf("uring: pin %d bytes: %w: raise the limit of locked memory (ulimit -l), or run as root",
			len(mem), err)
	}
	if err != nil {
		return nil, fmt.Errorf("uring: pin %d bytes: %w", len(mem), err)
	}
	d.spent.Registrations++
	d.spent.Bytes += int64(len(mem))
	d.free = d.free[:len(d.free)-1]
	r := &region{d: d, mem: mem, slot: slot, access: access}
	d.table[r.Key()] = r
	return r, nil
}

func (r *region) Bytes() []byte       { return r.mem }
func (r *region) Key() rdma.RegionKey { return rdma.RegionKey(r.slot + 1) }
func (r *region) Invalidate()         { r.stale = true }

// Close unpins the memory. No work may be posted on it.
func (r *region) Close() error {
	if r.closed {
		return nil
	}
	r.closed, r.stale = true, true
	d := r.d
	delete(d.table, r.Key())
	began := time.Now()
	err := d.ring.buffer(r.slot, nil)
	d.spent.Deregistering += time.Since(began)
	d.free = append(d.free, r.slot)
	if r.mapped {
		err = errors.Join(err, unix.Munmap(r.mem))
	}
	if err != nil {
		return fmt.Errorf("uring: unpin %d bytes: %w", len(r.mem), err)
	}
	return nil
}

// Close ends all pairs and unpins everything.
func (d *Device) Close() error {
	var errs []error
	for _, q := range d.pairs {
		if q != nil {
			errs = append(errs, q.Close())
		}
	}
	for _, r := range d.table {
		errs = append(errs, r.Close())
	}
	d.ring.close()
	return errors.Join(errs...)
}

// queue is a completion queue; it drives the device.
type queue struct {
	d    *Device
	done []rdma.Completion
	head int
}

// NewCQ makes a completion queue.
func (d *Device) NewCQ(int) (rdma.CompletionQueue, error) { return &queue{d: d}, nil }

func (c *queue) Close() error { return nil }

func (c *queue) push(w rdma.Completion) { c.done = append(c.done, w) }

// Poll moves completions to out, after it has moved what can move.
func (c *queue) Poll(out []rdma.Completion) int {
	c.d.drive(0)
	n := copy(out, c.done[c.head:])
	if c.head += n; c.head == len(c.done) {
		c.head, c.done = 0, c.done[:0]
	}
	return n
}

// waitSlice is how often a waiter looks at its context.
const waitSlice = 50 * time.Millisecond

// Wait blocks in the kernel until something has completed.
func (c *queue) Wait(ctx context.Context) error {
	for c.head == len(c.done) {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := c.d.drive(waitSlice); err != nil {
			return err
		}
	}
	return nil
}

// drive submits what is to be submitted, and handles what has completed, until nothing has.
func (d *Device) drive(timeout time.Duration) error {
	for {
		if err := d.ring.enter(timeout); err != nil {
			return err
		}
		any := false
		for c, ok := d.ring.pop(); ok; c, ok = d.ring.pop() {
			any = true
			if q := d.pairs[c.user>>1]; c.user&1 == userSend {
				q.sentSome(c.res)
			} else {
				q.cameSome(c.res)
			}
		}
		if !any && d.ring.pending == 0 {
			return nil
		}
		timeout = 0
	}
}
