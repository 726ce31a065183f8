package content

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Mend rewrites block i of a committed content with good bytes p, fetched from a holder, and makes that durable. It
// checks p against the block's leaf, or against the root if the leaf itself is damaged, and returns ErrMismatch if p is
// not the block. Bytes that lie in a base are mended there. [Store.Check] reports whether the content is whole
// afterwards. A content whose sidecar can't be read cannot be mended: it must be deleted and fetched again.
func (s *Store) Mend(ctx context.Context, id ID, i int64, p []byte) error {
	return s.forms.mend(ctx, id, i, p)
}

func (fo *forms) mend(ctx context.Context, id ID, i int64, p []byte) error {
	r, err := fo.opener.openIn(id, Committed)
	if err != nil {
		return fmt.Errorf("content: mend: %w", err)
	}
	defer r.Close()
	if err := fo.index.startFold(id); err != nil { // no other form may be made meanwhile
		return fmt.Errorf("content: mend %s: %w", id, err)
	}
	err = fo.mendPinned(ctx, id, i, p)
	fo.index.endFold(id)
	if err != nil {
		return fmt.Errorf("content: mend block %d of %s: %w", i, id, err)
	}
	return nil
}

func (fo *forms) mendPinned(ctx context.Context, id ID, i int64, p []byte) (err error) {
	b, err := fo.opener.openBody(id, fo.index.entry(id), os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if i < 0 || i >= blockCount(b.head.size) || int64(len(p)) != blockLen(b.head.size, i) {
		return fmt.Errorf("%d bytes: %w", len(p), ErrShape)
	}
	if err := b.checkMended(ctx, i, p); err != nil {
		return err
	}
	if err := b.rewrite(p, i*BlockBytes); err != nil {
		return err
	}
	for layer := b; layer != nil; layer = layer.base {
		if err := fo.persistMended(layer); err != nil {
			return err
		}
	}
	return nil
}

// checkMended reports whether p is block i by its leaf or, if that is damaged, by the root; then it
// repairs the leaf.
func (b *body) checkMended(ctx context.Context, i int64, p []byte) error {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	leaf := Leaf(p)
	want, err := b.leaf(i, sc)
	if err == nil {
		if want != leaf {
			return ErrMismatch
		}
		return nil
	}
	root, err := b.rootWith(ctx, i, leaf)
	if err != nil {
		return err
	}
	if root != b.head.root {
		return ErrMismatch
	}
	return b.replaceLeaf(i, p, &leaf, sc)
}

// replaceLeaf writes a leaf that was found damaged into the layer it lies in.
func (b *body) replaceLeaf(i int64, p []byte, leaf *Hash, sc *scratch) error {
	index, from := b.layout.leafSource(i)
	switch {
	case from == fromBase:
		return b.base.replaceLeaf(i, p, leaf, sc)
	case b.base != nil:
		return b.writeLeaf(index, i, leaf)
	}
	fillRow(&sc.row, p)
	return b.writeRow(index, sc)
}

// rewrite writes bytes of the content at off into the layers they lie in, and repairs the rows.
func (b *body) rewrite(p []byte, off int64) error {
	for len(p) > 0 {
		part := b.layout.partAt(off, int64(len(p)))
		var err error
		switch part.from {
		case fromBase:
			err = b.base.rewrite(p[:part.len], off)
		case fromZero:
			if b.base == nil && b.streamFile != nil {
				b.swap.RLock()
				err = punch(b.streamFile, Extent{Off: off, Len: part.len})
				b.swap.RUnlock()
			}
		case fromStream:
			if _, err = b.writeFile(p[:part.len], b.streamAt(part.stream)); err == nil {
				err = b.repairRows(part.stream, part.len)
			}
		}
		if err != nil {
			return noSpace(err)
		}
		p, off = p[part.len:], off+part.len
	}
	return nil
}

// repairRows rewrites damaged rows of a delta's stream if the blocks of the content say that the bytes are
// right. (A plain content's rows are leaves, which were repaired before.)
func (b *body) repairRows(off, n int64) error {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	for j := off / BlockBytes; j <= (off+n-1)/BlockBytes; j++ {
		if b.base == nil || b.readRow(j, sc) {
			continue
		}
		block := sc.block[:b.layout.BlockLen(j)]
		if got, err := b.readFile(block, b.streamAt(j*BlockBytes)); got < len(block) {
			return err
		}
		fillRow(&sc.row, block)
		if err := b.writeRow(j, sc); err != nil {
			return err
		}
		if b.blocksWhole(b.contentBlocks(j)) {
			continue
		}
		clear(sc.entry[:]) // other bytes under this row are still wrong: no row may bless them
		if _, err := b.side.WriteAt(sc.entry[:], b.head.rowsOff()+j*int64(rowBytes)); err != nil {
			return err
		}
	}
	return nil
}

// blocksWhole reports whether blocks of the content have their leaves.
func (b *body) blocksWhole(blocks []int64) bool {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	for _, i := range blocks {
		want, err := b.leaf(i, sc)
		block := sc.block[:blockLen(b.head.size, i)]
		if err != nil || b.readAt(block, i*BlockBytes) != nil || Leaf(block) != want {
			return false
		}
	}
	return true
}

// persistMended makes a mended layer durable; an inline one gets a new sidecar.
func (fo *forms) persistMended(b *body) error {
	m, inline := b.side.(image)
	if !inline {
		return errors.Join(fo.files.sync(b.streamFile), fo.files.sync(b.sideFile))
	}
	if fo.index.form(fo.index.entry(b.id)).state != Committed {
		return nil // an undecided base: it is checked, and dropped if torn, at Open
	}
	path := fo.files.foldPath(b.id, b.head.base)
	if err := fo.files.writeNew(path, m); err != nil {
		return err
	}
	if err := fo.files.rename(path, fo.files.sidecarPath(b.id, b.head.base, Committed)); err != nil {
		return err
	}
	return fo.files.syncShard(b.id)
}
