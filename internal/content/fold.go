package content

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
)

// forms changes how contents are stored on the disk: it makes plain contents from deltas, puts deltas over a lower
// base, and gives damaged blocks their bytes back. A content has at most one such change under way; see
// index.startFold.
type forms struct {
	index  *index
	files  *storeFiles
	opener *opener
	space  *spaceBook
}

// Merge turns a committed delta over deltas into one delta over the lowest, plain content. It writes what
// all of them changed, once; that keeps chains short when the base is large.
func (s *Store) Merge(ctx context.Context, id ID) error { return s.forms.merge(ctx, id) }

// fold turns a committed delta into a plain content of the same id, and is done at once if it is plain. If its
// base was deleted and is kept for it alone, and neither is open, only the changed bytes are written, into the
// base's file, and opens wait for that. Else it writes a copy and readers go on meanwhile. A crash leaves one
// form or the other.
func (fo *forms) fold(ctx context.Context, id ID) error {
	if done, err := fo.foldInPlace(ctx, id); done || err != nil {
		return err
	}
	return fo.reform(ctx, id, "fold", func(b *body) (Shape, bool) {
		return Shape{Size: b.head.size, Holes: b.zeroBlocks()}, b.base != nil
	})
}

func (fo *forms) merge(ctx context.Context, id ID) error {
	return fo.reform(ctx, id, "merge", func(b *body) (Shape, bool) {
		if b.base == nil || b.base.base == nil {
			return Shape{}, false
		}
		shape := b.mergedShape()
		return shape, len(shape.Extents) <= ExtentsMax
	})
}

// reform gives a content another form on disk: the shape that plan chooses, if it wants one.
func (fo *forms) reform(ctx context.Context, id ID, verb string, plan func(*body) (Shape, bool)) error {
	r, err := fo.opener.openIn(id, Committed)
	if err != nil {
		return fmt.Errorf("content: %s: %w", verb, err)
	}
	defer r.Close()
	shape, wanted := plan(r.body)
	if !wanted {
		return nil
	}
	if err := fo.index.startFold(id); err != nil {
		return fmt.Errorf("content: %s %s: %w", verb, id, err)
	}
	m, err := fo.write(ctx, r.body, shape)
	if err == nil {
		err = fo.switchTo(id, r.body.head.base, shape.Base, m)
	}
	fo.index.endFold(id)
	if err != nil {
		return fmt.Errorf("content: %s %s: %w", verb, id, noSpace(err))
	}
	return nil
}

// zeroBlocks are the runs of blocks that are known to be zero through all layers.
func (b *body) zeroBlocks() blockset.Ranges {
	var set blockset.Ranges
	for i := range blockCount(b.head.size) {
		if b.zeroBlock(i) && len(set) < ExtentsMax {
			set.Add(blockset.Range{First: uint64(i), Count: 1})
		}
	}
	return set
}

// zeroBlock reports whether all of block i is zero by the shapes alone.
func (b *body) zeroBlock(i int64) bool {
	return b.zeroRange(i*BlockBytes, blockLen(b.head.size, i))
}

func (b *body) zeroRange(off, n int64) bool {
	for n > 0 {
		p := b.layout.partAt(off, n)
		if p.from == fromStream || p.from == fromBase && !b.base.zeroRange(off, p.len) {
			return false
		}
		off, n = off+p.len, n-p.len
	}
	return true
}

// nextData is the end of the zeros that are known by the shapes alone, from off on; at most end.
func (b *body) nextData(off, end int64) int64 { return b.next(fromStream, off, end) }

// nextHole is where zeros begin that are known by the shapes alone, at off or behind it; at most end.
func (b *body) nextHole(off, end int64) int64 { return b.next(fromZero, off, end) }

// next is where bytes of a source begin, at off or behind it, in this body or in what it takes from its bases; at most
// end.
func (b *body) next(from source, off, end int64) int64 {
	for off < end {
		p := b.layout.partAt(off, end-off)
		next := off + p.len
		switch p.from {
		case from:
			return off
		case fromBase:
			if at := b.base.next(from, off, next); at < next {
				return at
			}
		}
		off = next
	}
	return end
}

// zeroBytes is how much of a range is known to be zero by the shapes alone.
func (b *body) zeroBytes(off, n int64) (zeros int64) {
	for n > 0 {
		p := b.layout.partAt(off, n)
		switch p.from {
		case fromZero:
			zeros += p.len
		case fromBase:
			zeros += b.base.zeroBytes(off, p.len)
		}
		off, n = off+p.len, n-p.len
	}
	return zeros
}

// mergedShape is the delta of b over the plain content at the end of its chain.
func (b *body) mergedShape() Shape {
	last := b
	for last.base != nil {
		last = last.base
	}
	shape := Shape{Size: b.head.size, Base: last.id, BaseSize: last.head.size}
	b.appendParts(&shape.Extents, last, 0, b.head.size)
	return shape
}

// appendParts appends the extents of a range that do not come from last.
func (b *body) appendParts(list *[]Extent, last *body, off, n int64) {
	for n > 0 && b != last {
		p := b.layout.partAt(off, n)
		if p.from == fromBase {
			b.base.appendParts(list, last, off, p.len)
		} else {
			*list = appendExtent(*list, Extent{Off: off, Len: p.len, Zero: p.from == fromZero})
		}
		off, n = off+p.len, n-p.len
	}
}

// ReadAt reads inside the content, checked; it makes a body the source of another form.
func (b *body) ReadAt(p []byte, off int64) (int, error) {
	if err := b.readAt(p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// write writes the content of b in another shape next to it and makes it durable under its final name. It returns the
// mark of the data file of a plain one.
func (fo *forms) write(ctx context.Context, b *body, shape Shape) (m mark, err error) {
	l, err := NewLayout(shape)
	if err != nil {
		return m, err
	}
	to, encoded, err := newBody(b.id, l)
	if err != nil {
		return m, err
	}
	need := to.head.fileBytes() + l.stream
	if err := fo.space.promise(need); err != nil {
		return m, err
	}
	defer fo.space.settle(need)
	if err := fo.create(to, encoded); err != nil {
		return m, errors.Join(err, to.close(), fo.drop(to))
	}
	if err = copyForm(ctx, to, b); err == nil {
		err = fo.persist(to, b.head.root)
	}
	to.look()
	err = errors.Join(err, to.close())
	if err != nil {
		return m, errors.Join(err, fo.drop(to))
	}
	return to.looked(), nil
}

// create makes the files of a new form.
func (fo *forms) create(to *body, encoded []byte) error {
	if to.head.has(flagInline) {
		m := make(image, to.head.fileBytes())
		copy(m[headerBytes:], encoded)
		to.openImage(m)
		return nil
	}
	flag := os.O_RDWR | os.O_CREATE | os.O_TRUNC
	f, err := os.OpenFile(fo.files.streamPath(to.id, to.head.base), flag, 0o600)
	if err != nil {
		return err
	}
	to.stream, to.streamFile = f, f
	if to.head.base.IsZero() {
		if err := f.Truncate(to.head.size); err != nil {
			return err
		}
	}
	side, err := os.OpenFile(fo.files.foldPath(to.id, to.head.base), flag, 0o600)
	if err != nil {
		return err
	}
	to.side, to.sideFile = side, side
	_, err = side.WriteAt(encoded, headerBytes)
	return err
}

// copyForm fills a new form; what it reads is checked, and its leaves are those of the old one.
func copyForm(ctx context.Context, to, from *body) error {
	err := eachBlock(ctx, to.layout.Blocks(), func(i int64, sc *scratch) error {
		block := sc.block[:to.layout.BlockLen(i)]
		if err := to.layout.ReadBlock(from, i, block); err != nil {
			return err
		}
		fillRow(&sc.row, block)
		if _, err := to.stream.WriteAt(block, to.streamAt(i*BlockBytes)); err != nil {
			return err
		}
		return to.writeRow(i, sc)
	})
	if err != nil {
		return err
	}
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	index := int64(0)
	for block := range to.layout.leaves.Blocks {
		i := int64(block)
		leaf, err := from.leaf(i, sc)
		if err != nil {
			return err
		}
		if err := to.writeLeaf(index, i, &leaf); err != nil {
			return err
		}
		index++
	}
	return checkForm(ctx, to, from)
}

// checkForm checks the leaves of a plain form, which are new, against the root.
func checkForm(ctx context.Context, to, from *body) error {
	if !to.head.base.IsZero() {
		return nil
	}
	root, err := to.root(ctx)
	if err == nil && root != from.head.root {
		err = fmt.Errorf("content: %s: root of its folded form: %w", to.id, ErrCorrupt)
	}
	return err
}

// persist makes a new form durable under its final name.
func (fo *forms) persist(to *body, root Hash) error {
	if err := to.writeHeader(root, flagComplete); err != nil {
		return err
	}
	path := fo.files.foldPath(to.id, to.head.base)
	if m, inline := to.side.(image); inline {
		if err := fo.files.writeNew(path, m); err != nil {
			return err
		}
	} else {
		if err := fo.files.sync(to.streamFile); err != nil {
			return err
		}
		if err := fo.files.sync(to.sideFile); err != nil {
			return err
		}
	}
	if err := fo.files.rename(path, fo.files.sidecarPath(to.id, to.head.base, Committed)); err != nil {
		return err
	}
	return fo.files.syncShard(to.id)
}

// drop removes a new form that was not completed.
func (fo *forms) drop(to *body) error {
	return errors.Join(
		fo.files.unlink(fo.files.foldPath(to.id, to.head.base)),
		fo.files.unlink(fo.files.sidecarPath(to.id, to.head.base, Committed)),
		fo.files.unlink(fo.files.streamPath(to.id, to.head.base)))
}

// switchTo makes the new form the content's and removes the old one.
func (fo *forms) switchTo(id, from, to ID, m mark) error {
	fo.index.rebase(id, to, m)
	err := fo.files.remove(id, from, Committed)
	return errors.Join(err, fo.index.letBase(from))
}
