package content

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Overlay is staging by copy-on-write over a committed content, with an exact map of what changed in pages of
// [PageBytes]. The only bytes of the base that it copies are the rest of pages that are written in part. Its methods
// are safe for concurrent use.
//
// The content lock is held while bytes move to and from the page cache: it is what makes a write or a read of this one
// file whole, as the inode lock does in the kernel.
type Overlay struct {
	st   *Staging
	base *Reader

	content sync.RWMutex // guards all below and the bytes of the file
	size    int64
	limit   int64   // the base counts below this only; a multiple of PageBytes or at least the base's size
	own     pageMap // pages that lie in the staging file; all others are the base's or zero
	fresh   pageMap // pages changed since the last snapshot
	cut     int64   // the smallest size since the last snapshot
	filled  int64   // bytes that the staging file has where the base is known to be zero

	snap      *Snapshot // the one that is open
	prior     ID        // what the next delta is over: the base, or what was published last
	priorSize int64
}

// NewOverlay makes an overlay over the committed content base and pins it.
func (s *Store) NewOverlay(base ID, origin Origin) (*Overlay, error) {
	r, err := s.Open(base)
	if err != nil {
		return nil, fmt.Errorf("content: overlay: %w", err)
	}
	st, err := s.staging.create(stageHead{origin: origin, base: base, baseSize: r.Size()}, "")
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := st.file.Truncate(r.Size()); err != nil {
		return nil, errors.Join(fmt.Errorf("content: overlay %s: %w", base, err), st.Drop(), r.Close())
	}
	return newOverlay(st, r, stageLog{size: r.Size(), limit: r.Size(), cut: r.Size()}), nil
}

func newOverlay(st *Staging, r *Reader, log stageLog) *Overlay {
	o := &Overlay{st: st, base: r, size: log.size, limit: log.limit, own: log.own, cut: log.cut,
		prior: r.ID(), priorSize: r.Size()}
	o.fresh.merge(&log.own)
	for first, end := range o.own.runs(0, pageEnd(log.size)/PageBytes) {
		o.filled += o.baseZeros(first, end)
	}
	return o
}

// OpenOverlay takes up the staged bytes of an overlay after a restart: all that was ever written over the
// base counts as changed.
func (s *Store) OpenOverlay(token uint64) (*Overlay, error) {
	st, log, err := s.staging.reopen(token)
	if err != nil {
		return nil, err
	}
	if log.head.base.IsZero() {
		return nil, errors.Join(fmt.Errorf("content: open staging %x: no overlay: %w", token, ErrShape), st.Close())
	}
	r, err := s.opener.openBase(token, log.head.base)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("content: open staging %x: %w: %w", token, ErrNoBase, err), st.Close())
	}
	if r.Size() != log.head.baseSize {
		return nil, errors.Join(fmt.Errorf("content: open staging %x: size of base: %w", token, ErrCorrupt), st.Close(),
			r.Close())
	}
	if err := st.file.Truncate(log.size); err != nil {
		return nil, errors.Join(fmt.Errorf("content: open staging %x: %w", token, err), st.Close(), r.Close())
	}
	return newOverlay(st, r, log), nil
}

// File is the staging file with the pages that changed. It belongs to the Overlay.
func (o *Overlay) File() *os.File { return o.st.file }

// Size is the length of the file.
func (o *Overlay) Size() int64 {
	o.content.RLock()
	defer o.content.RUnlock()
	return o.size
}

// ReadAt reads as io.ReaderAt; bytes of the base are checked. If they are damaged the error is a *BaseDamage, as for
// everything that reads them.
func (o *Overlay) ReadAt(p []byte, off int64) (int, error) {
	o.content.RLock()
	defer o.content.RUnlock()
	if off < 0 {
		return 0, fmt.Errorf("content: read overlay at %d: %w", off, ErrShape)
	}
	n := int(max(0, min(int64(len(p)), o.size-off)))
	if err := o.readLocked(p[:n], off); err != nil {
		return 0, err
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// readLocked reads a range inside the size.
func (o *Overlay) readLocked(p []byte, off int64) error {
	for len(p) > 0 {
		n, own := o.spanLocked(off, int64(len(p)))
		var err error
		switch {
		case own:
			err = readZeroFilled(o.st.file, p[:n], off)
		case off < o.base.Size():
			n, err = o.readBase(p[:n], off)
		default:
			clear(p[:n])
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("content: read overlay of %s: %w", o.base.ID(), err)
		}
		p, off = p[n:], off+n
	}
	return nil
}

// spanLocked finds how many of n bytes at off are in one place: the staging file, or the base. What lies
// behind the limit counts as the file's.
func (o *Overlay) spanLocked(off, n int64) (span int64, own bool) {
	if off >= o.limit {
		return n, true
	}
	n = min(n, o.limit-off)
	page, end := off/PageBytes, (off+n-1)/PageBytes+1
	own = o.own.has(page)
	stop := o.own.next(page, end, !own)
	return min(n, stop*PageBytes-off), own
}

// WriteAt writes as io.WriterAt and grows the file.
func (o *Overlay) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off > SizeMax || int64(len(p)) > SizeMax-off {
		return 0, fmt.Errorf("content: write overlay at %d: %w", off, ErrShape)
	}
	if len(p) == 0 {
		return 0, nil
	}
	o.content.Lock()
	defer o.content.Unlock()
	end := off + int64(len(p))
	if err := o.ownEdgesLocked(off, end); err != nil {
		return 0, err
	}
	if _, err := o.st.file.WriteAt(p, off); err != nil {
		o.spoiledLocked(off, end)
		return 0, errors.Join(fmt.Errorf("content: write overlay: %w", noSpace(err)), o.cutBackLocked(end))
	}
	err := o.tookLocked(off, end)
	if err == nil && end > o.size {
		err = o.growLocked(end)
	}
	if err != nil {
		o.spoiledLocked(off, end)
		return 0, errors.Join(err, o.cutBackLocked(end))
	}
	return len(p), nil
}

// ownEdgesLocked copies the pages at both ends of a change up, as far as it covers them in part.
func (o *Overlay) ownEdgesLocked(off, end int64) error {
	if off%PageBytes != 0 {
		if err := o.ownPageLocked(off / PageBytes); err != nil {
			return err
		}
	}
	if end%PageBytes != 0 && (end/PageBytes != off/PageBytes || off%PageBytes == 0) {
		return o.ownPageLocked(end / PageBytes)
	}
	return nil
}

// ownPageLocked copies one page of the base up.
func (o *Overlay) ownPageLocked(page int64) error {
	at := page * PageBytes
	if o.own.has(page) || at >= o.limit || at >= o.size {
		return nil
	}
	var buf [PageBytes]byte
	n := min(PageBytes, o.size-at)
	if err := o.readLocked(buf[:n], at); err != nil {
		return err
	}
	if _, err := o.st.file.WriteAt(buf[:n], at); err != nil {
		return fmt.Errorf("content: write overlay: %w", noSpace(err))
	}
	return o.noteLocked(page, page+1)
}

// tookLocked notes that a range changed.
func (o *Overlay) tookLocked(off, end int64) error {
	first, stop := off/PageBytes, (end-1)/PageBytes+1
	if err := o.noteLocked(first, stop); err != nil {
		return err
	}
	o.fresh.setPages(first, stop)
	return nil
}

// noteLocked makes pages the staging file's, in the journal and in memory. The bytes are written first, so
// that after the daemon's death every noted page is whole. Pages without a note stay the base's.
func (o *Overlay) noteLocked(first, stop int64) error {
	at := o.own.next(first, stop, false)
	if at == stop {
		return nil
	}
	if err := o.st.note(ownRecord(first*PageBytes, (stop-first)*PageBytes)); err != nil {
		return fmt.Errorf("content: note overlay change: %w", noSpace(err))
	}
	for at < stop {
		end := o.own.next(at, stop, true)
		o.filled += o.baseZeros(at, end)
		at = o.own.next(end, stop, false)
	}
	o.own.setPages(first, stop)
	return nil
}

// baseZeros is how much of pages first up to stop is known to be zero below.
func (o *Overlay) baseZeros(first, stop int64) int64 {
	off, end := first*PageBytes, stop*PageBytes
	inside := min(end, o.base.Size())
	if inside <= off {
		return end - off
	}
	return end - inside + o.base.body.zeroBytes(off, inside-off)
}

// Holes estimates how much of the size takes no room, if holes bytes of the base take none.
func (o *Overlay) Holes(holes int64) int64 {
	o.content.RLock()
	defer o.content.RUnlock()
	return max(0, min(holes+max(0, o.size-o.base.Size())-o.filled, o.size))
}

// spoiledLocked notes that a write failed half-way: pages that were the staging file's may have changed.
func (o *Overlay) spoiledLocked(off, end int64) {
	for first, stop := range o.own.runs(off/PageBytes, (end-1)/PageBytes+1) {
		o.fresh.setPages(first, stop)
	}
}

// cutBackLocked takes away what a failed write up to end has left behind the size: it is zero when the file grows.
func (o *Overlay) cutBackLocked(end int64) error {
	if end <= o.size {
		return nil
	}
	return o.st.file.Truncate(o.size)
}

// growLocked makes the file longer; what is new is zero.
func (o *Overlay) growLocked(size int64) error {
	if err := o.st.note(sizeRecord(size)); err != nil {
		return fmt.Errorf("content: note overlay size: %w", noSpace(err))
	}
	o.size = size
	return nil
}

// Truncate sets the size. Bytes cut off read as zeros when the file grows again.
func (o *Overlay) Truncate(size int64) error {
	if size < 0 || size > SizeMax {
		return fmt.Errorf("content: truncate overlay to %d: %w", size, ErrShape)
	}
	o.content.Lock()
	defer o.content.Unlock()
	if size < o.size && size%PageBytes != 0 {
		if err := o.ownPageLocked(size / PageBytes); err != nil {
			return err
		}
	}
	if size > o.size {
		if err := o.st.file.Truncate(size); err != nil {
			return fmt.Errorf("content: truncate overlay: %w", noSpace(err))
		}
	}
	if err := o.st.note(sizeRecord(size)); err != nil {
		return errors.Join(fmt.Errorf("content: note overlay size: %w", noSpace(err)), o.cutBackLocked(size))
	}
	if size < o.size { // only now: without the note the bytes stay
		if err := o.st.file.Truncate(size); err != nil {
			return fmt.Errorf("content: truncate overlay: %w", err)
		}
		o.limit = min(o.limit, pageEnd(size))
		o.cut = min(o.cut, size)
	}
	o.size = size
	return nil
}

// Punch makes a range zero and gives its space back; it does not change the size.
func (o *Overlay) Punch(off, n int64) error {
	if off < 0 || n < 0 || off > SizeMax || n > SizeMax-off {
		return fmt.Errorf("content: punch overlay: %d bytes at %d: %w", n, off, ErrShape)
	}
	o.content.Lock()
	defer o.content.Unlock()
	end := min(off+n, o.size)
	if end <= off {
		return nil
	}
	if err := o.ownEdgesLocked(off, end); err != nil {
		return err
	}
	mode := uint32(unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE)
	if err := unix.Fallocate(int(o.st.file.Fd()), mode, off, end-off); err != nil {
		return fmt.Errorf("content: punch overlay: %w", noSpace(err))
	}
	err := o.tookLocked(off, end)
	if err != nil {
		o.spoiledLocked(off, end)
	}
	return err
}

// pageEnd rounds up to whole pages.
func pageEnd(off int64) int64 { return (off + PageBytes - 1) / PageBytes * PageBytes }

// Changed reports whether anything changed since the last snapshot that was published.
func (o *Overlay) Changed() bool {
	o.content.RLock()
	defer o.content.RUnlock()
	pages := pageEnd(o.size) / PageBytes
	return o.size != o.priorSize || o.cut < o.size || o.fresh.next(0, pages, true) < pages
}

// Dirty lists what changed since the last snapshot that was published: ranges of whole pages (the last may be short).
// Ranges that are nothing but hole are marked Zero.
func (o *Overlay) Dirty() ([]Extent, error) {
	o.content.RLock()
	defer o.content.RUnlock()
	return o.dirtyLocked()
}

func (o *Overlay) dirtyLocked() ([]Extent, error) {
	var list []Extent
	pages := pageEnd(o.size) / PageBytes
	next := o.cut // what lies from here to the prior's end and is not fresh was cut off once: it is zero
	zeroTo := func(off int64) {
		if off = min(off, o.priorSize, o.size); next < off {
			list = appendExtent(list, Extent{Off: next, Len: off - next, Zero: true})
			next = off
		}
	}
	for first, stop := range o.fresh.runs(0, pages) {
		off, end := first*PageBytes, min(stop*PageBytes, o.size)
		zeroTo(off)
		var err error
		if list, err = o.appendMapped(list, off, end); err != nil {
			return nil, err
		}
		next = max(next, end)
	}
	zeroTo(o.size)
	if len(list) > ExtentsMax {
		list = coarsen(list)
	}
	return list, nil
}

// appendMapped splits a range of the staging file into data and holes.
func (o *Overlay) appendMapped(list []Extent, off, end int64) ([]Extent, error) {
	fd := int(o.st.file.Fd())
	for off < end {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			data, err = end, nil
		}
		if err != nil {
			return nil, fmt.Errorf("content: map overlay: %w", err)
		}
		first := data // in its page, where file system blocks are smaller than pages
		if data < end {
			data = max(off, data/PageBytes*PageBytes)
		}
		if data = min(data, end); data > off {
			list = appendExtent(list, Extent{Off: off, Len: data - off, Zero: true})
			off = data
			continue
		}
		hole, err := unix.Seek(fd, max(off, first), unix.SEEK_HOLE)
		if err != nil {
			return nil, fmt.Errorf("content: map overlay: %w", err)
		}
		hole = min(max(pageEnd(hole), off+PageBytes), end)
		list = appendExtent(list, Extent{Off: off, Len: hole - off})
		off = hole
	}
	return list, nil
}

// appendExtent appends an extent and joins it with the one before if they meet.
func appendExtent(list []Extent, e Extent) []Extent {
	if n := len(list); n > 0 && list[n-1].End() == e.Off && list[n-1].Zero == e.Zero {
		list[n-1].Len += e.Len
		return list
	}
	return append(list, e)
}

// coarsen joins extents of one block until the shape's bound is kept; more is sent than changed.
func coarsen(list []Extent) []Extent {
	var out []Extent
	for _, e := range list {
		if n := len(out); n > 0 && out[n-1].Off/BlockBytes == e.Off/BlockBytes {
			out[n-1].Len, out[n-1].Zero = e.End()-out[n-1].Off, false
			continue
		}
		out = append(out, e)
	}
	return out
}

// Close lets go of the files and leaves them to be listed by [Store.Stagings].
func (o *Overlay) Close() error { return errors.Join(o.st.Close(), o.base.Close()) }

// Drop removes the staged bytes.
func (o *Overlay) Drop() error { return errors.Join(o.st.Drop(), o.base.Close()) }

// Refuse notes that the disk has not taken some of the staged bytes, as [Staging.Refuse] does.
func (o *Overlay) Refuse(why error) error {
	o.content.Lock()
	defer o.content.Unlock()
	return o.st.Refuse(why)
}

// KeepUnpublished makes the staged bytes durable, notes why they were not published, and closes the Overlay.
func (o *Overlay) KeepUnpublished(reason string) error {
	return errors.Join(o.st.KeepUnpublished(reason), o.base.Close())
}
