package meta

import (
	"os"
	"path/filepath"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// marker is the small file that remembers up to which index a store is durable. Two slots are written in turn, so that
// a torn write leaves the other.
//
//	offset 0 and 512:  "rdmcsync" | index, 8 bytes | CRC32C of both, 4 bytes
type marker struct {
	f    *os.File
	slot int64
}

const (
	markerName  = "SYNCED"
	markerMagic = "rdmcsync"
	markerBytes = 20
	markerSlots = 512 // distance
)

// codeMarker lists the fields of a slot.
func codeMarker(c *coder.Coder, index *uint64) {
	mark := c.Mark()
	c.Magic(markerMagic)
	c.U64(index)
	c.Sum(mark)
}

// openMarker opens or makes the file and reads the newer whole slot.
func openMarker(name string) (m *marker, index uint64, found bool, err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, false, err
	}
	buf := make([]byte, 2*markerSlots)
	n, _ := f.ReadAt(buf, 0)
	m = &marker{f: f}
	for slot := range int64(2) {
		var v uint64
		c := coder.Reader(buf[slot*markerSlots:][:markerBytes], coder.Big)
		if codeMarker(&c, &v); c.Finish() != nil {
			continue
		}
		if !found || v >= index {
			index, found, m.slot = v, true, 1-slot
		}
	}
	if n > 0 && !found {
		f.Close()
		return nil, 0, false, damagef("%s", filepath.Base(name))
	}
	if n == 0 { // take the space now: it must not be missing on a full disk
		_, err = f.WriteAt(make([]byte, 2*markerSlots), 0)
	}
	if err != nil {
		f.Close()
		return nil, 0, false, err
	}
	return m, index, found, nil
}

// readMarker reads a marker that may not be there.
func readMarker(name string) (index uint64, found bool) {
	if _, err := os.Stat(name); err != nil {
		return 0, false
	}
	m, index, found, err := openMarker(name)
	if err == nil {
		err = m.close()
	}
	return index, found && err == nil
}

func (m *marker) write(index uint64) error {
	c := coder.Writer(nil, coder.Big)
	codeMarker(&c, &index)
	if _, err := m.f.WriteAt(c.Written(), m.slot*markerSlots); err != nil {
		return err
	}
	if err := m.f.Sync(); err != nil {
		return err
	}
	m.slot = 1 - m.slot
	return nil
}

func (m *marker) close() error { return m.f.Close() }
