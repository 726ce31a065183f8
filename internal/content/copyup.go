package content

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
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

// CopyUp makes a staging file that begins as the committed content id: by FICLONE where the file system can, else by a
// checked copy if the content has at most [CopyUpBytesMax] of data. ErrTooLarge: take an [Overlay].
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
	if err := copyUp(st.file, r); err != nil {
		return nil, errors.Join(fmt.Errorf("content: copy up %s: %w", id, noSpace(err)), st.Drop())
	}
	return st, nil
}

func copyUp(dst *os.File, r *Reader) error {
	if src := r.File(); src != nil {
		if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err == nil {
			return nil
		}
	}
	if r.Size() > CopyUpBytesMax && (r.body.base != nil || r.body.layout.stream > CopyUpBytesMax) {
		return ErrTooLarge
	}
	return copyChecked(dst, r)
}
