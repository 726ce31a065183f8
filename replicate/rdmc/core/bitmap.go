package core

import (
	"math/bits"
	"slices"
)

// pageBlocks is how many blocks a page of a bitmap is for: 64 KiB of words.
const pageBlocks = 1 << 19

// Bitmap says which of a message's blocks a member has. It is not safe for concurrent use. Its memory grows with the
// blocks that are set: a message that only claims to be large takes 200 KiB at most.
type Bitmap struct {
	size  uint64
	count uint64
	pages [][]uint64 // nil where no block is set
}

// NewBitmap makes an empty bitmap for a message of the given number of blocks, at most MaxMessageBlocks.
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

// make is that word to be changed.
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

// countIn is how many blocks of a set are set.
func (m *Bitmap) countIn(set Ranges) (n uint64) {
	if m.count == 0 {
		return 0
	}
	m.eachWord(set, func(block, of uint64) { n += uint64(bits.OnesCount64(of & m.word(block))) })
	return n
}

// eachWord gives, for each word that has blocks of a set, one of its blocks and their bits: 64 blocks at a time, as
// there may be 2^32.
func (m *Bitmap) eachWord(set Ranges, do func(block, of uint64)) {
	for _, r := range set {
		for at, end := r.First, min(r.end(), m.size); at < end; {
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

// Blocks is the number of blocks of the message.
func (m *Bitmap) Blocks() uint64 { return m.size }

// Count is the number of blocks set.
func (m *Bitmap) Count() uint64 { return m.count }

// Has reports whether the block is set; a block beyond the size is not.
func (m *Bitmap) Has(block uint64) bool {
	return block < m.size && m.word(block)&(1<<(block%64)) != 0
}

// Set sets the block; a block beyond the size is ignored.
func (m *Bitmap) Set(block uint64) {
	if block >= m.size || m.Has(block) {
		return
	}
	*m.make(block) |= 1 << (block % 64)
	m.count++
}

// Clone is a copy.
func (m *Bitmap) Clone() *Bitmap {
	c := &Bitmap{size: m.size, count: m.count, pages: make([][]uint64, len(m.pages))}
	for i, page := range m.pages {
		c.pages[i] = slices.Clone(page)
	}
	return c
}

// Present is the set of blocks that are set.
func (m *Bitmap) Present() Ranges {
	var s Ranges
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
