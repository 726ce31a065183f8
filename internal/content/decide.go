package content

import (
	"errors"
	"fmt"
	"os"
)

// Info describes a held content.
type Info struct {
	ID          ID
	State       State
	Size        int64
	StreamBytes int64 // what it takes on disk, about, but for its base
	Base        ID    // zero if it is plain
	Depth       int   // deltas in its chain, itself included
	Root        Hash  // zero while partial
	Damaged     bool  // a read or a scrub found it so
	Checked     bool  // all of it was received or checked since the store was opened
}

// Commit makes an undecided content live, as the log decided. A content that is committed already is left
// alone. It is not synced: after a crash the content may be undecided again.
func (s *Store) Commit(id ID) error {
	e, err := s.claim(id, Undecided, Committed)
	if err != nil {
		return fmt.Errorf("content: commit: %w", err)
	}
	from := e.state
	if from == Undecided {
		err = s.rename(s.sidecarPath(id, e.base, Undecided), s.sidecarPath(id, e.base, Committed))
	}
	_ = s.unclaim(id, func(e *entry) { // nothing dead to remove: claim finds live contents only
		if err == nil {
			e.state = Committed
		}
	})
	return err
}

// Abort drops an undecided content or what was received of a partial one; an open Receiving of it fails at
// Finish and its files go with its Close. A content that is not there is no error.
func (s *Store) Abort(id ID) error {
	return s.kill(id, Partial, Undecided)
}

// Delete removes a content in any state; bytes that an open Reader, or a delta or staged bytes over it, need stay
// until those are gone. From this call on it can't be opened. A content that is not there is no error.
func (s *Store) Delete(id ID) error {
	return s.kill(id, Partial, Undecided, Committed)
}

func (s *Store) kill(id ID, states ...State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.index[id]
	if e == nil || e.dead {
		return nil
	}
	for _, state := range states {
		if e.state == state {
			if err := s.enterLocked(); err != nil {
				return err
			}
			e.dead = true
			err := s.reapLocked(id)
			s.leaveLocked()
			return err
		}
	}
	return fmt.Errorf("content: remove %s: it is %s: %w", id, e.state, ErrExists)
}

// List returns the ids of the live contents in a state, in no order.
func (s *Store) List(state State) []ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []ID
	for id, e := range s.index {
		if e.state == state && !e.dead {
			ids = append(ids, id)
		}
	}
	return ids
}

// State tells how far a content is; ok is false if it is not here or about to be removed.
func (s *Store) State(id ID) (state State, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.index[id]
	if e == nil || e.dead {
		return 0, false
	}
	return e.state, true
}

// Stat describes a content. A sidecar that can't be read gives ErrCorrupt.
func (s *Store) Stat(id ID) (Info, error) {
	for {
		s.mu.Lock()
		e := s.index[id]
		if e == nil || e.dead {
			s.mu.Unlock()
			return Info{}, fmt.Errorf("content: stat %s: %w", id, ErrNotFound)
		}
		info := Info{ID: id, State: e.state, Base: e.base, Damaged: e.damaged, Checked: e.checked, Depth: s.depthLocked(id)}
		s.mu.Unlock()
		h, err := readHeader(s.sidecarPath(id, info.Base, info.State), id)
		if errors.Is(err, os.ErrNotExist) && s.changed(id, info.State, info.Base) {
			continue // a commit or a fold moved it meanwhile
		}
		if err != nil {
			return info, fmt.Errorf("content: stat %s: %w", id, err)
		}
		info.Size, info.StreamBytes, info.Root = h.size, h.streamBytes, h.root
		return info, nil
	}
}

// changed tells whether a content has gone on from a state and a base, or is about to be removed. A decision that is
// being carried out counts, and is waited for.
func (s *Store) changed(id ID, state State, base ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.settledLocked(id)
	return e == nil || e.dead || e.state != state || e.base != base
}

// moved is changed of a content that may have been deleted and be kept for what is over it.
func (s *Store) moved(id ID, state State, base ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.settledLocked(id)
	return e == nil || e.state != state || e.base != base
}

// settledLocked waits for the decision on a content that is being carried out, and returns its entry.
func (s *Store) settledLocked(id ID) *entry {
	e := s.index[id]
	if e != nil && e.idle != nil {
		idle := e.idle
		s.mu.Unlock()
		<-idle
		s.mu.Lock()
		e = s.index[id]
	}
	return e
}

// depthLocked counts the deltas from id down to a plain content.
func (s *Store) depthLocked(id ID) int {
	depth := 0
	for e := s.index[id]; e != nil && !e.base.IsZero() && depth <= DepthMax; e = s.index[e.base] {
		depth++
	}
	return depth
}

// markDamaged notes that a content failed a check.
func (s *Store) markDamaged(id ID, why error) {
	s.mu.Lock()
	e := s.index[id]
	fresh := e != nil && !e.damaged
	if fresh {
		e.damaged, e.checked = true, false
		e.rot++
	}
	s.mu.Unlock()
	if fresh {
		s.log.Error("content is damaged", "content", id.String(), "error", why)
	}
}

// Damaged lists the live contents that a read or scrub found damaged and that were not mended since.
func (s *Store) Damaged() []ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []ID
	for id, e := range s.index {
		if e.damaged && !e.dead {
			ids = append(ids, id)
		}
	}
	return ids
}
