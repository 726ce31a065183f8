package replicate

import (
	"math/bits"

	"github.com/rdmcfs/rdmcfs/internal/content"
)

// bitmap is a set of block numbers: bit i%8 of byte i/8 is block i.
type bitmap []byte

func newBitmap(blocks int) bitmap { return make(bitmap, (blocks+7)/8) }

func (b bitmap) has(i int) bool {
	return i>>3 < len(b) && b[i>>3]&(1<<(i&7)) != 0
}

func (b bitmap) set(i int) { b[i>>3] |= 1 << (i & 7) }

// count is the number of blocks in the set.
func (b bitmap) count() int {
	n := 0
	for _, x := range b {
		n += bits.OnesCount8(x)
	}
	return n
}

// clip clears what lies at or above n, and grows or cuts the set to n blocks.
func (b bitmap) clip(n int) bitmap {
	out := newBitmap(n)
	copy(out, b)
	if n&7 != 0 {
		out[len(out)-1] &= 1<<(n&7) - 1
	}
	return out
}

// unionMissing is the set of blocks below n that at least one of the sets lacks.
func unionMissing(n int, sets []bitmap) bitmap {
	out := newBitmap(n)
	for _, s := range sets {
		for i := range out {
			var x byte
			if i < len(s) {
				x = s[i]
			}
			out[i] |= ^x
		}
	}
	return out.clip(n)
}

// packBitmap is the wire's form of a content's set of blocks.
func packBitmap(have content.Bitmap, blocks int) bitmap {
	out := newBitmap(blocks)
	for i := range blocks {
		if have.Has(int64(i)) {
			out.set(i)
		}
	}
	return out
}
