package rdmc

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// spoilKind is what a faulty device does to the blocks and small messages that it sends.
type spoilKind uint8

const (
	spoilNothing spoilKind = iota
	spoilFlip              // one bit, anywhere in the block or its trailer
	spoilRepeat            // what the pair sent before once more, in the block's place
)

// faulty is a device that can spoil what it sends, and that counts the memory it has registered.
type faulty struct {
	rdma.Device
	keeps bool          // what each pair sent last, for spoilRepeat
	after time.Duration // that Connect takes here

	mu    sync.Mutex
	rng   *rand.Rand
	spoil spoilKind
	live  int // bytes registered now
	most  int // and at most so far
	alone []rdma.Region
}

func newFaulty(d rdma.Device, seed uint64, keeps bool) *faulty {
	return &faulty{Device: d, keeps: keeps, rng: rand.New(rand.NewPCG(seed, 21))}
}

// set says what happens to all that is sent from now on.
func (d *faulty) set(kind spoilKind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spoil = kind
}

// registered returns the bytes that are registered now, and the most so far.
func (d *faulty) registered() (live, most int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.live, d.most
}

func (d *faulty) count(r rdma.Region, err error) (rdma.Region, error) {
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live += len(r.Bytes())
	d.most = max(d.most, d.live)
	return &counted{Region: r, device: d, size: len(r.Bytes())}, nil
}

func (d *faulty) AllocRegion(size int, access rdma.Access) (rdma.Region, error) {
	return d.count(d.Device.AllocRegion(size, access))
}

func (d *faulty) Register(mem []byte, access rdma.Access) (rdma.Region, error) {
	return d.count(d.Device.Register(mem, access))
}

func (d *faulty) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	q, err := d.Device.NewQP(cfg)
	if err != nil {
		return nil, err
	}
	return &faultyPair{QueuePair: q, device: d}, nil
}

// Close frees the copies too.
func (d *faulty) Close() error {
	err := d.Device.Close()
	for _, r := range d.alone {
		_ = r.Close() // the device has closed it
	}
	return err
}

// counted is a region of a faulty device.
type counted struct {
	rdma.Region
	device *faulty
	size   int
	once   sync.Once
}

func (r *counted) Close() error {
	r.once.Do(func() {
		r.device.mu.Lock()
		defer r.device.mu.Unlock()
		r.device.live -= r.size
	})
	return r.Region.Close()
}

// faultyPair is a queue pair of a faulty device. Posts come under the group's lock.
type faultyPair struct {
	rdma.QueuePair
	device *faulty
	last   []byte
}

// Connect ends at another moment than at the other end, lest the engines begin to tick at the same one.
func (q *faultyPair) Connect(ctx context.Context, remote []byte) error {
	err := q.QueuePair.Connect(ctx, remote)
	<-time.After(q.device.after)
	return err
}

// plainList takes the counting off the entries' regions.
func plainList(list []rdma.SGE) []rdma.SGE {
	list = slices.Clone(list)
	for i := range list {
		list[i].Region = list[i].Region.(*counted).Region
	}
	return list
}

func (q *faultyPair) PostRecv(wrs ...rdma.RecvWR) error {
	wrs = slices.Clone(wrs)
	for i := range wrs {
		wrs[i].List = plainList(wrs[i].List)
	}
	return q.QueuePair.PostRecv(wrs...)
}

func (q *faultyPair) PostSend(wrs ...rdma.SendWR) error {
	wrs = slices.Clone(wrs)
	for i := range wrs {
		wrs[i].List = plainList(wrs[i].List)
		if end := q.User().(*laneEnd); wrs[i].Op == rdma.OpSend && (!end.isControl || wrs[i].Imm == immSmall) {
			if err := q.spoil(&wrs[i]); err != nil {
				return err
			}
		}
	}
	return q.QueuePair.PostSend(wrs...)
}

// spoil replaces the bytes of a block or small message by others, if it is time to.
func (q *faultyPair) spoil(wr *rdma.SendWR) error {
	d := q.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spoil == spoilNothing && !d.keeps {
		return nil
	}
	var bytes []byte
	for _, e := range wr.List {
		bytes = append(bytes, e.Region.Bytes()[e.Offset:e.Offset+e.Length]...)
	}
	before := q.last
	if d.keeps {
		q.last = bytes
	}
	switch {
	case d.spoil == spoilFlip:
		bytes[d.rng.IntN(len(bytes))] ^= 1 << d.rng.IntN(8)
	case d.spoil == spoilRepeat && before != nil:
		bytes = before
	default:
		return nil
	}
	own, err := d.Device.Register(slices.Clone(bytes), 0)
	if err != nil {
		return err
	}
	d.alone = append(d.alone, own)
	wr.List = []rdma.SGE{{Region: own, Length: len(bytes)}}
	return nil
}
