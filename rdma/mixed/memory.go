package mixed

import (
	"encoding/binary"
	"hash/fnv"
	"sync"
	"time"
)

// How long a route that failed is avoided: avoidMin at first, as the peer may only have been late, and twice as
// long each time it fails again at its next trial.
const (
	avoidMin  = time.Minute
	avoidMax  = time.Hour
	routesMax = 1024 // that are remembered
)

// route is a provider as the way to a host.
type route struct {
	host hostID
	kind kind
}

type failure struct {
	until time.Time
	span  time.Duration
}

// memory holds the routes that failed.
type memory struct {
	mu     sync.Mutex // protects failed
	failed map[route]failure
}

// blame notes that a route failed, and returns for how long it is avoided. More failures in that time, such as those of
// pairs made together, change nothing.
func (m *memory) blame(r route, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, known := m.failed[r]
	switch {
	case known && now.Before(f.until):
		return f.until.Sub(now)
	case known && now.Before(f.until.Add(f.span)):
		f.span = min(2*f.span, avoidMax)
	default:
		f.span = avoidMin
	}
	f.until = now.Add(f.span)
	if m.failed == nil {
		m.failed = make(map[route]failure)
	}
	if !known && len(m.failed) >= routesMax {
		m.dropLocked()
	}
	m.failed[r] = f
	return f.span
}

// dropLocked forgets the route whose time of being avoided ends first, or has ended.
func (m *memory) dropLocked() {
	var first route
	var until time.Time
	for r, f := range m.failed {
		if until.IsZero() || f.until.Before(until) {
			first, until = r, f.until
		}
	}
	delete(m.failed, first)
}

// clear notes that a route works.
func (m *memory) clear(r route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.failed, r)
}

// filter encodes the routes to be avoided now in a number of bytes; nil if there are none.
func (m *memory) filter(now time.Time, size int) filter {
	m.mu.Lock()
	defer m.mu.Unlock()
	var f filter
	for r, v := range m.failed {
		if !now.Before(v.until) {
			continue
		}
		if f == nil {
			f = make(filter, size)
		}
		f.add(r.host, r.kind)
	}
	return f
}

// count is the number of routes avoided now through a kind.
func (m *memory) count(now time.Time, k kind) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for r, f := range m.failed {
		if r.kind == k && now.Before(f.until) {
			n++
		}
	}
	return n
}

// The size of a filter in bytes: what an address has room for, between these. One of 64 bytes holds 100 routes
// with one false hit in 11, and 30 with one in 250.
const (
	filterMin = 8
	filterMax = 64
)

// filter is a set of routes that may say yes wrongly, but never no (a Bloom filter). An empty one has none.
type filter []byte

const filterHashes = 3

func (f filter) add(h hostID, k kind) {
	for _, bit := range f.bits(h, k) {
		f[bit/8] |= 1 << (bit % 8)
	}
}

func (f filter) has(h hostID, k kind) bool {
	if len(f) == 0 {
		return false
	}
	for _, bit := range f.bits(h, k) {
		if f[bit/8]&(1<<(bit%8)) == 0 {
			return false
		}
	}
	return true
}

func (f filter) bits(h hostID, k kind) [filterHashes]uint64 {
	sum := fnv.New64a()
	sum.Write(h[:])
	sum.Write([]byte{byte(k.nth)})
	sum.Write([]byte(k.name))
	var b [8]byte
	var out [filterHashes]uint64
	for i := range out {
		binary.LittleEndian.PutUint64(b[:], uint64(i))
		sum.Write(b[:])
		x := sum.Sum64()
		out[i] = (x ^ x>>32) % uint64(8*len(f))
	}
	return out
}
