package meta

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
