package content

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// copyChecked copies a content into a file, holes left out.
func copyChecked(dst *os.File, r *Reader) error {
	buf := scratches.Get().(*scratch)
	defer scratches.Put(buf)
	if err := dst.Truncate(r.Size()); err != nil {
		return err
	}
	for off := int64(0); off < r.Size(); {
		n := min(BlockBytes, r.Size()-off)
		if part := r.body.layout.partAt(off, n); part.from == fromZero {
			off += part.len
			continue
		}
		if _, err := r.ReadAt(buf.block[:n], off); err != nil && err != io.EOF {
			return err
		}
		if _, err := dst.WriteAt(buf.block[:n], off); err != nil {
			return err
		}
		off += n
	}
	return nil
}

// CopyUp makes a staging file that begins as the committed content id: by FICLONE where the file system can and all
// of the content was checked, else by a checked copy if it has at most [CopyUpBytesMax] of data. ErrTooLarge: take an
// [Overlay].
func (s *Store) CopyUp(id ID, origin Origin) (*Staging, error) {
	r, err := s.Open(id)
	if err != nil {
		return nil, fmt.Errorf("content: copy up: %w", err)
	}
	defer r.Close()
	st, err := s.NewStaging(origin)
	if err != nil {
		return nil, err
	}
	if err := st.copyUp(r); err != nil {
		return nil, errors.Join(fmt.Errorf("content: copy up %s: %w", id, noSpace(err)), st.Drop())
	}
	return st, nil
}

func (st *Staging) copyUp(r *Reader) error {
	rot, _ := st.s.index.rotOf(r.ID()) // before Checked: what is found later shows in Sound
	if r.HasFile() && r.Checked() {
		if r.body.cloneTo(st.file, st.s.clone) == nil {
			st.clone, st.cloneRot = r.ID(), rot
			return st.Sound() // what was found meanwhile
		}
	}
	if r.Size() > CopyUpBytesMax && (r.body.base != nil || r.body.layout.stream > CopyUpBytesMax) {
		return ErrTooLarge
	}
	return copyChecked(st.file, r)
}

// Sound reports, as ErrCorrupt, that damage was found since then in the content that the staging file was cloned from,
// or was the file of: it has that damage too, though the content may have been mended. It is nil if the file is a copy.
// The caller keeps that content open, and has read all of it.
func (st *Staging) Sound() error {
	if st.clone.IsZero() {
		return nil
	}
	if rot, ok := st.s.index.rotOf(st.clone); !ok || rot != st.cloneRot {
		return fmt.Errorf("content: staged inode %d was cloned from %s, which was damaged: %w", st.Origin().Ino, st.clone,
			ErrCorrupt)
	}
	return nil
}
