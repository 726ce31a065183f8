package blockset

import (
	"math/bits"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// pageBlocks is how many blocks a page of a bitmap is for: 64 KiB of words.
const pageBlocks = 1 << 19

// Bitmap is a set of the blocks below a size, such as those of a message that a member has. It is not safe for
// concurrent use. Its memory grows with the blocks that are set: an empty one for 2^32 blocks takes 200 KiB. A nil
// Bitmap is an empty set of size 0, to which nothing can be added.
type Bitmap struct {
	size  uint64
	count uint64
	pages [][]uint64 // nil where no block is set
}

// NewBitmap makes an empty bitmap for the given number of blocks.
func NewBitmap(blocks uint64) *Bitmap {
	return &Bitmap{size: blocks, pages: make([][]uint64, (blocks+pageBlocks-1)/pageBlocks)}
}

// word returns the word with the block's bit; it is 0 where there is no page yet.
func (m *Bitmap) word(block uint64) uint64 {
	if page := m.pages[block/pageBlocks]; page != nil {
		return page[block%pageBlocks/64]
	}
	return 0
}

// make returns that word to be changed.
func (m *Bitmap) make(block uint64) *uint64 {
	page := &m.pages[block/pageBlocks]
	if *page == nil {
		blocks := min(pageBlocks, m.size-block/pageBlocks*pageBlocks)
		*page = make([]uint64, (blocks+63)/64)
	}
	return &(*page)[block%pageBlocks/64]
}

// BitmapOf makes a bitmap with the given blocks set; blocks at or beyond the size are left out.
func BitmapOf(blocks uint64, set Ranges) *Bitmap {
	m := NewBitmap(blocks)
	m.eachWord(set, func(block, of uint64) {
		word := m.make(block)
		m.count += uint64(bits.OnesCount64(of &^ *word))
		*word |= of
	})
	return m
}

// CountIn is how many blocks of a set are set.
func (m *Bitmap) CountIn(set Ranges) (n uint64) {
	if m.Count() == 0 {
		return 0
	}
	m.eachWord(set, func(block, of uint64) { n += uint64(bits.OnesCount64(of & m.word(block))) })
	return n
}

// eachWord gives, for each word that has blocks of a set, one of its blocks and their bits: 64 blocks at a time, as
// there may be 2^32.
func (m *Bitmap) eachWord(set Ranges, do func(block, of uint64)) {
	for _, r := range set {
		for at, end := r.First, min(r.End(), m.size); at < end; {
			next := min((at|63)+1, end)
			of := ^uint64(0) << (at % 64)
			if next%64 != 0 {
				of &= 1<<(next%64) - 1
			}
			do(at, of)
			at = next
		}
	}
}

// Blocks is the size: the number of blocks that the set has room for.
func (m *Bitmap) Blocks() uint64 {
	if m == nil {
		return 0
	}
	return m.size
}

// Count is the number of blocks set.
func (m *Bitmap) Count() uint64 {
	if m == nil {
		return 0
	}
	return m.count
}

// Has reports whether the block is set; a block beyond the size is not.
func (m *Bitmap) Has(block uint64) bool {
	return m != nil && block < m.size && m.word(block)&(1<<(block%64)) != 0
}

// Set sets the block; a block beyond the size is ignored.
func (m *Bitmap) Set(block uint64) {
	if block >= m.Blocks() || m.Has(block) {
		return
	}
	*m.make(block) |= 1 << (block % 64)
	m.count++
}

// Clone is a copy.
func (m *Bitmap) Clone() *Bitmap { return m.Clip(m.Blocks()) }

// Clip is a copy for another number of blocks: those at or beyond it are left out.
func (m *Bitmap) Clip(blocks uint64) *Bitmap {
	c := NewBitmap(blocks)
	if m == nil {
		return c
	}
	for at := uint64(0); at < min(blocks, m.size); at += 64 {
		if m.pages[at/pageBlocks] == nil {
			at = (at/pageBlocks+1)*pageBlocks - 64
			continue
		}
		c.fill(at, m.word(at))
	}
	return c
}

// fill sets the blocks whose bits are set in a word for the 64 blocks from at on.
func (m *Bitmap) fill(at, word uint64) {
	if m.size-at < 64 {
		word &= 1<<(m.size-at) - 1
	}
	if word != 0 {
		*m.make(at) = word
		m.count += uint64(bits.OnesCount64(word))
	}
}

// MissingIn is the set of the blocks below a number that at least one of the sets lacks.
func MissingIn(blocks uint64, sets []*Bitmap) *Bitmap {
	out := NewBitmap(blocks)
	for at := uint64(0); at < blocks; at += 64 {
		var lacking uint64
		for _, m := range sets {
			if at < m.Blocks() {
				lacking |= ^m.word(at)
			} else {
				lacking = ^uint64(0)
			}
		}
		out.fill(at, lacking)
	}
	return out
}

// CodeBitmap lists the fields of a bitmap of at most max blocks, a multiple of 8. In its form on the wire, bit i%8 of
// byte i/8 is block i. What is read has room for all bits of its bytes, and is nil if there are none.
func CodeBitmap(c *coder.Coder, p **Bitmap, max int) {
	if !c.Reading() {
		b := (*p).bytes()
		c.View(&b, max/8)
		return
	}
	var b []byte
	c.View(&b, max/8)
	*p = fromBytes(b)
}

func (m *Bitmap) bytes() []byte {
	b := make([]byte, (m.Blocks()+7)/8)
	for i := range b {
		b[i] = byte(m.word(8*uint64(i)) >> (i % 8 * 8))
	}
	return b
}

func fromBytes(b []byte) *Bitmap {
	if len(b) == 0 {
		return nil
	}
	m := NewBitmap(8 * uint64(len(b)))
	for i, x := range b {
		if x != 0 {
			*m.make(8 * uint64(i)) |= uint64(x) << (i % 8 * 8)
			m.count += uint64(bits.OnesCount8(x))
		}
	}
	return m
}

// Present is the set of blocks that are set.
func (m *Bitmap) Present() Ranges {
	var s Ranges
	if m == nil {
		return s
	}
	for at := m.next(0, true); at < m.size; {
		end := m.next(at, false)
		s = append(s, Range{First: at, Count: end - at})
		at = m.next(end, true)
	}
	return s
}

// next is the first block from at on that is set (or not set), or the size.
func (m *Bitmap) next(at uint64, set bool) uint64 {
	for at < m.size {
		if set && m.pages[at/pageBlocks] == nil {
			at = (at/pageBlocks + 1) * pageBlocks
			continue
		}
		word := m.word(at)
		if !set {
			word = ^word
		}
		if word >>= at % 64; word != 0 {
			return min(at+uint64(bits.TrailingZeros64(word)), m.size)
		}
		at = (at/64 + 1) * 64
	}
	return m.size
}
