package meta

import "math/bits"

// Add records the vote of a node.
func (v *Votes) Add(n NodeID) {
	if n == 0 {
		return
	}
	i := int(n-1) / 8
	for len(v.Bitmap) <= i {
		v.Bitmap = append(v.Bitmap, 0)
	}
	v.Bitmap[i] |= 1 << ((n - 1) % 8)
}

// Has reports whether the node voted.
func (v *Votes) Has(n NodeID) bool {
	i := int(n-1) / 8
	return n != 0 && i < len(v.Bitmap) && v.Bitmap[i]&(1<<((n-1)%8)) != 0
}

// Count is the number of votes.
func (v *Votes) Count() int {
	n := 0
	for _, b := range v.Bitmap {
		n += bits.OnesCount8(b)
	}
	return n
}
