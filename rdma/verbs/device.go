//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// device is an open port of an RDMA device.
type device struct {
	cfg      Config
	lib      *library
	info     DeviceInfo
	port     int                   // its number
	at       atomic.Pointer[place] // where it is reached, by the last event
	limits   rdma.Limits
	readsOut uint8 // outstanding reads of a pair
	readsIn  uint8
	context  uintptr
	pd       uintptr
	channel  uintptr
	ops      operationsOf
	bell     *bell
	pairIDs  atomic.Uint32

	completions, asyncs *os.File       // descriptors of the library's, for Go's poller
	present             string         // a file that is there as long as the device is
	stop                chan struct{}  // closed by Close: watchPresence ends
	tasks               sync.WaitGroup // the goroutines that take events
	calls               sync.WaitGroup // calls that make objects
	closing             sync.Once
	closeErr            error

	mu       sync.Mutex // protects all below; before no other lock
	closed   bool
	gone     error // why nothing works any more
	pairs    map[token]*queuePair
	byHandle map[uintptr]*queuePair
	queues   map[uintptr]*deviceCQ
	regions  map[*region]struct{}
}

// operationsOf are the functions that the library keeps in its context.
type operationsOf struct{ pollCQ, notifyCQ, postSend, postRecv uintptr }

var _ rdma.Device = (*device)(nil)

// Name is "verbs:" and device and port.
func (d *device) Name() string { return fmt.Sprintf("verbs:%s/%d", d.info.Name, d.port) }

// String gives the name, and how the device is reached.
func (d *device) String() string {
	at := d.at.Load()
	g := &at.gid
	if gone := d.Status().Err; gone != nil {
		return fmt.Sprintf("%s (%v)", d.Name(), gone)
	}
	return fmt.Sprintf("%s (%s, GID %d %v %s, MTU %d)", d.Name(), at.port.LinkLayer, g.Index, g.GID.Unmap(), g.Type,
		at.port.MTU)
}

// Status returns the present state.
func (d *device) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Status{Device: d.info.Name, Port: d.port, GID: d.at.Load().gid.GID.Unmap().String(), Limits: d.limits,
		QueuePairs: len(d.pairs), Err: d.gone}
}

// Limits are the device's, cut to what fits every use.
func (d *device) Limits() rdma.Limits { return d.limits }

// mellanox is the vendor whose devices place writes in order without being asked to.
const mellanox = 0x02c9

// OrderedWrites is true for devices that are known for it.
func (d *device) OrderedWrites() bool { return d.info.Vendor == mellanox }

// usable returns the reason why the device takes no more calls, if there is one.
func (d *device) usable() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usableLocked()
}

func (d *device) usableLocked() error {
	switch {
	case d.closed:
		return fmt.Errorf("verbs: device %s: %w", d.info.Name, rdma.ErrClosed)
	case d.gone != nil:
		return fmt.Errorf("%s: %w", d.info.Name, d.gone)
	}
	return nil
}

// lost reports whether the device is gone.
func (d *device) lost() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gone != nil
}

// enter begins a call that makes an object; calls.Done ends it.
func (d *device) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usableLocked(); err != nil {
		return err
	}
	d.calls.Add(1)
	return nil
}

// AllocRegion maps anonymous memory.
func (d *device) AllocRegion(size int, access rdma.Access) (rdma.Region, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	r, err := d.alloc(size, access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Register registers the caller's memory.
func (d *device) Register(mem []byte, access rdma.Access) (rdma.Region, error) {
	r, err := d.register(mem, access, false)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// NewCQ makes a completion queue.
func (d *device) NewCQ(depth int) (rdma.CompletionQueue, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	q, err := newCompletionQueue(d, depth)
	if err != nil {
		return nil, err
	}
	return q, nil
}

// NewQP makes a queue pair. Its peer can reach it from now on.
func (d *device) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.calls.Done()
	q, err := d.newPair(cfg)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pairs[q.local.token] = q
	d.byHandle[q.handle] = q
	return q, nil
}

func (d *device) forgetPair(q *queuePair) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pairs, q.local.token)
}

// forgetHandle is forgetPair for the device's name of the pair, which may be used again once it is destroyed.
func (d *device) forgetHandle(q *queuePair) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byHandle, q.handle)
}

// deliver gives a datagram to its pair.
func (d *device) deliver(m *message, text []byte) {
	d.mu.Lock()
	q := d.pairs[m.to]
	d.mu.Unlock()
	if q != nil {
		q.told(m, text)
	}
}

// allPairs are the pairs there are.
func (d *device) allPairs() []*queuePair {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*queuePair, 0, len(d.pairs))
	for _, q := range d.pairs {
		all = append(all, q)
	}
	return all
}

// ask makes all pairs find out which silent requests are done.
func (d *device) ask() {
	for _, q := range d.allPairs() {
		q.mu.Lock()
		q.askLocked()
		q.mu.Unlock()
	}
}

// failAll ends all pairs, as their paths are broken.
func (d *device) failAll() {
	for _, q := range d.allPairs() {
		q.fail(rdma.StatusDisconnected)
	}
}

// lose marks the device as gone, for good, and ends all pairs.
func (d *device) lose(why string) {
	d.mu.Lock()
	first := d.gone == nil
	if first {
		d.gone = fmt.Errorf("%w: %s", ErrGone, why)
	}
	d.mu.Unlock()
	if first {
		d.cfg.Log.Error("device gone", "device", d.Name(), "why", why)
		d.failAll()
	}
}

// Close ends all pairs, frees all regions, and waits for every goroutine.
func (d *device) Close() error {
	d.closing.Do(func() { d.closeErr = d.shut() })
	return d.closeErr
}

func (d *device) shut() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.calls.Wait()
	pairs := d.allPairs()
	for _, q := range pairs {
		q.Abort()
	}
	for _, q := range pairs {
		_ = q.Close()
	}
	d.mu.Lock()
	var regions []*region
	for r := range d.regions {
		regions = append(regions, r)
	}
	d.mu.Unlock()
	var err error
	for _, r := range regions {
		err = errors.Join(err, r.Close())
	}
	if err = errors.Join(err, d.free()); d.lost() {
		return nil // a device that is gone refuses everything
	}
	return err
}

// free gives back what open made, as far as it got.
func (d *device) free() error {
	var err error
	if d.bell != nil {
		err = d.bell.close()
	}
	close(d.stop)
	for _, f := range []*os.File{d.completions, d.asyncs} {
		if f != nil {
			_ = f.Close()
		}
	}
	d.tasks.Wait()
	d.mu.Lock()
	var queues []*deviceCQ
	for _, q := range d.queues {
		queues = append(queues, q)
	}
	d.mu.Unlock()
	for _, q := range queues {
		q.destroy()
	}
	for _, o := range []struct {
		what         string
		free, object uintptr
	}{
		{"destroy completion channel", d.lib.destroyChannel, d.channel},
		{"free protection domain", d.lib.deallocPD, d.pd},
		{"close device", d.lib.closeDevice, d.context},
	} {
		if o.object != 0 {
			err = errors.Join(err, d.lib.check(o.what, o.free, o.object))
		}
	}
	return err
}
