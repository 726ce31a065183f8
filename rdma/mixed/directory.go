package mixed

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rdmcfs/rdmcfs/rdma"
)

const (
	slotBits  = 12
	slots     = 1 << slotBits // of a directory: regions with remote rights are refused when half are taken
	slotBytes = 8
)

// directory gives peers the keys of regions for each device except the last, whose keys are the regions' own. There is
// a table for each device, which peers can read remotely through it. A region's key for the device is a word in the
// slot that the region's own key falls into, sealed with the own key. So a peer that does not know a region's own key
// learns nothing.
type directory struct {
	tables []rdma.Region // by member; nil for the last

	mu     sync.Mutex // protects all below, and the tables
	taken  [slots]bool
	count  int
	closed bool // the tables are gone, or soon will be
}

func newDirectory(members []*member) (*directory, error) {
	d := &directory{tables: make([]rdma.Region, len(members))}
	for i, m := range members[:len(members)-1] {
		table, err := m.AllocRegion(slots*slotBytes, rdma.RemoteRead)
		if err != nil {
			for _, made := range d.tables[:i] {
				_ = made.Close()
			}
			return nil, fmt.Errorf("mixed: directory of %s: %w", m.Name(), err)
		}
		d.tables[i] = table
	}
	return d, nil
}

// key is the remote key of a device's table; 0 if it has none.
func (d *directory) key(i int) rdma.RegionKey {
	if d.tables[i] == nil {
		return 0
	}
	return d.tables[i].Key()
}

// slotOf is where the keys of a region are.
func slotOf(key rdma.RegionKey) int {
	const golden = 0x9e3779b97f4a7c15
	return int(uint64(key) * golden >> (64 - slotBits))
}

// seal closes, or opens, the word that belongs to a key.
func seal(key, word rdma.RegionKey, k kind) rdma.RegionKey {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 32), uint64(key))
	b = append(append(b, byte(k.nth)), k.name...)
	sum := sha256.Sum256(b)
	return word ^ rdma.RegionKey(binary.LittleEndian.Uint64(sum[:]))
}

// reserve takes the slot of a region's key. It returns false if another region has it, and an error if there are too
// many.
func (d *directory) reserve(key rdma.RegionKey) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count >= slots/2 {
		return false, fmt.Errorf("mixed: %d regions with remote rights: %w", d.count, rdma.ErrQueueFull)
	}
	s := slotOf(key)
	if d.taken[s] {
		return false, nil
	}
	d.taken[s] = true
	d.count++
	return true, nil
}

// write stores the key for member i of a region whose slot is reserved.
func (d *directory) write(i int, key, word rdma.RegionKey, k kind) {
	var b [slotBytes]byte
	binary.LittleEndian.PutUint64(b[:], uint64(seal(key, word, k)))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	mem := d.tables[i].Bytes()[slotOf(key)*slotBytes:]
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[0])), binary.NativeEndian.Uint64(b[:]))
}

// close ends all writing, before the devices take the tables away.
func (d *directory) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// release gives the slot of a region back.
func (d *directory) release(key rdma.RegionKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken[slotOf(key)] = false
	d.count--
}
