package content

// Bitmap is a set of stream blocks: bit i%64 of word i/64 is block i.
type Bitmap []uint64

// NewBitmap makes an empty set for n blocks.
func NewBitmap(n int64) Bitmap { return make(Bitmap, (n+63)/64) }

// Has reports whether block i is in the set.
func (b Bitmap) Has(i int64) bool {
	return i >= 0 && i/64 < int64(len(b)) && b[i/64]>>(i%64)&1 == 1
}

// Set adds block i, which must be in range.
func (b Bitmap) Set(i int64) { b[i/64] |= 1 << (i % 64) }
