package content

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The kept tree gives the root of the definition, also after changes and another size.
func TestLeafTreeIsTheTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		leafOf := func(n int) Hash { return Leaf([]byte{byte(n), byte(n >> 8)}) }
		leaves := make([]Hash, rapid.IntRange(1, 70).Draw(t, "leaves"))
		for i := range leaves {
			leaves[i] = leafOf(i)
		}
		size := int64(len(leaves)) * BlockBytes
		tree := newLeafTree(slices.Clone(leaves))
		if tree.root(size) != Root(size, leaves) {
			t.Fatalf("%d leaves: another root", len(leaves))
		}
		for range 3 {
			count := rapid.IntRange(1, 70).Draw(t, "count")
			if rapid.Bool().Draw(t, "same") {
				count = len(leaves)
			}
			next := make([]Hash, count)
			copy(next, leaves)
			var changed []int64
			for i := range next {
				if i >= len(leaves) || rapid.IntRange(0, 7).Draw(t, "change") == 0 {
					next[i] = leafOf(rapid.IntRange(0, 1000).Draw(t, "leaf"))
					changed = append(changed, int64(i))
				}
			}
			tree = tree.with(int64(count), changed, func(i int64) Hash { return next[i] })
			leaves, size = next, int64(count)*BlockBytes
			if tree.root(size) != Root(size, leaves) {
				t.Fatalf("%d leaves, changed %v: another root", count, changed)
			}
		}
	})
}

// Deltas over deltas have the root of their bytes, with the trees at hand or not.
func TestRootsOfDeltasFromTrees(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	data := randomBytes(1, 5*BlockBytes+100)
	put(t, s, testID(1), Shape{Size: int64(len(data))}, data)
	for i := byte(2); i < 12; i++ {
		baseSize := int64(len(data))
		off := int(i) * BlockBytes / 3
		copy(data[off:], randomBytes(uint64(i), PageBytes))
		if i == 6 {
			data = append(data, randomBytes(6, 2*BlockBytes)...)
		}
		shape := Shape{Size: int64(len(data)), Base: testID(i - 1), BaseSize: baseSize}
		shape.Extents = []Extent{{Off: int64(off) / PageBytes * PageBytes, Len: 2 * PageBytes}}
		if i == 6 {
			shape.Extents = append(shape.Extents, Extent{Off: shape.BaseSize, Len: shape.Size - shape.BaseSize})
		}
		if i == 9 {
			s.trees = new(treeCache)
		}
		root := put(t, s, testID(i), shape, data)
		if want := rootOf(data); root != want {
			t.Fatalf("delta %d: root %s, want %s", i, root, want)
		}
		wantContent(t, s, testID(i), data)
	}
}
