package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// storeStaging is Staging in a content store.
type storeStaging struct {
	store *content.Store
	self  func() meta.Lease
}

// NewStaging stages in a content store. self is the lease of this node.
func NewStaging(store *content.Store, self func() meta.Lease) Staging {
	return &storeStaging{store: store, self: self}
}

func (s *storeStaging) origin(info StageInfo) content.Origin {
	lease := s.self()
	name := path.Base(info.Path)
	if name == "/" {
		name = "" // it has none yet
	}
	return content.Origin{
		Ino: uint64(info.Ino), Parent: uint64(info.Parent), Name: name,
		Node: uint32(lease.Node), Incarnation: lease.Incarnation, Over: content.ID(info.Base.Bytes()),
	}
}

// Create makes an empty staged file.
func (s *storeStaging) Create(info StageInfo) (Staged, error) {
	st, err := s.store.NewStaging(s.origin(info))
	if err != nil {
		return nil, err
	}
	return s.plain(st), nil
}

// CopyUp clones or copies a content of this store, lays an overlay over a large one, and copies one that is held, or
// whole, only elsewhere.
func (s *storeStaging) CopyUp(ctx context.Context, info StageInfo, base replicate.ContentReader) (Staged, error) {
	id := content.ID(info.Base.Bytes())
	st, err := s.store.CopyUp(id, s.origin(info))
	switch {
	case err == nil:
		return s.plain(st), nil
	case errors.Is(err, content.ErrTooLarge):
		o, err := s.store.NewOverlay(id, s.origin(info))
		if err != nil {
			return nil, err
		}
		return newOverlayStage(o, base, info.Holes), nil
	// base reads what is damaged here elsewhere
	case !errors.Is(err, content.ErrNotFound) && !errors.Is(err, content.ErrCorrupt):
		return nil, err
	}
	return s.copyForeign(ctx, info, base)
}

// stored is a content that is read from a store.
type stored interface{ Stored() *content.Reader }

// TakeOver makes the content step aside in the store.
func (s *storeStaging) TakeOver(info StageInfo, base replicate.ContentReader) (Staged, error) {
	r, ok := base.(stored)
	if !ok {
		return nil, fmt.Errorf("fs: inode %d is not read from the store: %w", info.Ino, errors.ErrUnsupported)
	}
	st, err := s.store.StepAside(r.Stored(), s.origin(info))
	if err != nil {
		return nil, err
	}
	return s.plain(st), nil
}

// copyForeign stages bytes that this store does not hold.
func (s *storeStaging) copyForeign(ctx context.Context, info StageInfo, base replicate.ContentReader) (Staged, error) {
	st, err := s.store.NewStaging(s.origin(info))
	if err != nil {
		return nil, err
	}
	err = copyBytes(ctx, st.File(), base, base.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fs: stage inode %d: %w", info.Ino, err), st.Drop())
	}
	return s.plain(st), nil
}

func copyBytes(ctx context.Context, dst *os.File, src io.ReaderAt, size int64) error {
	if err := dst.Truncate(size); err != nil {
		return err
	}
	buf := make([]byte, min(size, copyChunk))
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := buf[:min(int64(len(buf)), size-off)]
		n, err := readFull(src, p, off)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		if !allZero(p[:n]) {
			if _, err := dst.WriteAt(p[:n], off); err != nil {
				return err
			}
		}
		off += int64(n)
	}
	return nil
}

// Space asks the store.
func (s *storeStaging) Space() (Space, error) {
	sp, err := s.store.Space()
	if err != nil {
		return Space{}, err
	}
	return Space{
		Total: uint64(sp.TotalBytes), Free: uint64(sp.UnusedBytes), Available: uint64(max(sp.AvailableBytes, 0)),
	}, nil
}

// plainStage is a staged plain file.
type plainStage struct {
	PlainFile
	s  *storeStaging
	st *content.Staging
}

func (s *storeStaging) plain(st *content.Staging) *plainStage {
	return &plainStage{PlainFile: NewPlainFile(st.File()), s: s, st: st}
}

func (p *plainStage) Keep(reason string) error {
	return errors.Join(p.NoteFailure(p.st), p.st.KeepUnpublished(reason))
}
func (p *plainStage) Drop() error { return p.st.Drop() }

// Recycle drops a file whose write-out has failed: the next open of the file would get that error. Others it recycles.
func (p *plainStage) Recycle() error {
	if p.out.failed() != nil {
		return p.st.Drop()
	}
	return p.st.Recycle()
}

func (p *plainStage) Sound() error { return p.st.Sound() }

// noteOver notes, for a restore after a crash, which version the bytes are written over from now on. Where the disk
// does not take the note, that restore keeps the version, as one of unknown origin.
func (p *plainStage) noteOver(version meta.ContentID) { _ = p.st.SetOver(content.ID(version.Bytes())) }

func (p *plainStage) Linked(info StageInfo) error { return p.st.SetOrigin(p.s.origin(info)) }

// overlayStage is a staged overlay: it is read and written through the daemon and knows what changed.
type overlayStage struct {
	o     *content.Overlay
	base  io.ReaderAt // reads what is damaged here from other holders
	holes int64       // of the base
	out   *writeOut   // of the staged pages

	mu    sync.Mutex
	times StageStat // its sizes are not used
}

func newOverlayStage(o *content.Overlay, base io.ReaderAt, holes int64) *overlayStage {
	s := &overlayStage{o: o, base: base, holes: holes, out: &writeOut{fd: int(o.File().Fd())}}
	s.wrote()
	s.times.Atime = s.times.Mtime
	return s
}

// wrote notes the time of a change.
func (s *overlayStage) wrote() {
	now := time.Now().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times.Mtime, s.times.Ctime = now, now
}

// sound runs do, which reads the base, and runs it again with the bytes of another holder if they are damaged here.
func (s *overlayStage) sound(do func() error) error {
	met := int64(-1)
	for {
		err := do()
		var damage *content.BaseDamage
		if !errors.As(err, &damage) || !errors.Is(err, content.ErrCorrupt) || damage.Off == met {
			return err
		}
		met = damage.Off
		p := make([]byte, damage.Len)
		if _, readErr := io.ReadFull(io.NewSectionReader(s.base, damage.Off, damage.Len), p); readErr != nil {
			return errors.Join(err, readErr)
		}
		if adoptErr := s.o.Adopt(p, damage.Off); adoptErr != nil {
			return errors.Join(err, adoptErr)
		}
	}
}

func (s *overlayStage) Fd() int { return -1 }

func (s *overlayStage) ReadAt(p []byte, off int64) (n int, err error) {
	err = s.sound(func() (err error) {
		n, err = s.o.ReadAt(p, off)
		return err
	})
	return n, err
}

func (s *overlayStage) WriteAt(p []byte, off int64) (n int, err error) {
	s.wrote()
	err = s.sound(func() (err error) {
		n, err = s.o.WriteAt(p, off)
		return err
	})
	return n, err
}

func (s *overlayStage) Truncate(size int64) error {
	s.wrote()
	return s.sound(func() error { return s.o.Truncate(size) })
}

func (s *overlayStage) Keep(reason string) error {
	return errors.Join(s.out.note(s.o), s.o.KeepUnpublished(reason))
}
func (s *overlayStage) Drop() error { return s.o.Drop() }
func (s *overlayStage) Sync() error { return nil } // a publish makes it durable

func (s *overlayStage) SetTimes(atime, mtime *int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if atime != nil {
		s.times.Atime = *atime
	}
	if mtime != nil {
		s.times.Mtime = *mtime
	}
	s.times.Ctime = time.Now().UnixNano()
	return nil
}

func (s *overlayStage) Stat() (StageStat, error) {
	size := s.o.Size()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.times
	st.Size, st.Allocated = size, size-s.o.Holes(s.holes)
	return st, nil
}

// Allocate punches and zeroes; room is not set aside in an overlay.
func (s *overlayStage) Allocate(mode uint32, offset, length int64) error {
	s.wrote()
	const keep = unix.FALLOC_FL_KEEP_SIZE
	switch mode &^ keep {
	case unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE:
		if err := s.sound(func() error { return s.o.Punch(offset, length) }); err != nil {
			return err
		}
	case 0:
	default:
		return unix.EOPNOTSUPP
	}
	if mode&keep == 0 && offset+length > s.o.Size() {
		return s.Truncate(offset + length)
	}
	return nil
}

func (s *overlayStage) Data(size int64) ([]replicate.Extent, error) {
	dirty, err := s.o.Dirty()
	if err != nil {
		return nil, err
	}
	return withoutZeros(dirty, size), nil
}

func (s *overlayStage) Snapshot() (Snapshot, error) {
	changed := s.o.Changed()
	snap, err := s.o.Snapshot()
	if err != nil {
		return Snapshot{}, err
	}
	shape := snap.Shape()
	dirty := make([]replicate.Extent, 0, len(shape.Extents))
	for _, e := range shape.Extents {
		dirty = replicate.AppendExtent(dirty, replicate.Extent{Offset: e.Off, Length: e.Len})
	}
	return Snapshot{
		Size: shape.Size, Holes: s.o.Holes(s.holes), Data: withoutZeros(shape.Extents, shape.Size), Exact: true,
		Changed: changed, Dirty: dirty,
		Source: writtenOut{s, s.out},
		Done: func(published meta.ContentID, ok bool) {
			if ok {
				_ = snap.Published(content.ID(published.Bytes())) // see plainStage.noteOver
			} else {
				snap.Failed()
			}
		},
	}, nil
}

// withoutZeros returns all of a file except the extents that are zero.
func withoutZeros(extents []content.Extent, size int64) []replicate.Extent {
	var out []replicate.Extent
	next := int64(0)
	for _, e := range extents {
		if !e.Zero {
			continue
		}
		if e.Off > next {
			out = append(out, replicate.Extent{Offset: next, Length: e.Off - next})
		}
		next = e.Off + e.Len
	}
	if next < size {
		out = append(out, replicate.Extent{Offset: next, Length: size - next})
	}
	return out
}
