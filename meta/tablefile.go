package meta

import (
	"bytes"
	"hash/crc32"
	"os"
	"path/filepath"
	"sort"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/fb"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// tableFile reads one of badger's tables beside badger, see liveTables. Its keys have versions, as badger's have:
// newer versions of a key come first.
type tableFile struct {
	id                uint64
	level             int
	name              string
	smallest, biggest []byte // the first and the last key
	data              []byte // the file, mapped as badger maps it: both see the same bytes
	// index is a checked copy. Badger uses the index in the file, at indexAt, and checks it only when it opens the table.
	index   []byte
	indexAt int
	blocks  *fb.TableIndex // index, decoded
	filter  y.Filter
	sets    int // how many sets have it; guarded by liveTables.mu
}

// rootBytes are at the beginning of an index. Badger ends the process over damage there.
const rootBytes = 128

// bitDelete marks the first byte of a value that badger wrote for a deletion.
const bitDelete = 1

func openTableFile(dir string, info badger.TableInfo) (*tableFile, error) {
	f := &tableFile{id: info.ID, level: info.Level, name: table.NewFilename(info.ID, dir), smallest: info.Left,
		biggest: info.Right}
	err := contained(f.what(), f.open)
	if err != nil {
		f.close()
		return nil, asDamage(f.what(), err)
	}
	return f, nil
}

func (f *tableFile) what() string { return "table " + filepath.Base(f.name) }

func (f *tableFile) open() error {
	file, err := os.Open(f.name)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	f.data, err = unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	from, to, err := findIndex(f.data)
	if err != nil {
		return err
	}
	// Outside the heap: the collector would keep as much again free for it.
	f.index, err = unix.Mmap(-1, 0, to-from, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	f.indexAt = from
	copy(f.index, f.data[from:to])
	f.blocks = fb.GetRootAsTableIndex(f.index, 0)
	f.filter = f.blocks.BloomFilterBytes()
	return nil
}

func (f *tableFile) close() {
	for _, b := range [][]byte{f.data, f.index} {
		if b != nil {
			_ = unix.Munmap(b) // fails only for what is not mapped
		}
	}
	f.data, f.index = nil, nil
}

// block checks a block and returns it.
func (f *tableFile) block(i int) (tableBlock, error) {
	var at fb.BlockOffset
	f.blocks.Offsets(&at, i)
	from, to := int(at.Offset()), int(at.Offset())+int(at.Len())
	if to > len(f.data) {
		return tableBlock{}, damagef("%s ends before its block %d", f.what(), i)
	}
	b, ok := checkBlock(f.data[from:to])
	if !ok {
		return tableBlock{}, damagef("%s: the checksum of its block %d at byte %d is wrong", f.what(), i, from)
	}
	return b, nil
}

// base is the first key of a block.
func (f *tableFile) base(i int) []byte {
	var at fb.BlockOffset
	f.blocks.Offsets(&at, i)
	return at.KeyBytes()
}

// checkRoot compares what badger must not be the first to find damaged.
func (f *tableFile) checkRoot() error {
	n := min(rootBytes, len(f.index))
	if !bytes.Equal(f.data[f.indexAt:f.indexAt+n], f.index[:n]) {
		return damagef("%s: its index has changed", f.what())
	}
	return nil
}

// newest finds the newest version of a key that is not newer than the one that key names, in the blocks where it
// belongs; 0 if there is none.
func (f *tableFile) newest(key []byte, hash uint32) (version uint64, deleted bool, err error) {
	if bytes.Compare(y.ParseKey(f.smallest), y.ParseKey(key)) > 0 || y.CompareKeys(f.biggest, key) < 0 ||
		len(f.filter) > 0 && !f.filter.MayContain(hash) {
		return 0, false, nil
	}
	n := f.blocks.OffsetsLength()
	i := sort.Search(n, func(i int) bool { return y.CompareKeys(f.base(i), key) > 0 })
	for i = max(0, i-1); i < n; i++ {
		b, err := f.block(i)
		if err != nil {
			return 0, false, err
		}
		found, value, ok := b.seek(key)
		if ok && y.SameKey(found, key) {
			return y.ParseTs(found), value[0]&bitDelete != 0, nil
		}
		if ok {
			break
		}
	}
	return 0, false, nil
}

// check compares the index that badger uses, and checks each block that may have keys from one to another, these
// included; to is nil for the end. Keys are without versions.
func (f *tableFile) check(from, to []byte) error {
	if !bytes.Equal(f.data[f.indexAt:f.indexAt+len(f.index)], f.index) {
		return damagef("%s: its index has changed", f.what())
	}
	n := f.blocks.OffsetsLength()
	i := sort.Search(n, func(i int) bool { return bytes.Compare(y.ParseKey(f.base(i)), from) >= 0 })
	for i = max(0, i-1); i < n; i++ {
		if to != nil && bytes.Compare(y.ParseKey(f.base(i)), to) > 0 {
			break
		}
		if _, err := f.block(i); err != nil {
			return err
		}
	}
	return nil
}

// tableBlock is a block of a table:
//
//	entries | offset of each, 4 bytes little endian | their number, 4 bytes big endian | checksum | its length, 4 bytes
//
// An entry is: bytes shared with the first key, 2 bytes | bytes of its own, 2 bytes | these | value. The first byte of
// a value has its flags.
type tableBlock struct{ entries, offsets []byte }

// checkBlock checks a block against its checksum.
func checkBlock(b []byte) (out tableBlock, ok bool) {
	b, sum, ok := cutSum(b)
	if !ok || len(b) < 4 || crc32.Checksum(b, castagnoli) != sum {
		return out, false
	}
	n := int(number(b[len(b)-4:], coder.Big))
	b = b[:len(b)-4]
	if n > len(b)/4 {
		return out, false
	}
	at := len(b) - 4*n
	return tableBlock{b[:at], b[at:]}, true
}

func (b tableBlock) len() int { return len(b.offsets) / 4 }

// entry returns the parts of an entry: how much of the first key, what follows, and the value.
func (b tableBlock) entry(i int) (shared int, rest, value []byte) {
	from := number(b.offsets[4*i:], coder.Little)
	e := b.entries[from:]
	if i+1 < b.len() {
		e = e[:number(b.offsets[4*i+4:], coder.Little)-from]
	}
	head := number(e, coder.Little)
	shared, own := int(head&0xffff), int(head>>16)
	return shared, e[4 : 4+own], e[4+own:]
}

// seek finds the first entry that is not before a key.
func (b tableBlock) seek(key []byte) (found, value []byte, ok bool) {
	_, first, _ := b.entry(0)
	buf := make([]byte, 0, 128)
	keyOf := func(i int) []byte {
		shared, rest, _ := b.entry(i)
		buf = append(append(buf[:0], first[:shared]...), rest...)
		return buf
	}
	i := sort.Search(b.len(), func(i int) bool { return y.CompareKeys(keyOf(i), key) >= 0 })
	if i == b.len() {
		return nil, nil, false
	}
	_, _, value = b.entry(i)
	return keyOf(i), value, true
}
