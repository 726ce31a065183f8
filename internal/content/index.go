package content

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rdmcfs/rdmcfs/internal/durable"
)

// pin finds a content in one of the states and keeps its files until unpin. It waits while another has
// claimed the content.
func (s *Store) pin(id ID, states ...State) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.findIdleLocked(id, states...)
	if err != nil {
		return nil, err
	}
	if err := s.enterLocked(); err != nil {
		return nil, err
	}
	e.pins++
	return e, nil
}

// findIdleLocked finds a live content in one of the states once no claim is on it; it gives the lock up while
// it waits. A claim lasts as long as some file operations.
func (s *Store) findIdleLocked(id ID, states ...State) (*entry, error) {
	for {
		e, err := s.findLocked(id, states...)
		if !errors.Is(err, ErrBusy) {
			return e, err
		}
		idle := s.index[id].idle
		if idle == nil {
			return nil, err // a Receiving has it: that may take long
		}
		s.mu.Unlock()
		<-idle
		s.mu.Lock()
	}
}

// findLocked finds a live content in one of the states.
func (s *Store) findLocked(id ID, states ...State) (*entry, error) {
	e := s.index[id]
	if e == nil {
		return nil, fmt.Errorf("content: %s: %w", id, ErrNotFound)
	}
	for _, state := range states {
		if e.state == state && !e.dead {
			if e.busy {
				return nil, fmt.Errorf("content: %s: %w", id, ErrBusy)
			}
			return e, nil
		}
	}
	return nil, fmt.Errorf("content: %s is %s: %w", id, e.stateName(), ErrNotFound)
}

func (e *entry) stateName() string {
	if e.dead {
		return "being removed"
	}
	return e.state.String()
}

// unpin undoes pin and removes the content if that was all it waited for.
func (s *Store) unpin(id ID) error {
	s.mu.Lock()
	if e := s.index[id]; e != nil {
		e.pins--
	}
	err := s.reapLocked(id)
	s.leaveLocked()
	s.mu.Unlock()
	return err
}

// claim takes the files of a content for one owner for a short time; see unclaim.
func (s *Store) claim(id ID, states ...State) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.findIdleLocked(id, states...)
	if err != nil {
		return nil, err
	}
	if err := s.enterLocked(); err != nil {
		return nil, err
	}
	e.claimLocked()
	return e, nil
}

func (e *entry) claimLocked() { e.busy, e.idle = true, make(chan struct{}) }

func (e *entry) unclaimLocked() {
	e.busy = false
	if e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
}

// unclaim ends a claim; change, if not nil, is applied to the entry under the lock.
func (s *Store) unclaim(id ID, change func(*entry)) error {
	s.mu.Lock()
	if e := s.index[id]; e != nil {
		if change != nil {
			change(e)
		}
		e.unclaimLocked()
	}
	err := s.reapLocked(id)
	s.leaveLocked()
	s.mu.Unlock()
	return err
}

// reapLocked removes the content if it is dead and nothing needs it, then its base likewise. It gives the
// lock up while files are removed.
func (s *Store) reapLocked(id ID) error {
	var errs error
	for !id.IsZero() {
		e := s.index[id]
		if e == nil || !e.dead || e.busy || e.pins > 0 || e.deps > 0 {
			return errs
		}
		e.busy = true
		base, state := e.base, e.state
		s.mu.Unlock()
		errs = errors.Join(errs, s.removeFiles(id, base, state))
		s.mu.Lock()
		delete(s.index, id)
		if b := s.index[base]; b != nil {
			b.deps--
		}
		id = base
	}
	return errs
}

// removeFiles unlinks a content, its sidecar first: bytes without a sidecar are dropped at Open.
func (s *Store) removeFiles(id, base ID, state State) error {
	var errs error
	for _, path := range []string{
		s.sidecarPath(id, base, state), s.streamPath(id, base),
	} {
		errs = errors.Join(errs, s.unlink(path))
	}
	return errs
}

// unlink removes a file that may be absent.
func (s *Store) unlink(path string) error {
	if err := s.step("unlink", path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("content: remove %s: %w", path, err)
	}
	return nil
}

// rename moves a file within its directory.
func (s *Store) rename(from, to string) error {
	if err := s.step("rename", from+" -> "+to); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("content: rename %s: %w", from, err)
	}
	return nil
}

// syncFile makes a file durable.
func (s *Store) syncFile(f *os.File) error {
	if err := s.step("fsync", f.Name()); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("content: sync %s: %w", f.Name(), err)
	}
	return nil
}

// syncShard makes the directory entries of a content durable.
func (s *Store) syncShard(id ID) error { return s.syncDir(s.shardDir(id)) }

// syncDir makes the entries of a directory durable.
func (s *Store) syncDir(dir string) error {
	if err := s.step("fsync dir", dir); err != nil {
		return err
	}
	if err := durable.Sync(dir); err != nil {
		return fmt.Errorf("content: sync %s: %w", dir, err)
	}
	return nil
}

// ensureShard makes the directory of a content if it is not there.
func (s *Store) ensureShard(id ID) error {
	made := &s.shards[shard(id)]
	if made.Load() {
		return nil
	}
	if err := os.MkdirAll(s.shardDir(id), 0o700); err != nil {
		return err
	}
	if err := s.syncDir(filepath.Join(s.dir, "held")); err != nil {
		return err
	}
	made.Store(true)
	return nil
}
