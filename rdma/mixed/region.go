package mixed

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/internal/pages"
	"github.com/rdmcfs/rdmcfs/rdma"
)

// region is memory that several devices have registered. For local use each has a registration without remote
// rights, made when it is first needed and kept until the end; for remote use another, withdrawn when the region
// becomes stale. So work that was posted before goes on.
type region struct {
	dev    *Device
	mem    []byte
	key    rdma.RegionKey
	locals []atomic.Pointer[registration] // by member; that of the last owns the memory
	uses   pages.Uses                     // by requests that are held here

	mu      sync.Mutex    // protects all below, and the making of registrations
	remotes []rdma.Region // by member; empty without remote rights
	listed  bool          // the key has a slot in the directory
	err     error         // of Close
}

// registration makes a pointer of an interface.
type registration struct{ rdma.Region }

var _ rdma.Region = (*region)(nil)

// region makes one of the last device's registration, unless that failed.
func (d *Device) region(own rdma.Region, access rdma.Access, err error) (rdma.Region, error) {
	if err != nil {
		return nil, err
	}
	r := &region{dev: d, mem: own.Bytes(), locals: make([]atomic.Pointer[registration], len(d.members))}
	r.uses.Init()
	r.locals[len(d.members)-1].Store(&registration{own})
	if access == 0 {
		return r, nil
	}
	if err := r.publish(access); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// publish registers the region for peers on all devices.
func (r *region) publish(access rdma.Access) error {
	d := r.dev
	r.remotes = make([]rdma.Region, len(d.members))
	if err := r.name(access); err != nil {
		return err
	}
	for i, m := range d.members[:len(d.members)-1] {
		wasBenched := m.isBenched()
		remote, err := m.Register(r.mem, access)
		switch {
		case err == nil:
			r.remotes[i] = remote
			d.directory.write(i, r.key, remote.Key(), m.kind)
		case !wasBenched: // else it carries no new pairs
			d.bench(i, "register memory", err)
			return fmt.Errorf("mixed: region of %d bytes: %w", len(r.mem), err)
		}
	}
	return nil
}

// name registers the region with the last device, again and again until its key falls into a slot that is free.
func (r *region) name(access rdma.Access) error {
	last := len(r.dev.members) - 1
	var others []rdma.Region // kept until the end, as their keys would come again
	defer func() {
		for _, o := range others {
			_ = o.Close()
		}
	}()
	const triesMax = 64 // half of the slots are free
	for range triesMax {
		remote, err := r.dev.last().Register(r.mem, access)
		if err != nil {
			return err
		}
		r.listed, err = r.dev.directory.reserve(remote.Key())
		if r.listed {
			r.remotes[last], r.key = remote, remote.Key()
			return nil
		}
		others = append(others, remote)
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("mixed: no free slot for a region in %d tries: %w", triesMax, rdma.ErrQueueFull)
}

// Bytes is the memory of the region.
func (r *region) Bytes() []byte { return r.mem }

// Key is the remote key; zero without remote rights.
func (r *region) Key() rdma.RegionKey { return r.key }

// Invalidate withdraws the region from peers and refuses later posts.
func (r *region) Invalidate() {
	r.uses.Invalidate()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, remote := range r.remotes {
		if remote != nil {
			remote.Invalidate()
		}
	}
}

// on is the registration for local use with a member.
func (r *region) on(i int) (rdma.Region, error) {
	if local := r.locals[i].Load(); local != nil {
		return local.Region, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if local := r.locals[i].Load(); local != nil {
		return local.Region, nil
	}
	if r.uses.Over() {
		return nil, fmt.Errorf("mixed: region is closed: %w", rdma.ErrState)
	}
	local, err := r.dev.members[i].Register(r.mem, 0)
	if err != nil {
		r.dev.bench(i, "register memory", err)
		return nil, fmt.Errorf("mixed: use region with %s: %w", r.dev.members[i].Name(), err)
	}
	r.locals[i].Store(&registration{local})
	return local, nil
}

// check refuses a piece of the region that does not exist, or cannot be used any more.
func (r *region) check(e *rdma.SGE) error {
	if e.Offset < 0 || e.Length < 0 || e.Offset > len(r.mem) || e.Length > len(r.mem)-e.Offset {
		return fmt.Errorf("mixed: %d bytes at %d of a region with %d: %w", e.Length, e.Offset, len(r.mem), rdma.ErrBounds)
	}
	if r.uses.Stale() {
		return fmt.Errorf("mixed: region is stale: %w", rdma.ErrState)
	}
	return nil
}

// acquire makes a held request a user of the region, until release.
func (r *region) acquire() bool { return r.uses.Acquire() }

func (r *region) release() { r.uses.Release() }

// Close waits for the users of the region, and ends all its registrations.
func (r *region) Close() error {
	if !r.uses.Close() {
		<-r.uses.Ended()
		return r.err
	}
	<-r.uses.Idle()
	defer r.uses.End()
	// it waits for a registration that is being made, too: what comes later finds the region over
	r.Invalidate()
	for i := range r.locals { // the last one frees the memory: peers must have let go of it
		if i == len(r.locals)-1 {
			r.unpublish()
		}
		if local := r.locals[i].Load(); local != nil {
			r.err = errors.Join(r.err, local.Close())
		}
	}
	return r.err
}

func (r *region) unpublish() {
	for _, remote := range r.remotes {
		if remote != nil {
			r.err = errors.Join(r.err, remote.Close())
		}
	}
	if r.listed {
		r.dev.directory.release(r.key)
	}
}
