package raftlog

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"

	"go.etcd.io/raft/v3/raftpb"
)

// segmentImage is a segment's bytes, being read.
type segmentImage struct {
	name string
	seq  uint64
	data []byte
	head *content
	// first frame's number and the number after the last one that was read
	number, next uint64
	off          int64 // where the next frame begins
	maxIndex     uint64
}

func (s *segmentImage) damaged(off int64, format string, args ...any) error {
	return &DamagedError{File: s.name, Offset: off, Reason: fmt.Sprintf(format, args...)}
}

func readSegment(fsys FS, dir, name string, seq uint64) (*segmentImage, error) {
	path := filepath.Join(dir, name)
	f, err := fsys.Open(path)
	if err != nil {
		return nil, fmt.Errorf("raftlog: open %s: %w", path, err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("raftlog: size of %s: %w", path, err)
	}
	s := &segmentImage{name: path, seq: seq}
	if size > 2*maxFrameBytes {
		return nil, s.damaged(0, "file of %d bytes", size)
	}
	s.data = make([]byte, size)
	if _, err := f.ReadAt(s.data, 0); err != nil && err != io.EOF {
		return nil, s.damaged(0, "read: %v", err)
	}
	return s, nil
}

// frameAt decodes the frame at off, or says why there is none.
func (s *segmentImage) frameAt(off int64, number uint64) (*content, header, error) {
	h, err := decodeHeader(s.data[off:])
	if err != nil {
		return nil, h, err
	}
	if h.segment != uint32(s.seq) || (number != 0 && h.number != number) {
		return nil, h, fmt.Errorf("frame %d of segment %d where frame %d of segment %d is due", h.number, h.segment, number,
			s.seq)
	}
	end := off + headerBytes + int64(h.length)
	if end > int64(len(s.data)) {
		return nil, h, fmt.Errorf("frame runs over the end of the file")
	}
	payload := s.data[off+headerBytes : end]
	if crc32.Checksum(payload, castagnoli) != h.payload {
		return nil, h, fmt.Errorf("checksum of frame %d", h.number)
	}
	c, err := decodeContent(payload)
	if err != nil {
		return nil, h, fmt.Errorf("frame %d: %w", h.number, err)
	}
	return c, h, nil
}

// readHead reads the first frame. A segment gets its name only when that is on stable storage.
func (s *segmentImage) readHead() error {
	if len(s.data) < headerBytes {
		return s.damaged(0, "file of %d bytes", len(s.data))
	}
	c, h, err := s.frameAt(0, 0)
	if err != nil {
		return s.damaged(0, "%v", err)
	}
	if h.kind != kindHead || c.identity == nil || c.base == nil || c.hard == nil || h.number != c.prevFrame+1 {
		return s.damaged(0, "not a segment's head")
	}
	s.head, s.number, s.next, s.off = c, h.number, h.number+1, h.frameBytes()
	return nil
}

// readFrames calls use for each frame after the head up to number limit (0: to the end), and returns the length of
// a torn write at the end.
func (s *segmentImage) readFrames(limit uint64, use func(*content) error) (torn int64, err error) {
	for limit == 0 || s.next <= limit {
		if s.off+headerBytes > int64(len(s.data)) {
			break
		}
		c, h, err := s.frameAt(s.off, s.next)
		if err != nil {
			if limit != 0 {
				return 0, s.damaged(s.off, "%v", err)
			}
			return s.tornEnd(err)
		}
		if h.kind != kindBatch {
			return 0, s.damaged(s.off, "frame of kind %d", h.kind)
		}
		if err := use(c); err != nil {
			return 0, s.damaged(s.off, "frame %d: %v", h.number, err)
		}
		if c.reset { // of what came before: entries of the same frame follow the new base
			s.maxIndex = 0
		}
		if n := len(c.entries); n > 0 {
			s.maxIndex = max(s.maxIndex, c.entries[n-1].GetIndex())
		}
		s.off += h.frameBytes()
		s.next++
	}
	if limit != 0 && s.next <= limit {
		return 0, s.damaged(s.off, "ends before frame %d", limit)
	}
	return 0, nil
}

// tornEnd decides what an unreadable frame at the end of the log is: nothing (0, nil), a write that was never
// acknowledged (its length), or damage.
func (s *segmentImage) tornEnd(cause error) (int64, error) {
	rest := s.data[s.off:]
	if allZero(rest) {
		return 0, nil
	}
	if number, at, ok := s.laterFrame(); ok {
		return 0, s.damaged(s.off, "%v, but frame %d follows at byte %d", cause, number, at)
	}
	extent := int64(headerBytes)
	if h, err := decodeHeader(rest); err == nil && h.number == s.next && h.segment == uint32(s.seq) {
		extent = headerBytes + int64(h.length)
	}
	if extent <= int64(len(rest)) && !s.hasUnwrittenSector(s.off, s.off+extent) {
		return 0, s.damaged(s.off, "%v, though all of it was written", cause)
	}
	return int64(len(bytes.TrimRight(rest, "\x00"))), nil
}

// laterFrame looks for a readable frame beyond the one that is due.
func (s *segmentImage) laterFrame() (number uint64, at int64, ok bool) {
	for off := s.off + frameAlign; off+headerBytes <= int64(len(s.data)); off += frameAlign {
		if s.data[off] != frameMagic[0] {
			continue
		}
		if _, h, err := s.frameAt(off, 0); err == nil && h.number > s.next {
			return h.number, off, true
		}
	}
	return 0, 0, false
}

// hasUnwrittenSector reports whether the part of some sector inside [from, to) is still zero.
func (s *segmentImage) hasUnwrittenSector(from, to int64) bool {
	for from < to {
		end := min(to, (from/sectorBytes+1)*sectorBytes)
		if allZero(s.data[from:end]) {
			return true
		}
		from = end
	}
	return false
}

func allZero(b []byte) bool {
	for len(b) >= 8 {
		if b[0]|b[1]|b[2]|b[3]|b[4]|b[5]|b[6]|b[7] != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// replay builds a State from frames in order.
type replay struct {
	state   State
	first   uint64 // index of entries[0]
	entries []*raftpb.Entry
}

func (r *replay) use(c *content) error {
	if c.hard != nil {
		r.state.Hard = c.hard
	}
	if c.reset {
		r.entries = nil
	}
	if c.base != nil {
		r.state.Base, r.state.Intent = *c.base, nil
	}
	if c.intent != nil {
		r.state.Intent = c.intent
	}
	if c.marks != nil {
		r.state.Marks = c.marks
	}
	for _, e := range c.entries {
		if err := r.entry(e); err != nil {
			return err
		}
	}
	return nil
}

func (r *replay) entry(e *raftpb.Entry) error {
	i := e.GetIndex()
	switch {
	case i == 0 || e.GetTerm() == 0:
		return fmt.Errorf("entry %d of term %d", i, e.GetTerm())
	case len(r.entries) == 0 || i <= r.first:
		r.first, r.entries = i, append(r.entries[:0:0], e)
	case i <= r.first+uint64(len(r.entries)):
		r.entries = append(r.entries[:i-r.first], e)
		if n := len(r.entries); n > 1 && r.entries[n-2].GetTerm() > e.GetTerm() {
			return fmt.Errorf("term of entry %d goes back", i)
		}
	default:
		return fmt.Errorf("entry %d after entry %d", i, r.first+uint64(len(r.entries))-1)
	}
	return nil
}

// finish drops what lies before the base and checks that nothing is missing after it.
func (r *replay) finish() error {
	base := r.state.Base.Index
	if len(r.entries) == 0 || r.first+uint64(len(r.entries)) <= base+1 {
		return nil
	}
	if r.first > base+1 {
		return fmt.Errorf("entries %d to %d are missing", base+1, r.first-1)
	}
	r.state.Entries = r.entries[base+1-r.first:]
	return nil
}
