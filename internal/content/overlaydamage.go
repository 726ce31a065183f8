package content

import "fmt"

// BaseDamage is an error of an [Overlay] that met damage in its base: Len bytes at Off, of one block of it.
// [Overlay.Adopt] makes up for it.
type BaseDamage struct {
	Off, Len int64
	Err      error
}

// Error is that of the base.
func (d *BaseDamage) Error() string { return d.Err.Error() }

// Unwrap makes errors.Is(err, ErrCorrupt) hold.
func (d *BaseDamage) Unwrap() error { return d.Err }

// readBase reads what is the base's, from one block of it at most, and returns how much that was.
func (o *Overlay) readBase(p []byte, off int64) (int64, error) {
	block := off / BlockBytes
	n := min(int64(len(p)), o.base.Size()-off, (block+1)*BlockBytes-off)
	if _, err := o.base.ReadAt(p[:n], off); err != nil {
		return 0, &BaseDamage{Off: block * BlockBytes, Len: blockLen(o.base.Size(), block), Err: err}
	}
	return n, nil
}

// Adopt gives the overlay bytes of the base, as other holders have them, at off, where a page begins. From now on
// they are read from the staging file and not from the base. They are no change, and do not replace what was written
// meanwhile.
func (o *Overlay) Adopt(p []byte, off int64) error {
	if off < 0 || off%PageBytes != 0 || int64(len(p)) > o.base.Size()-off {
		return fmt.Errorf("content: adopt %d bytes at %d: %w", len(p), off, ErrShape)
	}
	o.content.Lock()
	defer o.content.Unlock()
	end := min(off+int64(len(p)), o.size, o.limit)
	for page := off / PageBytes; page*PageBytes < end; page++ {
		at := page * PageBytes
		if o.own.has(page) {
			continue
		}
		if _, err := o.st.file.WriteAt(p[at-off:min(at+PageBytes, end)-off], at); err != nil {
			return fmt.Errorf("content: write overlay: %w", noSpace(err))
		}
		if err := o.noteLocked(page, page+1); err != nil {
			return err
		}
	}
	return nil
}
