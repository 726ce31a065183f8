package mem

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// Limits of the devices of this provider.
const (
	maxQueueDepth = 1 << 14
	maxSGE        = 8
	maxInline     = 256
	maxMessage    = 1 << 30
)

// Device is one endpoint of a fabric.
type Device struct {
	soft.Base
	fabric *Fabric
	name   string
	table  *soft.Table

	// Below: protected by the fabric's lock.
	pairs   pairList
	stopped bool
	dead    bool // killed
	closed  bool
}

var _ rdma.Device = (*Device)(nil)

func newDevice(f *Fabric, name string) *Device {
	table := soft.NewTable(f.nextKey)
	table.NoWait = f.cfg.Stepped
	return &Device{Base: soft.NewBase(table), fabric: f, name: name, table: table}
}

// Name is "mem:" and the name in the fabric.
func (d *Device) Name() string { return "mem:" + d.name }

// Limits are those of software verbs.
func (d *Device) Limits() rdma.Limits {
	return rdma.Limits{MaxQueueDepth: maxQueueDepth, MaxSGE: maxSGE, MaxInline: maxInline, MaxMessage: maxMessage}
}

// NewQP makes a queue pair.
func (d *Device) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	f := d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.closed || d.dead {
		return nil, fmt.Errorf("mem: new queue pair on %s: %w", d.name, rdma.ErrClosed)
	}
	q, err := newQueuePair(d, cfg)
	if err != nil {
		return nil, err
	}
	d.pairs.add(q)
	f.pairs[q.token] = q
	return q, nil
}

// Close ends all pairs and frees all regions.
func (d *Device) Close() error {
	f := d.fabric
	f.mu.Lock()
	if d.closed {
		f.mu.Unlock()
		return nil
	}
	d.closed = true
	f.nowLocked()
	for q := range d.pairs.all() {
		q.closed = true
		q.failLocked(rdma.StatusFlushed)
		f.forgetLocked(q)
	}
	if f.devices[d.name] == d {
		delete(f.devices, d.name)
	}
	f.open--
	last := f.open == 0
	if last && f.quit != nil {
		close(f.quit)
		f.quit = nil
	}
	f.mu.Unlock()
	if last {
		f.runner.Wait()
	}
	return d.table.Close()
}

// forgetLocked drops a closed pair.
func (f *Fabric) forgetLocked(q *queuePair) {
	delete(f.pairs, q.token)
	q.dev.pairs.remove(q)
}
