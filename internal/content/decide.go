package content

import "fmt"

// Info describes a held content.
type Info struct {
	ID          ID
	State       State
	Size        int64
	StreamBytes int64 // what it takes on disk, about, without its base
	Base        ID    // zero if it is plain
	Depth       int   // deltas in its chain, itself included
	Root        Hash  // zero while partial
	Damaged     bool  // a read or a scrub found it so
	Checked     bool  // all of it was received or checked since the store was opened
}

// Commit makes an undecided content live, as the log decided. A content that is committed already is left
// alone. It is not synced: after a crash the content may be undecided again.
func (s *Store) Commit(id ID) error {
	e, err := s.index.claim(id, Undecided, Committed)
	if err != nil {
		return fmt.Errorf("content: commit: %w", err)
	}
	from := e.state
	if from == Undecided {
		err = s.files.rename(s.files.sidecarPath(id, e.base, Undecided), s.files.sidecarPath(id, e.base, Committed))
	}
	_ = s.index.unclaim(id, func(e *entry) { // nothing dead to remove: claim finds live contents only
		if err == nil {
			e.state = Committed
		}
	})
	return err
}

// Abort drops an undecided content or what was received of a partial one; an open Receiving of it fails at
// Finish and its files go with its Close. A content that is not there is no error.
func (s *Store) Abort(id ID) error {
	return s.index.remove(id, Partial, Undecided)
}

// Delete removes a content in any state; bytes that an open Reader, or a delta or staged bytes over it, need stay
// until those are gone. From this call on it can't be opened. A content that is not there is no error.
func (s *Store) Delete(id ID) error {
	return s.index.remove(id, Partial, Undecided, Committed)
}

// List returns the ids of the live contents in a state, in no order.
func (s *Store) List(state State) []ID {
	return s.index.list(func(e *entry) bool { return e.state == state })
}

// State returns how far a content is; ok is false if it is not here or about to be removed.
func (s *Store) State(id ID) (state State, ok bool) { return s.index.state(id) }

// Stat describes a content. A sidecar that can't be read gives ErrCorrupt.
func (s *Store) Stat(id ID) (Info, error) { return s.opener.stat(id) }

// Damaged lists the live contents that a read or scrub found damaged and that were not mended since.
func (s *Store) Damaged() []ID {
	return s.index.list(func(e *entry) bool { return e.damaged })
}

// DamageFound has a value when a content was found damaged that was whole before, as far as was known. Several such
// contents make one value until it is received. It is for one receiver, and is never closed.
func (s *Store) DamageFound() <-chan struct{} { return s.index.found }
