package mixed

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Config says what a device is made of.
type Config struct {
	// Devices in order of preference. The last should be of a provider that every node has. A provider is
	// known by the device's Name up to a colon. They belong to the mixed device from New on, and are closed with it.
	Devices []rdma.Device
	// Full makes a device of one work like a device of several. It is needed only for one-sided requests to peers whose
	// last device has another provider; without it these are refused with rdma.ErrRequest.
	Full bool
	// Log gets routes and devices that failed. Default: discarded.
	Log *slog.Logger
}

// benchTime is how long pairs are made without a device that could not make one, or not register memory.
const benchTime = time.Minute

// Device is a device of several.
type Device struct {
	members   []*member
	host      hostID
	thin      bool // one member, whose regions are ours
	log       *slog.Logger
	routes    memory
	directory *directory
	lookupID  uint64 // of our own requests among those of callers

	mu     sync.Mutex // protects all below; taken before no other lock
	closed bool
	pairs  map[rdma.QueuePair]struct{}
	queues map[*queue]struct{}
}

// member is one of the devices.
type member struct {
	rdma.Device
	kind    kind
	benched atomic.Int64 // until when, in Unix nanoseconds
	pairs   atomic.Int64 // that it carries, until they are aborted or closed
	carried atomic.Bool  // it has carried one
}

// carries counts a pair that the member carries from now on.
func (m *member) carries() {
	m.carried.Store(true)
	m.pairs.Add(1)
}

var _ rdma.Device = (*Device)(nil)

// New makes a device of devices. On an error they still belong to the caller.
func New(cfg Config) (*Device, error) {
	if len(cfg.Devices) == 0 || len(cfg.Devices) > devicesMax {
		return nil, fmt.Errorf("mixed: %d devices, want 1 to %d: %w", len(cfg.Devices), devicesMax, rdma.ErrRequest)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Device{host: newHostID(), thin: len(cfg.Devices) == 1 && !cfg.Full, log: cfg.Log,
		pairs: make(map[rdma.QueuePair]struct{}), queues: make(map[*queue]struct{})}
	var id [8]byte
	rand.Read(id[:])
	d.lookupID = binary.LittleEndian.Uint64(id[:])
	seen := make(map[string]int)
	for _, m := range cfg.Devices {
		name, _, _ := strings.Cut(m.Name(), ":")
		if len(name) == 0 || len(name) > nameMax {
			return nil, fmt.Errorf("mixed: provider name %q, want 1 to %d bytes: %w", name, nameMax, rdma.ErrRequest)
		}
		d.members = append(d.members, &member{Device: m, kind: kind{name, seen[name]}})
		seen[name]++
	}
	var err error
	d.directory, err = newDirectory(d.members)
	return d, err
}

func (d *Device) last() *member { return d.members[len(d.members)-1] }

// Name is the names of all devices with "+" between.
func (d *Device) Name() string {
	names := make([]string, len(d.members))
	for i, m := range d.members {
		names[i] = m.Name()
	}
	return strings.Join(names, "+")
}

// String describes each device in its own words; if there are several, also how many pairs each carries, and what is
// wrong.
func (d *Device) String() string {
	var words []string
	for i, s := range d.Members() {
		text := s.Name
		if named, ok := d.members[i].Device.(fmt.Stringer); ok {
			text = named.String()
		}
		if len(d.members) > 1 {
			text += fmt.Sprintf(", carries %d", s.Pairs)
		}
		if s.Benched {
			text += ", left out for now"
		}
		if s.Avoided > 0 {
			text += fmt.Sprintf(", does not reach %d hosts", s.Avoided)
		}
		words = append(words, text)
	}
	return strings.Join(words, "; ")
}

// Limits are the smallest of all.
func (d *Device) Limits() rdma.Limits {
	l := d.members[0].Limits()
	for _, m := range d.members[1:] {
		o := m.Limits()
		l = rdma.Limits{MaxQueueDepth: min(l.MaxQueueDepth, o.MaxQueueDepth), MaxSGE: min(l.MaxSGE, o.MaxSGE),
			MaxInline: min(l.MaxInline, o.MaxInline), MaxMessage: min(l.MaxMessage, o.MaxMessage)}
	}
	return l
}

// OrderedWrites is true if all devices say so.
func (d *Device) OrderedWrites() bool {
	for _, m := range d.members {
		if !m.OrderedWrites() {
			return false
		}
	}
	return true
}

// AllocRegion maps anonymous memory.
func (d *Device) AllocRegion(size int, access rdma.Access) (rdma.Region, error) {
	if d.thin {
		return d.members[0].AllocRegion(size, access)
	}
	own, err := d.last().AllocRegion(size, 0)
	return d.region(own, access, err)
}

// Register registers the caller's memory.
func (d *Device) Register(mem []byte, access rdma.Access) (rdma.Region, error) {
	if d.thin {
		return d.members[0].Register(mem, access)
	}
	own, err := d.last().Register(mem, 0)
	return d.region(own, access, err)
}

// NewCQ makes a completion queue on all devices.
func (d *Device) NewCQ(depth int) (rdma.CompletionQueue, error) {
	if d.thin {
		return newThinQueue(d, depth)
	}
	q, err := newQueue(d, depth)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	closed := d.closed
	if !closed {
		d.queues[q] = struct{}{}
	}
	d.mu.Unlock()
	if closed {
		_ = q.Close()
		return nil, fmt.Errorf("mixed: new completion queue: device: %w", rdma.ErrClosed)
	}
	return q, nil
}

// NewQP makes a queue pair on all devices that can. It fails where their addresses do not fit into one.
func (d *Device) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	if err := d.check(&cfg); err != nil {
		return nil, err
	}
	var q rdma.QueuePair
	var err error
	if d.thin {
		q, err = newThinPair(d, cfg)
	} else {
		q, err = newPair(d, cfg)
	}
	if err != nil {
		return nil, err
	}
	if err := d.adopt(q); err != nil {
		return nil, err
	}
	return q, nil
}

// depthDefault is the depth of a work queue whose configuration names none.
const depthDefault = 128

// check refuses what no device takes, and fills in defaults.
func (d *Device) check(cfg *rdma.QPConfig) error {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return fmt.Errorf("mixed: new queue pair: device: %w", rdma.ErrClosed)
	}
	limit := d.Limits().MaxQueueDepth
	cfg.SendDepth = cmp.Or(cfg.SendDepth, min(depthDefault, limit))
	cfg.RecvDepth = cmp.Or(cfg.RecvDepth, min(depthDefault, limit))
	if cfg.SendDepth < 1 || cfg.RecvDepth < 1 || cfg.SendDepth > limit || cfg.RecvDepth > limit {
		return fmt.Errorf("mixed: queue depths %d and %d, limit %d: %w", cfg.SendDepth, cfg.RecvDepth, limit, rdma.ErrRequest)
	}
	return nil
}

// adopt adds a new pair to the ones that Close ends.
func (d *Device) adopt(q rdma.QueuePair) error {
	d.mu.Lock()
	closed := d.closed
	if !closed {
		d.pairs[q] = struct{}{}
	}
	d.mu.Unlock()
	if closed {
		_ = q.Close()
		return fmt.Errorf("mixed: new queue pair: device: %w", rdma.ErrClosed)
	}
	return nil
}

func (d *Device) forget(q rdma.QueuePair) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pairs, q)
}

func (d *Device) forgetQueue(q *queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.queues, q)
}

// bench leaves a device out of new pairs for a while, after it refused what it should not.
func (d *Device) bench(i int, what string, err error) {
	m := d.members[i]
	if errors.Is(err, rdma.ErrClosed) || errors.Is(err, rdma.ErrState) || errors.Is(err, rdma.ErrRequest) ||
		m == d.last() {
		return
	}
	if m.benched.Swap(time.Now().Add(benchTime).UnixNano()) < time.Now().UnixNano() {
		d.log.Warn("new queue pairs are made without a device", "device", m.Name(), "for", benchTime, "after", what, "error",
			err)
	}
}

func (m *member) isBenched() bool { return time.Now().UnixNano() < m.benched.Load() }

// Close ends all pairs, then closes all devices in order, and waits for the goroutines of the queues.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	pairs := make([]rdma.QueuePair, 0, len(d.pairs))
	for q := range d.pairs {
		pairs = append(pairs, q)
	}
	queues := make([]*queue, 0, len(d.queues))
	for q := range d.queues {
		queues = append(queues, q)
	}
	d.mu.Unlock()
	for _, q := range pairs {
		q.Abort()
	}
	for _, q := range pairs {
		_ = q.Close()
	}
	d.directory.close()
	var err error
	for _, m := range d.members { // the last one owns the memory of regions
		err = errors.Join(err, m.Close())
	}
	for _, q := range queues {
		q.halt()
	}
	return err
}

// Member is the state of one of the devices.
type Member struct {
	Name    string
	Pairs   int  // that it carries, until they are aborted or closed
	Avoided int  // hosts that it lately did not reach
	Benched bool // new pairs are made without it for now
}

// Members returns the state of all devices, in order of preference.
func (d *Device) Members() []Member {
	now := time.Now()
	out := make([]Member, len(d.members))
	for i, m := range d.members {
		out[i] = Member{Name: m.Name(), Pairs: int(m.pairs.Load()), Avoided: d.routes.count(now, m.kind),
			Benched: m.isBenched()}
	}
	return out
}
