package soft

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/pages"
	"github.com/rdmcfs/rdmcfs/rdma"
)

// Table is the protection domain of a device: all its regions by key.
type Table struct {
	// NextKey makes keys; it is called under the table's lock and is called again on a repeated key.
	NextKey func() uint64
	// NoWait makes Region.Close return ErrState where it would wait.
	NoWait bool

	mu     sync.RWMutex // protects byKey, closed
	byKey  map[rdma.RegionKey]*Region
	closed bool
}

// NewTable makes an empty table whose keys come from nextKey.
func NewTable(nextKey func() uint64) *Table {
	return &Table{NextKey: nextKey, byKey: make(map[rdma.RegionKey]*Region)}
}

// Alloc maps size bytes of anonymous memory and registers them.
func (t *Table) Alloc(size int, access rdma.Access) (rdma.Region, error) {
	mem, err := pages.Map(size)
	if err != nil {
		return nil, fmt.Errorf("soft: %w", err)
	}
	r, err := t.add(mem, access, true)
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return r, nil
}

// Register registers memory of the caller's.
func (t *Table) Register(mem []byte, access rdma.Access) (rdma.Region, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("soft: register no memory: %w", rdma.ErrRequest)
	}
	r, err := t.add(mem, access, false)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (t *Table) add(mem []byte, access rdma.Access, mapped bool) (*Region, error) {
	r := &Region{table: t, mem: mem, access: access, mapped: mapped}
	r.uses.Init()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("soft: register region: device: %w", rdma.ErrClosed)
	}
	for r.key == 0 || t.byKey[r.key] != nil {
		r.key = rdma.RegionKey(t.NextKey())
	}
	t.byKey[r.key] = r
	return r, nil
}

func (t *Table) remove(key rdma.RegionKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byKey, key)
}

// Acquire resolves a remote access of n bytes at addr and makes the caller a user of the region until Release. It
// returns nil if the key, the right or the bounds are wrong, or the region is stale.
func (t *Table) Acquire(key rdma.RegionKey, need rdma.Access, addr uint64, n int) (*Region, []byte) {
	t.mu.RLock()
	r := t.byKey[key]
	t.mu.RUnlock()
	if r == nil || r.access&need != need || addr > uint64(len(r.mem)) || uint64(n) > uint64(len(r.mem))-addr {
		return nil, nil
	}
	if !r.uses.Acquire() {
		return nil, nil
	}
	return r, r.mem[addr : addr+uint64(n) : addr+uint64(n)]
}

// Close refuses new regions and closes all there are.
func (t *Table) Close() error {
	t.mu.Lock()
	t.closed = true
	open := make([]*Region, 0, len(t.byKey))
	for _, r := range t.byKey {
		open = append(open, r)
	}
	t.mu.Unlock()
	var first error
	for _, r := range open {
		if err := r.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Piece is a slice of a region that a posted request uses.
type Piece struct {
	Mem    []byte
	region *Region
}

// take acquires the entries of list and appends them to pieces; on an error nothing stays acquired.
func (t *Table) take(list []rdma.SGE, pieces []Piece) ([]Piece, int, error) {
	total := 0
	for _, e := range list {
		p, err := t.piece(e)
		if err != nil {
			return releasePieces(pieces), 0, err
		}
		pieces = append(pieces, p)
		total += e.Length
	}
	return pieces, total, nil
}

func (t *Table) piece(e rdma.SGE) (Piece, error) {
	r, ok := e.Region.(*Region)
	if !ok || r.table != t {
		return Piece{}, fmt.Errorf("soft: region of another device: %w", rdma.ErrRequest)
	}
	if e.Offset < 0 || e.Length < 0 || e.Offset > len(r.mem) || e.Length > len(r.mem)-e.Offset {
		return Piece{}, fmt.Errorf("soft: %d bytes at %d of region %#x with %d: %w",
			e.Length, e.Offset, uint64(r.key), len(r.mem), rdma.ErrBounds)
	}
	if !r.uses.Acquire() {
		return Piece{}, fmt.Errorf("soft: region %#x is stale: %w", uint64(r.key), rdma.ErrState)
	}
	return Piece{Mem: r.mem[e.Offset : e.Offset+e.Length : e.Offset+e.Length], region: r}, nil
}

// releasePieces ends the uses and returns the emptied slice for the next round.
func releasePieces(pieces []Piece) []Piece {
	for i := range pieces {
		pieces[i].region.Release()
		pieces[i] = Piece{}
	}
	return pieces[:0]
}
