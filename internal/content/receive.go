package content

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
)

// writeoutBytes is how much is written between two starts of write-out, so that the last fsync is short.
const writeoutBytes = 8 << 20

// Receiving is a content being written, by a member of a transfer or by its root. All blocks may be
// written concurrently, in any order; Finish, Close and Discard are called once no other call runs.
type Receiving struct {
	s     *Store
	body  *body
	shape []byte // the encoding

	mu       sync.Mutex
	changed  sync.Cond // a block's write ended
	have     *blockset.Bitmap
	missing  int64
	writing  map[int64]struct{} // blocks that a call owns now
	unsynced int64              // bytes written since the last start of write-out
	ended    bool

	promised   int64     // space not given back yet
	leavesDone bool      // the own leaves of a delta are in the sidecar
	tree       *leafTree // of a delta whose root was computed
	broken     bool      // an fsync failed: nothing of this may be trusted again
}

// Begin starts to receive a content. It checks the space first (ErrNoSpace, with the numbers) and takes it. It
// continues a partial content of the same id and shape if one was left: its blocks are read and hashed again, and the
// whole ones are in [Receiving.Have]. ErrExists: the content is here, whole. ErrNoBase, ErrTooDeep: the delta can't be
// taken; ask for a plain form.
func (s *Store) Begin(id ID, shape Shape) (*Receiving, error) {
	l, err := NewLayout(shape)
	if err != nil {
		return nil, fmt.Errorf("content: begin %s: %w", id, err)
	}
	if id.IsZero() || id == shape.Base {
		return nil, fmt.Errorf("content: begin %s over %s: %w", id, shape.Base, ErrShape)
	}
	left, err := s.index.reserveID(id, shape.Base)
	if err != nil {
		return nil, fmt.Errorf("content: begin %s: %w", id, err)
	}
	r, err := s.begin(id, l, left)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("content: begin %s: %w", id, err), s.index.unclaim(id, kill))
	}
	return r, nil
}

// Resume continues a partial content with the shape it was begun with.
func (s *Store) Resume(id ID) (*Receiving, error) {
	base, err := s.index.takePartial(id)
	if err != nil {
		return nil, fmt.Errorf("content: resume: %w", err)
	}
	r, err := s.resume(id, base, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("content: resume %s: %w", id, err), s.index.unclaim(id, kill))
	}
	return r, nil
}

// begin makes or continues the files of a content whose id is reserved.
func (s *Store) begin(id ID, l *Layout, left bool) (*Receiving, error) {
	if left {
		r, err := s.resume(id, l.shape.Base, &l.shape)
		if err == nil || !errors.Is(err, errOtherShape) && !errors.Is(err, ErrCorrupt) {
			return r, err
		}
		s.log.Warn("partial content is started again", "content", id.String(), "reason", err)
		if err := s.files.remove(id, l.shape.Base, Partial); err != nil {
			return nil, err
		}
	}
	b, shape, err := newBody(id, l)
	if err != nil {
		return nil, err
	}
	if err := s.opener.attachBase(b); err != nil {
		return nil, errors.Join(err, b.close())
	}
	r := s.newReceiving(b, shape)
	if r.promised = l.stream + b.head.fileBytes() + 2*PageBytes; b.head.has(flagInline) {
		r.promised = b.head.fileBytes() + 2*PageBytes
	}
	if err := s.space.promise(r.promised); err != nil {
		r.promised = 0
		return nil, errors.Join(err, b.close())
	}
	err = s.files.ensureShard(id)
	if err == nil {
		err = r.create()
	}
	if err != nil {
		r.settle()
		return nil, errors.Join(noSpace(err), b.close())
	}
	return r, nil
}

func (s *Store) newReceiving(b *body, shape []byte) *Receiving {
	n := b.layout.Blocks()
	r := &Receiving{s: s, body: b, shape: shape, have: blockset.NewBitmap(uint64(n)), missing: n,
		writing: make(map[int64]struct{})}
	r.changed.L = &r.mu
	return r
}

// create makes the files of a new Receiving and takes its space; an inline one lives in memory until Finish.
func (r *Receiving) create() error {
	b := r.body
	if b.head.has(flagInline) {
		m := make(image, b.head.fileBytes())
		copy(m[headerBytes:], r.shape)
		b.openImage(m)
		return nil
	}
	flag := os.O_RDWR | os.O_CREATE | os.O_TRUNC
	f, err := openFile(r.s.files.streamPath(b.id, b.head.base), flag)
	if err != nil {
		return err
	}
	b.stream, b.streamFile = f, f
	if err := r.preallocate(); err != nil {
		return err
	}
	side, err := openFile(r.s.files.sidecarPath(b.id, b.head.base, Partial), flag)
	if err != nil {
		return err
	}
	b.side, b.sideFile = side, side
	_, err = side.WriteAt(append(b.head.append(nil), r.shape...), 0)
	return err
}

// preallocate takes the space of the stream, except for holes, and returns the promise of it.
func (r *Receiving) preallocate() error {
	b := r.body
	end := b.head.streamBytes
	if b.base == nil {
		end = b.head.size
	}
	if err := b.streamFile.Truncate(end); err != nil {
		return err
	}
	for off := int64(0); off < b.layout.stream; {
		at, n := b.layout.fileOffset(off)
		err := unix.Fallocate(int(b.streamFile.Fd()), unix.FALLOC_FL_KEEP_SIZE, at, n)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil // the promise stays until the end
		}
		if err != nil {
			return noSpace(err)
		}
		off += n
	}
	r.promised -= b.layout.stream
	r.s.space.settle(b.layout.stream)
	return nil
}

// noSpace makes the disk's own ENOSPC one of ours.
func noSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

func (r *Receiving) settle() {
	r.s.space.settle(r.promised)
	r.promised = 0
}

// ID is the content's name.
func (r *Receiving) ID() ID { return r.body.id }

// Layout is the arithmetic of the content's shape.
func (r *Receiving) Layout() *Layout { return r.body.layout }

// Have is a copy of the set of stream blocks that are here, checked.
func (r *Receiving) Have() *blockset.Bitmap {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.have.Clone()
}

// Has reports whether stream block i is here.
func (r *Receiving) Has(i int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.have.Has(uint64(i))
}

// Missing is the number of stream blocks that are not here.
func (r *Receiving) Missing() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.missing
}

// begun takes block i for the caller; have says that it is here already.
func (r *Receiving) begun(i int64) (have bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if r.ended {
			return false, ErrClosed
		}
		if r.have.Has(uint64(i)) {
			return true, nil
		}
		if _, busy := r.writing[i]; !busy {
			r.writing[i] = struct{}{}
			return false, nil
		}
		r.changed.Wait() // for a pwrite of one block
	}
}

// written gives block i back, whole or not, and starts write-out when enough was written.
func (r *Receiving) written(i, n int64, whole bool) {
	r.mu.Lock()
	delete(r.writing, i)
	if whole {
		r.have.Set(uint64(i))
		r.missing--
	}
	r.unsynced += n
	kick := r.unsynced >= writeoutBytes
	if kick {
		r.unsynced = 0
	}
	r.changed.Broadcast()
	r.mu.Unlock()
	if kick && r.body.streamFile != nil {
		r.writeOut()
	}
}

// writeOut starts the writing of dirty pages and does not wait for it; a failure shows at fsync.
func (r *Receiving) writeOut() {
	_ = unix.SyncFileRange(int(r.body.streamFile.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
}

// WriteBlock hashes stream block i, writes it at its place and notes it. p must have the block's length; it
// is not kept. If want is given and p has another leaf, nothing is written and the error is ErrMismatch. A
// block that is here already is left alone.
func (r *Receiving) WriteBlock(i int64, p []byte, want *Hash) error {
	l := r.body.layout
	if i < 0 || i >= l.Blocks() || int64(len(p)) != l.BlockLen(i) {
		return fmt.Errorf("content: write block %d of %s: %d bytes: %w", i, r.body.id, len(p), ErrShape)
	}
	have, err := r.begun(i)
	if have {
		return nil
	}
	if err != nil {
		return fmt.Errorf("content: write block %d of %s: %w", i, r.body.id, err)
	}
	err = r.store(i, p, want)
	r.written(i, int64(len(p)), err == nil)
	return err
}

// store checks and writes a whole block that the caller owns.
func (r *Receiving) store(i int64, p []byte, want *Hash) error {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	fillRow(&sc.row, p)
	if want != nil && *want != sc.row.leaf {
		return fmt.Errorf("content: write block %d of %s: %w", i, r.body.id, ErrMismatch)
	}
	if _, err := r.body.stream.WriteAt(p, r.body.streamAt(i*BlockBytes)); err != nil {
		return fmt.Errorf("content: write block %d of %s: %w", i, r.body.id, noSpace(err))
	}
	return r.body.writeRow(i, sc)
}

// ReadBlock reads stream block i, which must be here, checked, into p; for relays and re-sends.
func (r *Receiving) ReadBlock(i int64, p []byte) error {
	l := r.body.layout
	if i < 0 || i >= l.Blocks() || int64(len(p)) < l.BlockLen(i) {
		return fmt.Errorf("content: read block %d of %s: %d bytes: %w", i, r.body.id, len(p), ErrShape)
	}
	if !r.Has(i) {
		return fmt.Errorf("content: read block %d of %s: %w", i, r.body.id, ErrNotFound)
	}
	return r.body.readStream(p[:l.BlockLen(i)], i*BlockBytes)
}
