package meta

import (
	"fmt"
	"slices"
	"strings"
)

// RemovedFile is a file that was removed and is kept for a while, by Policy.KeepRemoved.
type RemovedFile struct {
	Index   uint64 // of the log at which it was removed; it names the file
	Path    string // from the root of the name space, at that moment
	Node    NodeID // that removed it
	Removed int64  // nanoseconds since 1970, like all times
	Expires int64
	Inode   Inode // as it was
}

// Removals answers what a state knows of removed files that are kept.
type Removals struct{ DB *DB }

// At reads the file that was removed at a log index.
func (rs Removals) At(index uint64) (RemovedFile, error) {
	var r removedRecord
	err := rs.DB.read(func(s snap) error {
		r = removedRecord{}
		return s.load(removedKey(index), &r)
	})
	r.Index = index
	return r.RemovedFile, err
}

// Under lists the files that were removed at a path or below it, the last ones first, at most limit. "/" holds all. It
// looks at all removed files: there are RemovedMax of them at most.
func (rs Removals) Under(path string, limit int) ([]RemovedFile, error) {
	below := strings.TrimSuffix(path, "/") + "/"
	var out []RemovedFile
	err := rs.DB.read(func(s snap) error {
		out = nil
		return s.each([]byte{tableRemoved}, []byte{tableRemoved}, func(key, value []byte) (bool, error) {
			var r removedRecord
			if err := decodeRecord(value, &r); err != nil {
				return false, fmt.Errorf("meta: record %x: %w", key, err)
			}
			if r.Path == path || strings.HasPrefix(r.Path, below) {
				r.Index = keyNumber(key, 1)
				out = append(out, r.RemovedFile)
			}
			return true, nil
		})
	})
	slices.Reverse(out)
	return out[:min(len(out), limit)], err
}

// Count is how many removed files are kept.
func (rs Removals) Count() uint64 { return rs.DB.cur.Load().head.Removed }

// Bytes is the size of all removed files that are kept. It looks at all of them.
func (rs Removals) Bytes() (uint64, error) {
	files, err := rs.Under("/", RemovedMax)
	sum := uint64(0)
	for _, f := range files {
		sum += uint64(f.Inode.Size)
	}
	return sum, err
}

// Due reports whether the time of something that is kept is over, by the time of the log: an Expire retires it.
func (rs Removals) Due() bool {
	due := false
	err := rs.DB.read(func(s snap) error {
		due = false
		return s.each([]byte{tableKept}, []byte{tableKept}, func(key, _ []byte) (bool, error) {
			due = int64(keyNumber(key, 1)) <= s.head.Time
			return false, nil
		})
	})
	return due && err == nil
}
