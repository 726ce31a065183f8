package content

import (
	"context"
	"sync"
)

// leafTree is the whole Merkle tree of a content: levels[0] are the leaves, each further level the nodes over pairs
// of the one below, the last one taken over as it is if their number is odd. That is the tree of [Root], kept so that
// a few changed blocks cost a few nodes and not a look at each leaf.
type leafTree struct {
	levels [][]Hash
}

// treeLeavesMax bounds the contents whose trees are kept: 64 bytes a leaf.
const treeLeavesMax = 1 << 17

func newLeafTree(leaves []Hash) *leafTree {
	t := &leafTree{levels: [][]Hash{leaves}}
	node := newTree()
	for below := leaves; len(below) > 1; {
		level := make([]Hash, (len(below)+1)/2)
		for i := range level {
			level[i] = nodeOver(node, below, i)
		}
		t.levels = append(t.levels, level)
		below = level
	}
	return t
}

// nodeOver is node i over a level.
func nodeOver(node *tree, below []Hash, i int) Hash {
	if 2*i+1 == len(below) {
		return below[2*i]
	}
	return node.node(&below[2*i], &below[2*i+1])
}

// with is the tree after some leaves have changed and their number has become count. changed is ascending and holds all
// numbers from the old count on.
func (t *leafTree) with(count int64, changed []int64, leaf func(int64) Hash) *leafTree {
	leaves := make([]Hash, count)
	copy(leaves, t.levels[0])
	for _, i := range changed {
		leaves[i] = leaf(i)
	}
	if count != int64(len(t.levels[0])) {
		return newLeafTree(leaves)
	}
	out := &leafTree{levels: [][]Hash{leaves}}
	node := newTree()
	for k := 1; k < len(t.levels); k++ {
		level := append([]Hash(nil), t.levels[k]...)
		parents := changed[:0:0]
		for _, i := range changed {
			if n := len(parents); n == 0 || parents[n-1] != i/2 {
				parents = append(parents, i/2)
			}
		}
		for _, i := range parents {
			level[i] = nodeOver(node, out.levels[k-1], int(i))
		}
		out.levels, changed = append(out.levels, level), parents
	}
	return out
}

// root is the root of a content of size bytes.
func (t *leafTree) root(size int64) Hash {
	top := t.levels[len(t.levels)-1]
	end := newTree()
	end.stack = append(end.stack, top...)
	return end.root(size)
}

// treesKept is how many trees a store keeps.
const treesKept = 4

// treeCache has the trees of contents that deltas were made over lately.
type treeCache struct {
	mu   sync.Mutex
	ids  [treesKept]ID
	all  [treesKept]*leafTree
	next int
}

func (c *treeCache) get(id ID) *leafTree {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.ids {
		if c.ids[i] == id {
			return c.all[i]
		}
	}
	return nil
}

func (c *treeCache) put(id ID, t *leafTree) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.ids {
		if c.ids[i] == id {
			c.all[i] = t
			return
		}
	}
	c.ids[c.next], c.all[c.next] = id, t
	c.next = (c.next + 1) % treesKept
}

// treeOf gives the tree of a content that is whole, nil if it is too large to be kept or its leaves do not make its
// root.
func (c *treeCache) of(ctx context.Context, b *body) (*leafTree, error) {
	count := blockCount(b.head.size)
	if count == 0 || count > treeLeavesMax {
		return nil, nil
	}
	if t := c.get(b.id); t != nil {
		return t, nil
	}
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	leaves := make([]Hash, count)
	for i := range leaves {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		leaf, err := b.leaf(int64(i), sc)
		if err != nil {
			return nil, err
		}
		leaves[i] = leaf
	}
	t := newLeafTree(leaves)
	if t.root(b.head.size) != b.head.root {
		return nil, nil
	}
	c.put(b.id, t)
	return t, nil
}

// rootOver computes the root of a delta from the tree of its base; ok is false if that has to be done the long way.
func (r *Receiving) rootOver(ctx context.Context) (root Hash, ok bool, err error) {
	b := r.body
	count := blockCount(b.head.size)
	if b.base == nil || count == 0 || count > treeLeavesMax {
		return root, false, nil
	}
	base, err := r.s.trees.of(ctx, b.base)
	if base == nil || err != nil {
		return root, false, err
	}
	var changed []int64
	for i := range count {
		if _, from := b.layout.leafSource(i); from != fromBase || i >= int64(len(base.levels[0])) {
			changed = append(changed, i)
		}
	}
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	t := base.with(count, changed, func(i int64) Hash {
		leaf, leafErr := b.leaf(i, sc)
		if leafErr != nil && err == nil {
			err = leafErr
		}
		return leaf
	})
	if err != nil {
		return root, false, err
	}
	r.tree = t
	return t.root(b.head.size), true, nil
}
