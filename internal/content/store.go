package content

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Options of a store.
type Options struct {
	// Log gets one line for each thing that was repaired, dropped or found damaged; nil discards.
	Log *slog.Logger
	// ReserveBytes stay free on the file system: contents that would go below it are refused.
	ReserveBytes int64
	// Clone makes dst share the bytes of src, if the file system can; nil is FICLONE. Tests change it.
	Clone func(dst, src *os.File) error
	// Step is called before each change that a power loss may undo, with the step (create, rename, unlink, apply,
	// fsync, fsync dir) and the path, "from -> to" for a rename. An error ends the operation. Tests crash there; it may
	// be nil.
	Step func(step, path string) error
}

// Store is a directory of contents. Its methods are safe for concurrent use. No lock is held across disk calls. What
// it consists of is listed in the package comment.
type Store struct {
	log     *slog.Logger
	files   *storeFiles
	index   *index
	opener  *opener
	forms   *forms
	staging *stagings
	space   *spaceBook
	trees   *treeCache
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
	files := &storeFiles{dir: dir, step: opt.Step}
	if err := files.prepare(); err != nil {
		return nil, fmt.Errorf("content: open %s: %w", dir, err)
	}
	s := newStore(files, opt)
	if err := s.recover(); err != nil {
		files.close()
		return nil, fmt.Errorf("content: open %s: %w", dir, err)
	}
	return s, nil
}

func newStore(files *storeFiles, opt Options) *Store {
	index := newIndex(files, opt.Log)
	opener := &opener{index: index, files: files}
	space := &spaceBook{dir: files.dir, reserve: opt.ReserveBytes}
	return &Store{
		log: opt.Log, files: files, index: index, opener: opener, space: space, trees: new(treeCache),
		forms:   &forms{index: index, files: files, opener: opener, space: space},
		staging: &stagings{index: index, files: files, clone: opt.Clone, open: make(map[uint64]bool)},
	}
}

// recover finishes or undoes what a crash left. It runs before the store is shared.
func (s *Store) recover() error {
	re := &recovery{files: s.files, index: s.index, log: s.log}
	if err := re.run(); err != nil {
		return err
	}
	return s.staging.recover()
}

// closeWait bounds how long Close waits for what is still open.
const closeWait = 10 * time.Second

// Close refuses new work and waits, for at most 10 s, until the open Receivings, Readers and Stagings are
// closed; then it fails with ErrBusy and the directory is released by the last of them. Undecided and
// partial contents stay.
func (s *Store) Close() error {
	if !s.index.close() {
		return nil
	}
	if err := s.staging.dropSpares(); err != nil {
		s.log.Warn("empty staged files are left", "error", err)
	}
	open := s.index.leave()
	timer := time.NewTimer(closeWait)
	defer timer.Stop()
	select {
	case <-s.index.drained:
		return nil
	case <-timer.C:
		return fmt.Errorf("content: close %s: %d uses left: %w", s.files.dir, open, ErrBusy)
	}
}
