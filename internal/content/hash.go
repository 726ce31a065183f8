package content

import (
	"hash/crc32"
	"math/bits"
	"sync"

	"github.com/zeebo/blake3"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// The domains of the tree. Leaves are plain BLAKE3 of the block; nodes and the root are BLAKE3 in its
// derive-key mode, so that no block can pass for a node.
const (
	nodeDomain = "rdmcfs content tree node v1"
	rootDomain = "rdmcfs content tree root v1"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC32C (Castagnoli) of p.
func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// Leaf is the leaf hash of one block. It does not allocate.
func Leaf(block []byte) Hash { return blake3.Sum256(block) }

// zeroLeafFull is the leaf of a whole block of zeros.
var zeroLeafFull = sync.OnceValue(func() Hash { return Leaf(make([]byte, BlockBytes)) })

// zeroLeaf is the leaf of n zero bytes, n <= BlockBytes.
func zeroLeaf(n int64) Hash {
	if n == BlockBytes {
		return zeroLeafFull()
	}
	return Leaf(make([]byte, n))
}

// Root is the Merkle root of a content of size bytes with the given leaves.
//
// The tree is binary and left-full: a node over n > 1 leaves has the largest power of two below n on its
// left. node = BLAKE3-derive("rdmcfs content tree node v1", left || right); the top of no leaves is 32
// zero bytes; root = BLAKE3-derive("rdmcfs content tree root v1", size as 8 bytes little endian || top).
func Root(size int64, leaves []Hash) Hash {
	t := newTree()
	for i := range leaves {
		t.add(leaves[i])
	}
	return t.root(size)
}

// tree computes a root from leaves that come one by one, in memory of the logarithm of their number.
type tree struct {
	count  uint64
	stack  []Hash // one perfect subtree per set bit of count, the largest first
	hasher *blake3.Hasher
	zeros  []Hash // zeros[k] is the perfect subtree over 2^k whole zero blocks
}

func newTree() *tree {
	return &tree{stack: make([]Hash, 0, 48), hasher: blake3.NewDeriveKey(nodeDomain)}
}

func (t *tree) node(left, right *Hash) (h Hash) {
	t.hasher.Reset()
	_, _ = t.hasher.Write(left[:]) // a Hasher's Write never fails
	_, _ = t.hasher.Write(right[:])
	t.hasher.Sum(h[:0])
	return h
}

// add appends one leaf.
func (t *tree) add(leaf Hash) { t.push(leaf, 0) }

// push appends a perfect subtree over 2^level leaves; count must be a multiple of that.
func (t *tree) push(top Hash, level int) {
	for t.count>>level&1 == 1 {
		top = t.node(&t.stack[len(t.stack)-1], &top)
		t.stack = t.stack[:len(t.stack)-1]
		t.count -= 1 << level
		level++
	}
	t.stack = append(t.stack, top)
	t.count += 1 << level
}

// addZeros appends the leaves of n whole zero blocks in time of the logarithm of n.
func (t *tree) addZeros(n int64) {
	for left := uint64(n); left > 0; {
		level := bits.Len64(left) - 1
		if t.count > 0 {
			level = min(level, bits.TrailingZeros64(t.count))
		}
		t.push(t.zeroTop(level), level)
		left -= 1 << level
	}
}

func (t *tree) zeroTop(level int) Hash {
	if len(t.zeros) == 0 {
		t.zeros = append(t.zeros, zeroLeafFull())
	}
	for len(t.zeros) <= level {
		last := t.zeros[len(t.zeros)-1]
		t.zeros = append(t.zeros, t.node(&last, &last))
	}
	return t.zeros[level]
}

// root folds the subtrees and binds the size.
func (t *tree) root(size int64) (h Hash) {
	var top Hash
	for i := len(t.stack) - 1; i >= 0; i-- {
		if i == len(t.stack)-1 {
			top = t.stack[i]
			continue
		}
		top = t.node(&t.stack[i], &top)
	}
	var message [8 + len(top)]byte
	c := coder.Writer(message[:0], coder.Little)
	c.I64(&size)
	c.Fixed(top[:])
	blake3.DeriveKey(rootDomain, message[:], h[:])
	return h
}
