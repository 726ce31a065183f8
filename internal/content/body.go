package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
)

// storage is the bytes of a sidecar or a stream: an *os.File, an image or a section of one.
type storage interface {
	io.ReaderAt
	io.WriterAt
}

// image is a file in memory.
type image []byte

// ReadAt implements io.ReaderAt.
func (m image) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(m)) {
		return 0, io.EOF
	}
	n := copy(p, m[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt; an image does not grow.
func (m image) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(m)) || len(p) > len(m[off:]) {
		return 0, io.ErrShortWrite
	}
	return copy(m[off:], p), nil
}

// body is an open content in any state: its sidecar, its stream, and the body of its base.
type body struct {
	id     ID
	head   header
	layout *Layout
	side   storage
	stream storage
	base   *body // nil if plain

	sideFile   *os.File // nil if inline
	streamFile *os.File // nil if inline

	files   *storeFiles  // set if the file of streamFile can be exchanged: see Store.StepAside
	swap    sync.RWMutex // held for reading while streamFile is read or written
	exposed atomic.Bool  // others may read by the descriptor of streamFile
	mark    mark         // of streamFile when it was opened; protected by swap
}

// close closes the files of this body and its bases.
func (b *body) close() error {
	var errs error
	for ; b != nil; b = b.base {
		if b.sideFile != nil {
			errs = errors.Join(errs, b.sideFile.Close())
		}
		if b.files != nil {
			b.files.unregister(b)
		}
		if b.streamFile != nil {
			errs = errors.Join(errs, b.streamFile.Close())
		}
	}
	return errs
}

// scratch is what one operation on a block needs; the pool keeps the data path free of allocation.
type scratch struct {
	row   row
	entry [rowBytes]byte
	place place
	block [BlockBytes]byte
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// newBody makes the body of a content that is to be received, with everything but the storage.
func newBody(id ID, l *Layout) (*body, []byte, error) {
	shape, err := l.shape.AppendBinary(nil)
	if err != nil {
		return nil, nil, err
	}
	b := &body{id: id, layout: l, head: header{
		id: id, base: l.shape.Base, size: l.shape.Size, streamBytes: l.stream,
		leafCount: int64(l.leaves.Count()), shapeLen: int64(len(shape)), shapeCRC: Checksum(shape),
	}}
	if l.shape.IsDelta() {
		b.head.flags |= flagDelta
	}
	if l.stream <= InlineBytesMax {
		b.head.flags |= flagInline
	}
	return b, shape, nil
}

// openImage makes an inline body's storage over m, which has the whole sidecar.
func (b *body) openImage(m image) {
	b.side, b.stream = m, m[b.head.inlineOff():]
}

// readHeader reads the header of the sidecar at path, which must be id's.
func readHeader(path string, id ID) (header, error) {
	f, err := openFile(path, os.O_RDONLY)
	if err != nil {
		return header{}, err
	}
	defer f.Close()
	return headerOf(f, id)
}

func headerOf(f io.ReaderAt, id ID) (header, error) {
	var p [headerBytes]byte
	if n, err := f.ReadAt(p[:], 0); n < len(p) {
		return header{}, fmt.Errorf("content: sidecar of %s: %w: %w", id, ErrCorrupt, err)
	}
	h, err := decodeHeader(p[:])
	if err != nil {
		return header{}, err
	}
	if h.id != id {
		return header{}, fmt.Errorf("content: sidecar of %s is for %s: %w", id, h.id, ErrCorrupt)
	}
	return h, nil
}

// loadSidecar opens the sidecar at path and checks header and shape. The stream is open only if it is inline.
func loadSidecar(path string, id ID, flag int) (*body, error) {
	f, err := openFile(path, flag)
	if err != nil {
		return nil, err
	}
	b, err := readSidecar(f, id)
	if err != nil || b.head.has(flagInline) {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// readSidecar makes a body from an open sidecar; an inline one is read whole and does not keep f.
func readSidecar(f *os.File, id ID) (*body, error) {
	h, err := headerOf(f, id)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() < h.rowsOff() || h.has(flagComplete) && st.Size() < h.fileBytes() {
		return nil, fmt.Errorf("content: sidecar of %s: %d bytes: %w", id, st.Size(), ErrCorrupt)
	}
	if !h.has(flagInline) {
		b := &body{id: id, head: h, side: f, sideFile: f}
		return b, b.readShape()
	}
	m := make(image, min(h.fileBytes(), st.Size()))
	if _, err := f.ReadAt(m, 0); err != nil {
		return nil, fmt.Errorf("content: sidecar of %s: %w: %w", id, ErrCorrupt, err)
	}
	b := &body{id: id, head: h, side: m}
	if err := b.readShape(); err != nil {
		return nil, err
	}
	b.openImage(m)
	return b, nil
}

// readShape reads the shape and checks it against the header.
func (b *body) readShape() error {
	p := make([]byte, b.head.shapeLen)
	if _, err := b.side.ReadAt(p, headerBytes); err != nil && b.head.shapeLen > 0 {
		return fmt.Errorf("content: shape of %s: %w: %w", b.id, ErrCorrupt, err)
	}
	if Checksum(p) != b.head.shapeCRC {
		return fmt.Errorf("content: shape of %s: checksum: %w", b.id, ErrCorrupt)
	}
	shape, err := DecodeShape(p)
	if err != nil {
		return fmt.Errorf("content: shape of %s: %w: %w", b.id, ErrCorrupt, err)
	}
	l, err := NewLayout(shape)
	if err != nil {
		return err
	}
	h := &b.head
	if shape.Base != h.base || shape.Size != h.size || l.stream != h.streamBytes ||
		int64(l.leaves.Count()) != h.leafCount {
		return fmt.Errorf("content: shape of %s does not fit its header: %w", b.id, ErrCorrupt)
	}
	b.layout = l
	return nil
}

// readRow reads row i into sc.row; ok is false if it is absent or damaged.
func (b *body) readRow(i int64, sc *scratch) (ok bool) {
	n, _ := b.side.ReadAt(sc.entry[:], b.head.rowsOff()+i*int64(rowBytes)) // a short row fails its check
	if n < rowBytes {
		return false
	}
	sc.row, ok = decodeRow(sc.entry[:], sc.place.set(b.id, i))
	return ok
}

// writeRow writes sc.row as row i.
func (b *body) writeRow(i int64, sc *scratch) error {
	p := sc.row.append(sc.entry[:0], sc.place.set(b.id, i))
	if _, err := b.side.WriteAt(p, b.head.rowsOff()+i*int64(rowBytes)); err != nil {
		return fmt.Errorf("content: write row %d of %s: %w", i, b.id, err)
	}
	return nil
}

// writeLeaf writes the own leaf of a delta's block i, which is entry index of the table.
func (b *body) writeLeaf(index, i int64, leaf *Hash) error {
	p := appendLeaf(nil, leaf, b.id, i)
	if _, err := b.side.WriteAt(p, b.head.leavesOff()+index*int64(leafBytes)); err != nil {
		return fmt.Errorf("content: write leaf %d of %s: %w", i, b.id, err)
	}
	return nil
}

// leaf gives the leaf of block i of the content.
func (b *body) leaf(i int64, sc *scratch) (Hash, error) {
	index, from := b.layout.leafSource(i)
	switch {
	case from == fromZero:
		return zeroLeaf(blockLen(b.head.size, i)), nil
	case from == fromBase:
		return b.base.leaf(i, sc)
	case b.base == nil:
		if !b.readRow(index, sc) {
			return Hash{}, fmt.Errorf("content: row %d of %s: %w", index, b.id, ErrCorrupt)
		}
		return sc.row.leaf, nil
	}
	p := sc.entry[:leafBytes]
	if n, _ := b.side.ReadAt(p, b.head.leavesOff()+index*int64(leafBytes)); n == len(p) {
		if leaf, ok := decodeLeaf(p, b.id, i); ok {
			return leaf, nil
		}
	}
	return Hash{}, fmt.Errorf("content: leaf %d of %s: %w", i, b.id, ErrCorrupt)
}

// root computes the Merkle root from the leaves.
func (b *body) root(ctx context.Context) (Hash, error) { return b.rootWith(ctx, -1, Hash{}) }

// rootWith computes the root with another leaf for block other.
func (b *body) rootWith(ctx context.Context, other int64, otherLeaf Hash) (Hash, error) {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	t := newTree()
	blocks := blockCount(b.head.size)
	for i := int64(0); i < blocks; {
		if i%1024 == 0 && ctx.Err() != nil {
			return Hash{}, fmt.Errorf("content: root of %s: %w", b.id, ctx.Err())
		}
		if n := b.zeroRun(i); n > 0 && (other < i || other >= i+n) {
			t.addZeros(n)
			i += n
			continue
		}
		leaf, err := otherLeaf, error(nil)
		if i != other {
			leaf, err = b.leaf(i, sc)
		}
		if err != nil {
			return Hash{}, err
		}
		t.add(leaf)
		i++
	}
	return t.root(b.head.size), nil
}

// zeroRun is the number of whole zero blocks from block i on that are known without a look at their leaves. What a
// delta takes from its base is known from the base.
func (b *body) zeroRun(i int64) int64 {
	_, from := b.layout.leafSource(i)
	if from == fromStream {
		return 0
	}
	blocks := b.layout.partAt(i*BlockBytes, b.head.size-i*BlockBytes).len / BlockBytes
	if from == fromBase && blocks > 0 {
		return min(blocks, b.base.zeroRun(i))
	}
	return blocks
}

// streamAt is the offset of a stream byte in the stream's storage.
func (b *body) streamAt(off int64) int64 {
	if b.head.has(flagInline) {
		return off
	}
	at, _ := b.layout.fileOffset(off)
	return at
}

// readAt reads len(p) bytes of the content at off, checked; the range must be inside the content.
func (b *body) readAt(p []byte, off int64) error {
	for len(p) > 0 {
		part := b.layout.partAt(off, int64(len(p)))
		var err error
		switch part.from {
		case fromZero:
			clear(p[:part.len])
		case fromBase:
			err = b.base.readAt(p[:part.len], off)
		case fromStream:
			err = b.readStream(p[:part.len], part.stream)
		}
		if err != nil {
			return err
		}
		p, off = p[part.len:], off+part.len
	}
	return nil
}

// readStream reads a range of the stream, checked chunk by chunk.
func (b *body) readStream(p []byte, off int64) error {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	for len(p) > 0 {
		i, inBlock := off/BlockBytes, off%BlockBytes
		n := min(int64(len(p)), b.layout.BlockLen(i)-inBlock)
		if err := b.readInBlock(p[:n], i, inBlock, sc); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

// readFile reads bytes of the stream by their place in its storage.
func (b *body) readFile(p []byte, at int64) (int, error) {
	b.swap.RLock()
	defer b.swap.RUnlock()
	return b.stream.ReadAt(p, at)
}

// cloneTo makes dst share the bytes of the data file.
func (b *body) cloneTo(dst *os.File, clone func(dst, src *os.File) error) error {
	b.swap.RLock()
	defer b.swap.RUnlock()
	return clone(dst, b.streamFile)
}

// writeFile writes them.
func (b *body) writeFile(p []byte, at int64) (int, error) {
	b.swap.RLock()
	defer b.swap.RUnlock()
	return b.stream.WriteAt(p, at)
}

// readInBlock reads a range of stream block i. It reads whole chunks, into p if it is aligned.
func (b *body) readInBlock(p []byte, i, off int64, sc *scratch) error {
	if !b.readRow(i, sc) {
		return fmt.Errorf("content: row %d of %s: %w", i, b.id, ErrCorrupt)
	}
	first := off / ChunkBytes * ChunkBytes
	end := min((off+int64(len(p))+ChunkBytes-1)/ChunkBytes*ChunkBytes, b.layout.BlockLen(i))
	whole := p
	if first != off || end-first != int64(len(p)) {
		whole = sc.block[:end-first]
	}
	at := b.streamAt(i*BlockBytes + first)
	if n, err := b.readFile(whole, at); n < len(whole) {
		return fmt.Errorf("content: read %s at %d: %w: %w", b.id, at, ErrCorrupt, err)
	}
	for c := int64(0); c < int64(len(whole)); c += ChunkBytes {
		crc := Checksum(whole[c:min(c+ChunkBytes, int64(len(whole)))])
		if crc != sc.row.crcs[(first+c)/ChunkBytes] {
			clear(p) // no caller may take these bytes for the file's
			return fmt.Errorf("content: %s at %d: checksum: %w", b.id, at+c, ErrCorrupt)
		}
	}
	if len(whole) != len(p) || first != off {
		copy(p, whole[off-first:])
	}
	return nil
}

// writeHeader writes the header with the given root and flags added.
func (b *body) writeHeader(root Hash, flags uint16) error {
	b.head.root = root
	b.head.flags |= flags
	if _, err := b.side.WriteAt(b.head.append(nil), 0); err != nil {
		return fmt.Errorf("content: write header of %s: %w", b.id, err)
	}
	return nil
}
