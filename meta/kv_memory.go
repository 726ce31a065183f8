package meta

import (
	"hash/crc64"
	"sort"
	"strings"
	"sync"
)

// memoryStore keeps each version as an immutable tree (a treap whose priorities are hashes of the keys), so
// that versions, clones and snapshots cost a pointer.
type memoryStore struct {
	mu       sync.Mutex
	versions []memoryVersion // ascending; the first is the synced one
}

type memoryVersion struct {
	index uint64
	root  *treap
}

// memoryUnsyncedMax bounds the versions kept for crash clones; beyond it the oldest counts as synced.
const memoryUnsyncedMax = 4096

func newMemoryStore() *memoryStore { return &memoryStore{versions: []memoryVersion{{}}} }

func (m *memoryStore) view(index uint64) kvView {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := sort.Search(len(m.versions), func(i int) bool { return m.versions[i].index > index })
	if i == 0 {
		i = 1
	}
	return memoryView{m.versions[i-1].root}
}

func (m *memoryStore) commit(index uint64, writes []kvWrite) error {
	m.mu.Lock()
	root := m.versions[len(m.versions)-1].root
	m.mu.Unlock()
	for _, w := range writes {
		if w.value == nil {
			root = root.remove(string(w.key))
		} else {
			root = root.insert(string(w.key), w.value)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if last := &m.versions[len(m.versions)-1]; last.index == index {
		last.root = root // genesis
		return nil
	}
	m.versions = append(m.versions, memoryVersion{index, root})
	if len(m.versions) > memoryUnsyncedMax {
		m.versions = append([]memoryVersion(nil), m.versions[memoryUnsyncedMax/2:]...)
	}
	return nil
}

func (m *memoryStore) sync(index uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := sort.Search(len(m.versions), func(i int) bool { return m.versions[i].index > index })
	if i > 1 {
		m.versions = append([]memoryVersion(nil), m.versions[i-1:]...)
	}
	return nil
}

func (m *memoryStore) keepFrom(uint64)    {}
func (m *memoryStore) beyond(uint64) bool { return false }
func (m *memoryStore) close() error       { return nil }

// clone copies the store as power loss would leave it when everything up to index had reached the disk. What
// was synced is always there.
func (m *memoryStore) clone(index uint64) (*memoryStore, uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := sort.Search(len(m.versions), func(i int) bool { return m.versions[i].index > index })
	if i == 0 {
		i = 1
	}
	v := m.versions[i-1]
	return &memoryStore{versions: []memoryVersion{v}}, v.index
}

type memoryView struct{ root *treap }

func (v memoryView) get(key []byte) ([]byte, error) {
	for t := v.root; t != nil; {
		switch {
		case string(key) < t.key:
			t = t.left
		case string(key) > t.key:
			t = t.right
		default:
			return t.value, nil
		}
	}
	return nil, nil
}

func (v memoryView) scan(prefix, from []byte) kvCursor {
	c := &memoryCursor{prefix: string(prefix)}
	for t := v.root; t != nil; {
		if t.key >= string(from) {
			c.stack = append(c.stack, t)
			t = t.left
		} else {
			t = t.right
		}
	}
	return c
}

func (memoryView) close() {}

// memoryCursor keeps the path of nodes not yet visited, smallest on top.
type memoryCursor struct {
	stack  []*treap
	at     *treap
	prefix string
}

func (c *memoryCursor) next() bool {
	if len(c.stack) == 0 {
		return false
	}
	c.at = c.stack[len(c.stack)-1]
	c.stack = c.stack[:len(c.stack)-1]
	for t := c.at.right; t != nil; t = t.left {
		c.stack = append(c.stack, t)
	}
	if !strings.HasPrefix(c.at.key, c.prefix) {
		c.stack = nil // the end, for good
		return false
	}
	return true
}

func (c *memoryCursor) key() []byte            { return []byte(c.at.key) }
func (c *memoryCursor) value() ([]byte, error) { return c.at.value, nil }
func (c *memoryCursor) sure() error            { return nil }
func (c *memoryCursor) close()                 {}

// treap is an immutable node of a search tree, balanced by pseudo-random priorities.
type treap struct {
	key         string
	value       []byte
	priority    uint64
	left, right *treap
}

var priorityTable = crc64.MakeTable(crc64.ECMA)

func (t *treap) insert(key string, value []byte) *treap {
	p := crc64.Checksum([]byte(key), priorityTable) * 0x9e3779b97f4a7c15
	return t.put(&treap{key: key, value: value, priority: p})
}

func (t *treap) put(n *treap) *treap {
	switch {
	case t == nil:
		return n
	case n.key == t.key:
		c := *t
		c.value = n.value
		return &c
	case n.priority > t.priority:
		// n rises above t. Its key may lie deeper; split drops it there.
		n.left, n.right = t.split(n.key)
		return n
	}
	c := *t
	if n.key < t.key {
		c.left = t.left.put(n)
	} else {
		c.right = t.right.put(n)
	}
	return &c
}

// split divides t into the keys below and above key, without key itself.
func (t *treap) split(key string) (below, above *treap) {
	if t == nil {
		return nil, nil
	}
	if key == t.key {
		return t.left, t.right
	}
	c := *t
	if key < t.key {
		below, c.left = t.left.split(key)
		return below, &c
	}
	c.right, above = t.right.split(key)
	return &c, above
}

func (t *treap) remove(key string) *treap {
	if t == nil {
		return nil
	}
	if key == t.key {
		return join(t.left, t.right)
	}
	c := *t
	if key < t.key {
		c.left = t.left.remove(key)
	} else {
		c.right = t.right.remove(key)
	}
	return &c
}

// join is the tree of both; all of a is below all of b.
func join(a, b *treap) *treap {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority > b.priority:
		c := *a
		c.right = join(a.right, b)
		return &c
	}
	c := *b
	c.left = join(a, b.left)
	return &c
}
