package content

import (
	"errors"
	"fmt"
	"os"
)

// BeginFrom is a Begin that takes over what a Receiving of another content has left, for when the same bytes are sent
// under another name. left must be of the same shape, and nobody may have it open; it is gone afterwards. Its blocks
// are checked and hashed like the blocks that Begin continues. from reports whether left was taken over; if it can't
// be, BeginFrom is just Begin.
func (s *Store) BeginFrom(id, left ID, shape Shape) (r *Receiving, from bool, err error) {
	if old := s.leftFor(id, left, shape); old != nil {
		if r, err = s.takeOver(id, old, shape.Base); err == nil {
			return r, true, nil
		}
		s.log.Warn("what another session left is not continued", "content", id.String(), "left", left.String(), "reason", err)
	}
	r, err = s.Begin(id, shape)
	return r, false, err
}

// leftFor opens a partial content that a new one of a shape can take over; nil if there is none.
func (s *Store) leftFor(id, left ID, shape Shape) *Receiving {
	if _, here := s.State(id); here || left == id {
		return nil
	}
	old, err := s.Resume(left)
	if err != nil {
		return nil
	}
	if old.body.layout.shape.Equal(shape) && !old.body.head.has(flagInline) {
		return old
	}
	if err := old.Close(); err != nil {
		s.log.Warn("partial content let go with error", "content", left.String(), "error", err)
	}
	return nil
}

// takeOver turns a Receiving of another content, which ends, into one of id. The stream file moves first: a stream
// without a sidecar is dropped at Open, and so is a sidecar without one.
func (s *Store) takeOver(id ID, old *Receiving, base ID) (*Receiving, error) {
	again, err := s.index.reserveID(id, base)
	if err == nil && again {
		err = errors.Join(ErrBusy, s.index.unclaim(id, nil))
	}
	if err != nil {
		return nil, errors.Join(err, old.Close())
	}
	err = s.files.ensureShard(id)
	if err == nil {
		err = s.files.rename(s.files.streamPath(old.body.id, base), s.files.streamPath(id, base))
	}
	var r *Receiving
	if err == nil {
		r, err = s.adopt(id, old)
	}
	if err = errors.Join(err, old.Discard()); err != nil {
		if r != nil {
			err = errors.Join(err, r.body.close())
		}
		return nil, errors.Join(fmt.Errorf("content: begin %s from %s: %w", id, old.body.id, err), s.index.unclaim(id, kill))
	}
	return r, nil
}

// adopt opens the moved stream under its new id, with a sidecar that has the rows of the blocks that old holds. It
// closes what it opened when it fails.
func (s *Store) adopt(id ID, old *Receiving) (_ *Receiving, err error) {
	b, shape, err := newBody(id, old.body.layout)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if err = s.opener.attachBase(b); err != nil {
		return nil, err
	}
	stream, err := openFile(s.files.streamPath(id, b.head.base), os.O_RDWR)
	if err != nil {
		return nil, err
	}
	b.stream, b.streamFile = stream, stream
	side, err := openFile(s.files.sidecarPath(id, b.head.base, Partial), os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	b.side, b.sideFile = side, side
	if _, err = side.WriteAt(append(b.head.append(nil), shape...), 0); err != nil {
		return nil, noSpace(err)
	}
	r := s.newReceiving(b, shape)
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	for i := range b.layout.Blocks() {
		if !old.Has(i) || !old.body.readRow(i, sc) {
			continue
		}
		if err = b.writeRow(i, sc); err != nil {
			return nil, noSpace(err)
		}
		r.have.Set(uint64(i))
		r.missing--
	}
	return r, nil
}
