package content

import "math/bits"

// Bitmap is a set of stream blocks: bit i%8 of byte i/8 is block i. These bytes are also its form on the wire.
type Bitmap []byte

// NewBitmap makes an empty set for n blocks.
func NewBitmap(n int64) Bitmap { return make(Bitmap, (n+7)/8) }

// Has reports whether block i is in the set; a block that the set has no room for is not.
func (b Bitmap) Has(i int64) bool {
	return i >= 0 && i/8 < int64(len(b)) && b[i/8]>>(i%8)&1 == 1
}

// Set adds block i, which must be in range.
func (b Bitmap) Set(i int64) { b[i/8] |= 1 << (i % 8) }

// Count is the number of blocks in the set.
func (b Bitmap) Count() int {
	n := 0
	for _, x := range b {
		n += bits.OnesCount8(x)
	}
	return n
}

// Clip returns the set of the blocks below n, with room for n.
func (b Bitmap) Clip(n int64) Bitmap {
	out := NewBitmap(n)
	copy(out, b)
	if n%8 != 0 {
		out[len(out)-1] &= 1<<(n%8) - 1
	}
	return out
}

// MissingIn is the set of blocks below n that at least one of the sets lacks.
func MissingIn(n int64, sets []Bitmap) Bitmap {
	out := NewBitmap(n)
	for _, s := range sets {
		for i := range out {
			var x byte
			if i < len(s) {
				x = s[i]
			}
			out[i] |= ^x
		}
	}
	return out.Clip(n)
}
