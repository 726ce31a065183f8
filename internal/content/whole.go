package content

import (
	"errors"
	"fmt"
	"os"
)

// Whole reports whether the files of a stored content, and of those it is a delta over, are there with their lengths.
// size is the content's length as the log has it. No bytes are read. A content that is not whole counts as damaged from
// then on. The files of each content are looked at once after Open: what comes later was synced before it got its name.
func (s *Store) Whole(id ID, size int64) bool { return s.whole(id, size, false) }

// Look is Whole for what somebody may have changed since: the files are looked at even if they were before.
func (s *Store) Look(id ID, size int64) bool { return s.whole(id, size, true) }

func (s *Store) whole(id ID, size int64, again bool) bool {
	above, layer := ID{}, id
	for range DepthMax + 1 {
		base, ok := s.wholeLayer(layer, size, again)
		switch {
		case !ok && layer != id && s.index.baseOf(above) != layer:
			return true // it was folded meanwhile, which reads all of it
		case !ok && layer != id:
			s.index.markDamaged(id, fmt.Errorf("content: %s: base %s: %w", id, layer, ErrCorrupt))
			return false
		case !ok || base.IsZero():
			return ok
		}
		above, layer, size = layer, base, -1
	}
	return false
}

// wholeLayer is Whole for one content without its bases. A negative size is not known.
func (s *Store) wholeLayer(id ID, size int64, again bool) (base ID, ok bool) {
	for {
		f, looked, ok := s.index.stored(id, size < 0)
		if !ok {
			return ID{}, false
		}
		if looked && !again {
			return f.base, true
		}
		err := s.files.checkLengths(id, f, size)
		if err != nil && s.index.moved(id, f) {
			continue // a commit or a fold moved it meanwhile
		}
		if errors.Is(err, ErrCorrupt) || errors.Is(err, os.ErrNotExist) {
			s.index.markDamaged(id, err)
			return f.base, false
		}
		if err != nil {
			return f.base, true // it can't be looked at now: a read will report it
		}
		s.index.markLooked(id)
		return f.base, true
	}
}
