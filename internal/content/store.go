package content

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/durable"
)

// formatText is what FORMAT says.
const formatText = "rdmcfs content store 1\n"

// Options of a store.
type Options struct {
	// Log gets one line for each thing that was repaired, dropped or found damaged; nil discards.
	Log *slog.Logger
	// ReserveBytes stay free on the file system: contents that would go below it are refused.
	ReserveBytes int64
	// Clone makes dst share the bytes of src, if the file system can; nil is FICLONE. Tests change it.
	Clone func(dst, src *os.File) error
	// Step is called before each change that a power loss may undo, with the step (create, rename, unlink, apply,
	// fsync, fsync dir) and the path, "from -> to" for a rename. An error ends the operation. Tests crash there; nil
	// is nobody.
	Step func(step, path string) error
}

// Store is a directory of contents. Its methods are safe for concurrent use. No lock is held across disk calls.
type Store struct {
	dir  string
	opt  Options
	log  *slog.Logger
	lock *os.File

	mu      sync.Mutex
	index   map[ID]*entry
	closed  bool
	open    int           // receivings, readers, stagings and running operations
	drained chan struct{} // closed when open gets 0 after Close

	shards [heldDirs]atomic.Bool // directories that are there, durably
	// handles are open directories, for looks at many files; nil until the first look. They are closed when the store
	// is given free.
	handles [heldDirs]atomic.Pointer[openDir]

	space spaceBook
	stage stagingBook
	trees treeCache

	step func(step, path string) error // Options.Step, never nil
}

// entry is what is known of a content without reading its sidecar. Guarded by Store.mu.
type entry struct {
	base    ID
	state   State
	dead    bool          // to be removed once nothing needs it
	damaged bool          // a read or scrub found it so, or its sidecar is unreadable
	checked bool          // all of it was checked since the store was opened
	looked  bool          // its files were found there, with their lengths, since then
	rot     uint32        // how often it was found damaged since then
	busy    bool          // a Receiving, a decision or a removal owns its files
	folding bool          // another form of it is being written
	idle    chan struct{} // closed when a claim, which is short, ends; nil if there is none
	pins    int32
	deps    int32 // contents that have it as base
}

// Open opens the store in dir, makes it if it is not there, and finishes or undoes what a crash left.
func Open(dir string, opt Options) (*Store, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Clone == nil {
		opt.Clone = func(dst, src *os.File) error { return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) }
	}
	if opt.Step == nil {
		opt.Step = func(string, string) error { return nil }
	}
	if opt.ReserveBytes < 0 {
		return nil, fmt.Errorf("content: open %s: negative reserve", dir)
	}
	s := &Store{
		dir: dir, opt: opt, log: opt.Log,
		index: make(map[ID]*entry), drained: make(chan struct{}),
		step: opt.Step,
	}
	if err := s.prepare(); err != nil {
		return nil, fmt.Errorf("content: open %s: %w", dir, err)
	}
	if err := s.recover(); err != nil {
		_ = s.lock.Close()
		return nil, fmt.Errorf("content: open %s: %w", dir, err)
	}
	return s, nil
}

// prepare makes the directories and takes the lock.
func (s *Store) prepare() error {
	for _, dir := range []string{s.dir, filepath.Join(s.dir, "held"), filepath.Join(s.dir, "staging")} {
		if err := durable.MakeDir(dir); err != nil {
			return err
		}
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, "LOCK"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrLocked
		}
		return fmt.Errorf("lock: %w", err)
	}
	if err := s.prepareFormat(); err != nil {
		_ = lock.Close()
		return err
	}
	s.lock = lock
	return nil
}

func (s *Store) prepareFormat() error {
	path := filepath.Join(s.dir, "FORMAT")
	text, err := readBounded(path, 4096)
	if err == nil && len(text) != 0 {
		if string(text) != formatText {
			return fmt.Errorf("FORMAT says %.40q: %w", text, ErrFormat)
		}
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return durable.WriteFile(path, []byte(formatText))
}

// closeWait bounds how long Close waits for what is still open.
const closeWait = 10 * time.Second

// Close refuses new work and waits, for at most 10 s, until the open Receivings, Readers and Stagings are
// closed; then it fails with ErrBusy and the directory is released by the last of them. Undecided and
// partial contents stay.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.open++ // until the empty files are gone
	s.mu.Unlock()
	if err := s.dropSpares(); err != nil {
		s.log.Warn("empty staged files are left", "error", err)
	}
	s.mu.Lock()
	s.leaveLocked()
	open := s.open
	s.mu.Unlock()
	timer := time.NewTimer(closeWait)
	defer timer.Stop()
	select {
	case <-s.drained:
		return nil
	case <-timer.C:
		return fmt.Errorf("content: close %s: %d uses left: %w", s.dir, open, ErrBusy)
	}
}

// releaseLocked gives the directory free.
func (s *Store) releaseLocked() {
	for i := range s.handles {
		if h := s.handles[i].Swap(nil); h != nil {
			_ = h.file.Close() // a directory that was only looked through
		}
	}
	_ = s.lock.Close() // closing the descriptor drops the flock; nothing was written to it
	close(s.drained)
}

// enter counts a user of the store in; each success is followed by one leave.
func (s *Store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enterLocked()
}

func (s *Store) enterLocked() error {
	if s.closed {
		return fmt.Errorf("content: store: %w", ErrClosed)
	}
	s.open++
	return nil
}

func (s *Store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked()
}

func (s *Store) leaveLocked() {
	s.open--
	if s.closed && s.open == 0 {
		s.releaseLocked()
	}
}

// readBounded reads a file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}
