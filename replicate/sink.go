package replicate

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// Sessions count the blocks of the store.
var _ [content.BlockBytes]struct{} = [session.BlockBytes]struct{}{}

// blockPool lends buffers of one content block.
var blockPool = sync.Pool{New: func() any { return new([content.BlockBytes]byte) }}

// assembledMax bounds the content blocks that a sink puts together in memory at once. Schedules bring blocks nearly
// in order, so a few are enough.
const assembledMax = 128

var errScattered = errors.New("replicate: blocks come too far out of order")

// sink stores the blocks of a session at a member and returns the blocks that have to be relayed again. The blocks of a
// group may be smaller than those of the content. Then a content block is assembled in memory, written in one piece,
// and until then read back from memory.
type sink struct {
	copy       *localCopy
	groupBlock int64 // bytes

	mu    sync.Mutex
	parts map[int64]*assembly
	err   error // first failure of the disk
}

// assembly is a content block of which some blocks of the group are here.
type assembly struct {
	buf  *[content.BlockBytes]byte
	have uint32 // bit per block of the group
	left int
	used int // calls that copy in or out
}

func newSink(c *localCopy, groupBlock int64) *sink {
	return &sink{copy: c, groupBlock: groupBlock, parts: make(map[int64]*assembly)}
}

// WriteBlock stores a block of the group. The failure is kept for the member's answer.
func (s *sink) WriteBlock(i uint64, buf []byte) error {
	err := s.write(int64(i)*s.groupBlock, buf)
	if err != nil {
		s.mu.Lock()
		if s.err == nil {
			s.err = err
		}
		s.mu.Unlock()
	}
	return err
}

func (s *sink) write(off int64, p []byte) error {
	c := off / content.BlockBytes
	n := s.copy.layout.BlockLen(c)
	if int64(len(p)) == n {
		return s.copy.recv.WriteBlock(c, p, nil)
	}
	a := s.enter(c, n)
	if a == nil {
		return errScattered
	}
	skip := off % content.BlockBytes
	copy(a.buf[skip:n], p)
	whole := s.copied(a, uint(skip/s.groupBlock))
	var err error
	if whole {
		err = s.copy.recv.WriteBlock(c, a.buf[:n], nil)
	}
	s.leave(c, a, whole)
	return err
}

// enter finds or begins the assembly of a content block of n bytes; nil if there are too many.
func (s *sink) enter(c, n int64) *assembly {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.parts[c]
	if a == nil {
		if len(s.parts) >= assembledMax {
			return nil
		}
		a = &assembly{buf: blockPool.Get().(*[content.BlockBytes]byte), left: int((n + s.groupBlock - 1) / s.groupBlock)}
		s.parts[c] = a
	}
	a.used++
	return a
}

// copied notes a part; the caller that brings the last part writes the block.
func (s *sink) copied(a *assembly, part uint) (whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.have&(1<<part) == 0 {
		a.have |= 1 << part
		a.left--
		return a.left == 0
	}
	return false
}

// leave lets go of an assembly; a written one is over when nobody reads it.
func (s *sink) leave(c int64, a *assembly, written bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if written {
		delete(s.parts, c)
	}
	if a.used--; a.used == 0 && s.parts[c] != a {
		blockPool.Put(a.buf)
	}
}

// failure is the first error of WriteBlock.
func (s *sink) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// ReadBlock reads a stored block back.
func (s *sink) ReadBlock(i uint64, buf []byte) error {
	off := int64(i) * s.groupBlock
	c, skip := off/content.BlockBytes, off%content.BlockBytes
	s.mu.Lock()
	a := s.parts[c]
	if a == nil || a.have&(1<<uint(skip/s.groupBlock)) == 0 {
		s.mu.Unlock()
		return readPart(s.copy.readBlock, s.copy.layout, off, buf)
	}
	a.used++
	s.mu.Unlock()
	copy(buf, a.buf[skip:])
	s.leave(c, a, false)
	return nil
}

// readPart reads a part of the stream that lies in one block, by reading the block.
func readPart(read func(int64, []byte) error, l *content.Layout, off int64, p []byte) error {
	i, skip := off/content.BlockBytes, off%content.BlockBytes
	n := l.BlockLen(i)
	if skip+int64(len(p)) > n {
		return fmt.Errorf("replicate: read %d bytes at %d of a block of %d: %w", len(p), skip, n, io.ErrUnexpectedEOF)
	}
	if skip == 0 && int64(len(p)) == n {
		return read(i, p)
	}
	buf := blockPool.Get().(*[content.BlockBytes]byte)
	defer blockPool.Put(buf)
	if err := read(i, buf[:n]); err != nil {
		return err
	}
	copy(p, buf[skip:])
	return nil
}

// groupHave returns, in blocks of the group, what is here in blocks of the content.
func groupHave(l *content.Layout, have *blockset.Bitmap, groupBlock int64) *blockset.Bitmap {
	blocks := rdmc.BlockCount(uint64(l.StreamBytes()), int(groupBlock))
	return blockset.BitmapOf(blocks, groupBlocks(l, have, groupBlock))
}

// groupBlocks are the group's blocks of a set of content blocks.
func groupBlocks(l *content.Layout, set *blockset.Bitmap, groupBlock int64) blockset.Ranges {
	blocks := rdmc.BlockCount(uint64(l.StreamBytes()), int(groupBlock))
	return set.Present().Split(uint64(content.BlockBytes/groupBlock), blocks)
}
