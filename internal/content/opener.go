package content

import (
	"errors"
	"fmt"
	"os"
)

// opener opens what the index has: the files of a content and of the contents that it is a delta over.
type opener struct {
	index *index
	files *storeFiles
}

// stat describes a content.
func (op *opener) stat(id ID) (Info, error) {
	for {
		info, ok := op.index.info(id)
		if !ok {
			return Info{}, fmt.Errorf("content: stat %s: %w", id, ErrNotFound)
		}
		h, err := readHeader(op.files.sidecarPath(id, info.Base, info.State), id)
		if errors.Is(err, os.ErrNotExist) && op.index.changed(id, form{info.State, info.Base}) {
			continue // a commit or a fold moved it meanwhile
		}
		if err != nil {
			return info, fmt.Errorf("content: stat %s: %w", id, err)
		}
		info.Size, info.StreamBytes, info.Root = h.size, h.streamBytes, h.root
		return info, nil
	}
}

// openIn pins a content that is in one of the states, and opens it for reading.
func (op *opener) openIn(id ID, states ...State) (*Reader, error) {
	e, err := op.index.pin(id, states...)
	if err != nil {
		return nil, fmt.Errorf("content: open: %w", err)
	}
	return op.openPinned(id, e)
}

// openPinned opens a content that the caller has pinned, for as long as it is read.
func (op *opener) openPinned(id ID, e *entry) (*Reader, error) {
	b, err := op.openBody(id, e, os.O_RDONLY)
	if err != nil {
		if errors.Is(err, ErrCorrupt) || errors.Is(err, os.ErrNotExist) {
			op.index.markDamaged(id, err)
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		return nil, errors.Join(fmt.Errorf("content: open %s: %w", id, err), op.index.unpin(id))
	}
	op.compareMark(b)
	return &Reader{index: op.index, opener: op, body: b}, nil
}

// openBase is [Store.Open] for what staged bytes are over, even if it was deleted: they keep it.
func (op *opener) openBase(token uint64, id ID) (*Reader, error) {
	e, err := op.index.pinBase(token, id)
	switch {
	case err != nil:
		return nil, fmt.Errorf("content: open: %w", err)
	case e == nil:
		return op.openIn(id, Committed)
	}
	return op.openPinned(id, e)
}

// openBody opens the files of a pinned content and of its bases.
func (op *opener) openBody(id ID, e *entry, flag int) (*body, error) {
	top, err := op.openLayer(id, e, flag)
	if err != nil {
		return nil, err
	}
	last := top
	for depth := 0; !last.head.base.IsZero(); depth++ {
		if depth > DepthMax {
			return nil, errors.Join(fmt.Errorf("content: %s: %w", id, ErrTooDeep), top.close())
		}
		e := op.index.entry(last.head.base) // the dependency of the layer above keeps it
		if e == nil {
			return nil, errors.Join(fmt.Errorf("content: %s: base %s: %w", id, last.head.base, ErrCorrupt), top.close())
		}
		next, err := op.openLayer(last.head.base, e, flag)
		if err != nil {
			return nil, errors.Join(err, top.close())
		}
		last.base = next
		if next.head.size != last.layout.shape.BaseSize {
			return nil, errors.Join(fmt.Errorf("content: %s: size of base: %w", id, ErrCorrupt), top.close())
		}
		last = next
	}
	return top, nil
}

// openLayer opens the sidecar and the stream of one content. A commit may rename the sidecar at any time.
func (op *opener) openLayer(id ID, e *entry, flag int) (*body, error) {
	for {
		was := op.index.form(e)
		b, err := op.files.open(id, was.base, was.state, flag)
		if !errors.Is(err, os.ErrNotExist) {
			return b, err
		}
		if op.index.form(e) == was {
			return nil, err
		}
	}
}

// attachBase opens the base of a delta; the entry's dependency keeps it.
func (op *opener) attachBase(b *body) error {
	if b.head.base.IsZero() {
		return nil
	}
	e := op.index.entry(b.head.base)
	if e == nil {
		return ErrNoBase
	}
	base, err := op.openBody(b.head.base, e, os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoBase, err)
	}
	b.base = base
	if base.head.size != b.layout.shape.BaseSize {
		return fmt.Errorf("base %s has %d bytes, not %d: %w", b.head.base, base.head.size, b.layout.shape.BaseSize, ErrShape)
	}
	return nil
}
