package content

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
)

// Reader reads one content. It keeps the content's bytes until Close, even if the content is deleted meanwhile. All of
// its methods except Close are safe for concurrent use.
type Reader struct {
	index  *index
	opener *opener
	body   *body
	closed atomic.Bool
}

// Open pins a committed content and opens it for reading.
func (s *Store) Open(id ID) (*Reader, error) { return s.opener.openIn(id, Committed) }

// OpenUndecided is [Store.Open] for contents that may not be decided yet, for relays and resumption.
func (s *Store) OpenUndecided(id ID) (*Reader, error) {
	return s.opener.openIn(id, Undecided, Committed)
}

// checkStreamFile refuses a data file that was cut or grew: passthrough reads would show it.
func (b *body) checkStreamFile() error {
	if !b.head.has(flagComplete) {
		return nil
	}
	want := b.head.streamBytes
	if b.head.base.IsZero() {
		want = b.head.size
	}
	st, err := b.streamFile.Stat()
	if err == nil && st.Size() != want {
		err = fmt.Errorf("content: data file of %s has %d bytes, not %d: %w", b.id, st.Size(), want, ErrCorrupt)
	}
	return err
}

// ID is the content's name.
func (r *Reader) ID() ID { return r.body.id }

// Size is the content's length in bytes.
func (r *Reader) Size() int64 { return r.body.head.size }

// Root is the content's Merkle root.
func (r *Reader) Root() Hash { return r.body.head.root }

// Shape is how the content is stored; its slices must not be changed.
func (r *Reader) Shape() Shape { return r.body.layout.shape }

// Layout is the arithmetic of the content's shape; [Layout.ReadBlock] with this Reader gives the stream.
func (r *Reader) Layout() *Layout { return r.body.layout }

// Leaf is the leaf hash of block i of the content.
func (r *Reader) Leaf(i int64) (Hash, error) {
	if i < 0 || i >= blockCount(r.Size()) {
		return Hash{}, fmt.Errorf("content: leaf %d of %s: %w", i, r.body.id, ErrShape)
	}
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	leaf, err := r.body.leaf(i, sc)
	return leaf, r.checked(err)
}

// HasFile reports whether the content has a data file with exactly its bytes: small contents and deltas have none.
func (r *Reader) HasFile() bool { return !r.body.head.has(flagDelta) && r.body.streamFile != nil }

// File is the data file if it has exactly the content's bytes, else nil (small contents and deltas). It is open for
// reading, belongs to the Reader and is closed by Close. Reads of it are not checked: see Checked. While a Reader whose
// File was asked for is open, nobody else can make the content step aside: see [Store.StepAside].
func (r *Reader) File() *os.File {
	if !r.HasFile() {
		return nil
	}
	if files := r.body.files; files != nil {
		files.opening.RLock() // an exchange comes before or after
		defer files.opening.RUnlock()
	}
	r.body.exposed.Store(true)
	return r.body.streamFile
}

// Checked reports whether all of the content was received or checked since the store was opened, no damage was met, and
// nobody had changed its file when the Reader was opened: the file can be read without looking at every block again.
func (r *Reader) Checked() bool {
	return r.index.isChecked(r.body.id)
}

// NextData is where bytes begin, at off or behind it, that may be others than zeros by the shape of the content; its
// size if there are none. It reads nothing.
func (r *Reader) NextData(off int64) int64 { return r.body.nextData(max(off, 0), r.Size()) }

// NextHole is where zeros begin, at off or behind it, that are known by the shape of the content; its size if there are
// none. It reads nothing.
func (r *Reader) NextHole(off int64) int64 { return r.body.nextHole(max(off, 0), r.Size()) }

// ReadAt reads and checks the bytes at off, as io.ReaderAt. Damage gives ErrCorrupt and never wrong bytes:
// p[:n] holds what was checked.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	if r.closed.Load() {
		return 0, fmt.Errorf("content: read %s: %w", r.body.id, ErrClosed)
	}
	if off < 0 {
		return 0, fmt.Errorf("content: read %s at %d: %w", r.body.id, off, ErrShape)
	}
	left := r.Size() - off
	if left <= 0 {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), left))
	if err := r.body.readAt(p[:n], off); err != nil {
		return 0, r.checked(err)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// checked notes damage that an operation met, on the content it lies in and on this one.
func (r *Reader) checked(err error) error {
	if errors.Is(err, ErrCorrupt) {
		r.index.markDamaged(r.body.id, err)
	}
	return err
}

// Close closes the files and lets go of the content.
func (r *Reader) Close() error {
	if !r.closed.CompareAndSwap(false, true) {
		return nil
	}
	return errors.Join(r.body.close(), r.index.unpin(r.body.id))
}
