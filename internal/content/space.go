package content

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Level says how much room there is.
type Level uint8

// inodesMin is how many inodes must be free for a content to be taken, where the file system counts them.
const inodesMin = 16

// The levels. At LevelFull no content is taken; at LevelLow less than twice the reserve is free.
const (
	LevelOK Level = iota + 1
	LevelLow
	LevelFull
)

// String names the level.
func (l Level) String() string {
	switch l {
	case LevelOK:
		return "ok"
	case LevelLow:
		return "low"
	case LevelFull:
		return "full"
	}
	return fmt.Sprintf("level(%d)", uint8(l))
}

// Space is the room on the store's file system.
type Space struct {
	TotalBytes     int64
	UnusedBytes    int64 // what no file takes
	FreeBytes      int64 // of that, what unprivileged users may take
	PromisedBytes  int64 // to open Receivings, not taken yet
	ReserveBytes   int64
	AvailableBytes int64 // what a new content may take: free - promised - reserve, at least 0
	FreeInodes     int64
	Level          Level
}

// NoSpaceError carries the numbers behind ErrNoSpace.
type NoSpaceError struct {
	NeedBytes int64
	Space     Space
}

// Error states the numbers.
func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("need %d bytes, available %d (free %d, promised %d, reserve %d, free inodes %d): no space",
		e.NeedBytes, e.Space.AvailableBytes, e.Space.FreeBytes, e.Space.PromisedBytes, e.Space.ReserveBytes,
		e.Space.FreeInodes)
}

// Unwrap makes errors.Is(err, ErrNoSpace) and errors.Is(err, unix.ENOSPC) hold.
func (e *NoSpaceError) Unwrap() []error { return []error{ErrNoSpace, unix.ENOSPC} }

// spaceBook keeps what was promised to Receivings and is not allocated yet.
type spaceBook struct {
	dir     string
	reserve int64 // bytes that stay free

	mu       sync.Mutex
	promised int64
}

// Space asks the file system and accounts for promises.
func (s *Store) Space() (Space, error) {
	return s.space.check(0)
}

// promise takes need bytes or fails with a NoSpaceError. settle gives them back.
func (b *spaceBook) promise(need int64) error {
	_, err := b.check(need)
	return err
}

func (b *spaceBook) settle(n int64) {
	b.mu.Lock()
	b.promised -= n
	b.mu.Unlock()
}

// check is Space, and takes need bytes if they are there.
func (b *spaceBook) check(need int64) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(b.dir, &st); err != nil {
		return Space{}, fmt.Errorf("content: statfs %s: %w", b.dir, err)
	}
	b.mu.Lock()
	sp := spaceOf(&st, b.promised, b.reserve)
	refused := need > 0 && (need > sp.AvailableBytes || sp.Level == LevelFull)
	if !refused {
		b.promised += need
	}
	b.mu.Unlock()
	if refused {
		return sp, &NoSpaceError{NeedBytes: need, Space: sp}
	}
	return sp, nil
}

func spaceOf(st *unix.Statfs_t, promised, reserve int64) Space {
	unit := st.Frsize // blocks are counted in these; some file systems prefer larger ones to be read and written, Bsize
	sp := Space{
		TotalBytes: int64(st.Blocks) * unit, UnusedBytes: int64(st.Bfree) * unit, FreeBytes: int64(st.Bavail) * unit,
		PromisedBytes: promised, ReserveBytes: reserve, FreeInodes: int64(st.Ffree), Level: LevelOK,
	}
	sp.AvailableBytes = max(0, sp.FreeBytes-promised-reserve)
	switch {
	case sp.AvailableBytes == 0 || sp.FreeInodes < inodesMin && st.Files > 0:
		sp.Level = LevelFull
	case sp.AvailableBytes < reserve:
		sp.Level = LevelLow
	}
	return sp
}
