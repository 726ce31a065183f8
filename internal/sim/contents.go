package sim

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// contents is the store of a machine, with the contract of content.Store: what was finished is durable, a commit is
// not, what was received may be lost in parts, what was deleted may come back. A content's bytes are its leaves.
type contents struct {
	blobs  map[content.ID]*blob
	ghosts map[content.ID]*blob // deleted, and not certainly so on the disk
	// wrote is called after each change, which tell has told of.
	wrote func()
	tell  func(what string, id meta.ContentID)
}

// blob is one content.
type blob struct {
	id      content.ID
	size    int64
	state   content.State
	leaves  []content.Hash
	have    []bool
	root    content.Hash
	damaged bool
	open    bool // a session receives into it
}

func newContents() *contents {
	return &contents{blobs: map[content.ID]*blob{}, ghosts: map[content.ID]*blob{}, wrote: func() {}, tell: func(string, meta.ContentID) {}}
}

func storeID(c meta.ContentID) content.ID { return content.ID(c.Bytes()) }

func metaID(id content.ID) meta.ContentID { return meta.ContentIDFromBytes(id) }

func (b *blob) missing() (n int) {
	for _, h := range b.have {
		if !h {
			n++
		}
	}
	return n
}

func (b *blob) clone() *blob {
	c := *b
	c.leaves, c.have, c.open = slices.Clone(b.leaves), slices.Clone(b.have), false
	return &c
}

// durable reports whether the content survives a power loss.
func (c *contents) durable(id meta.ContentID) bool {
	b := c.blobs[storeID(id)]
	return b != nil && b.state != content.Partial
}

// crash is the store as the next process finds it.
func (c *contents) crash(power bool, intn func(int) int) *contents {
	out := newContents()
	for _, id := range c.sorted(c.blobs) {
		b := c.blobs[id].clone()
		if power {
			if b = b.afterPowerLoss(intn); b == nil {
				continue
			}
		}
		out.blobs[id] = b
	}
	for _, id := range c.sorted(c.ghosts) {
		if power && out.blobs[id] == nil && intn(2) == 0 {
			out.blobs[id] = c.ghosts[id].clone()
		}
	}
	return out
}

func (b *blob) afterPowerLoss(intn func(int) int) *blob {
	switch b.state {
	case content.Partial:
		if intn(2) == 0 {
			return nil
		}
		for i := range b.have {
			b.have[i] = b.have[i] && intn(2) == 0
		}
	case content.Committed:
		if intn(2) == 0 {
			b.state = content.Undecided
		}
	}
	return b
}

func (c *contents) sorted(m map[content.ID]*blob) []content.ID {
	ids := make([]content.ID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b content.ID) int { return slices.Compare(a[:], b[:]) })
	return ids
}

// receive opens a content for the blocks of a session. exists says that it is here whole.
func (c *contents) receive(id meta.ContentID, size int64, blocks int) (b *blob, exists bool, err error) {
	sid := storeID(id)
	b = c.blobs[sid]
	switch {
	case b == nil:
		b = &blob{id: sid, size: size, state: content.Partial, leaves: make([]content.Hash, blocks), have: make([]bool, blocks)}
		c.blobs[sid] = b
		delete(c.ghosts, sid)
	case b.state == content.Committed && b.damaged:
		c.remove(b)
		return c.receive(id, size, blocks)
	case b.state != content.Partial:
		return nil, true, nil
	case b.open:
		return nil, false, fmt.Errorf("sim: receive %v: %w", id, content.ErrBusy)
	}
	b.open = true
	c.wrote()
	return b, false, nil
}

// finish checks a received content against its root and makes it durable.
func (c *contents) finish(b *blob, root content.Hash) error {
	if c.blobs[b.id] != b {
		return content.ErrNotFound
	}
	if b.missing() > 0 || content.Root(b.size, b.leaves) != root {
		return content.ErrMismatch
	}
	b.state, b.root, b.open = content.Undecided, root, false
	c.tell("has stored", metaID(b.id))
	c.wrote()
	return nil
}

// shut ends the receiving of a session; discard drops the bytes too.
func (c *contents) shut(b *blob, discard bool) {
	b.open = false
	if discard && c.blobs[b.id] == b && b.state == content.Partial {
		c.remove(b)
	}
}

func (c *contents) remove(b *blob) {
	delete(c.blobs, b.id)
	c.tell("removes", metaID(b.id))
	if b.state != content.Partial {
		c.ghosts[b.id] = b.clone()
	}
	c.wrote()
}

// Begin implements replicate.Store; sessions use receive.
func (c *contents) Begin(content.ID, content.Shape) (*content.Receiving, error) {
	return nil, content.ErrNotFound
}

// BeginFrom implements replicate.Store; sessions use receive.
func (c *contents) BeginFrom(content.ID, content.ID, content.Shape) (*content.Receiving, bool, error) {
	return nil, false, content.ErrNotFound
}

// Put implements replicate.Store.
func (c *contents) Put(_ context.Context, id content.ID, shape content.Shape, src io.ReaderAt) (content.Hash, error) {
	if b := c.blobs[id]; b != nil {
		if b.state != content.Partial {
			return content.Hash{}, fmt.Errorf("sim: put: %w", content.ErrExists)
		}
		c.remove(b)
	}
	buf := make([]byte, shape.Size)
	if _, err := src.ReadAt(buf, 0); err != nil && err != io.EOF {
		return content.Hash{}, err
	}
	leaf := content.Leaf(buf)
	b := &blob{id: id, size: shape.Size, state: content.Undecided, leaves: []content.Hash{leaf}, have: []bool{true}}
	b.root = content.Root(shape.Size, b.leaves)
	c.blobs[id] = b
	delete(c.ghosts, id)
	c.wrote()
	return b.root, nil
}

// Commit implements replicate.Store.
func (c *contents) Commit(id content.ID) error {
	b := c.blobs[id]
	if b == nil || b.state == content.Partial {
		return fmt.Errorf("sim: commit: %w", content.ErrNotFound)
	}
	if b.state != content.Committed {
		b.state = content.Committed
		c.tell("commits", metaID(id))
		c.wrote()
	}
	return nil
}

// Abort implements replicate.Store.
func (c *contents) Abort(id content.ID) error {
	switch b := c.blobs[id]; {
	case b == nil:
	case b.state == content.Committed:
		return fmt.Errorf("sim: abort: %w", content.ErrExists)
	default:
		c.remove(b)
	}
	return nil
}

// Delete implements replicate.Store.
func (c *contents) Delete(id content.ID) error {
	if b := c.blobs[id]; b != nil {
		c.remove(b)
	}
	return nil
}

// State implements replicate.Store.
func (c *contents) State(id content.ID) (content.State, bool) {
	b := c.blobs[id]
	if b == nil {
		return 0, false
	}
	return b.state, true
}

// Stat implements replicate.Store.
func (c *contents) Stat(id content.ID) (content.Info, error) {
	b := c.blobs[id]
	if b == nil {
		return content.Info{}, content.ErrNotFound
	}
	return content.Info{ID: id, State: b.state, Size: b.size, StreamBytes: b.size, Root: b.root, Damaged: b.damaged, Checked: !b.damaged}, nil
}

// Whole implements replicate.Store.
func (c *contents) Whole(id content.ID, size int64) bool {
	b := c.blobs[id]
	return b != nil && b.state != content.Partial && !b.damaged && b.size == size
}

// List implements replicate.Store.
func (c *contents) List(state content.State) (out []content.ID) {
	for _, id := range c.sorted(c.blobs) {
		if c.blobs[id].state == state {
			out = append(out, id)
		}
	}
	return out
}

// Damaged implements replicate.Store.
func (c *contents) Damaged() (out []content.ID) {
	for _, id := range c.sorted(c.blobs) {
		if c.blobs[id].damaged {
			out = append(out, id)
		}
	}
	return out
}

// Check implements replicate.Store.
func (c *contents) Check(context.Context, content.ID) (*content.Damage, error) { return nil, nil }

// Mend implements replicate.Store.
func (c *contents) Mend(context.Context, content.ID, int64, []byte) error { return content.ErrNotFound }

// Merge implements replicate.Store.
func (c *contents) Merge(context.Context, content.ID) error { return nil }

// Open implements replicate.Store.
func (c *contents) Open(content.ID) (*content.Reader, error) { return nil, content.ErrNotFound }

// OpenUndecided implements replicate.Store.
func (c *contents) OpenUndecided(content.ID) (*content.Reader, error) {
	return nil, content.ErrNotFound
}
