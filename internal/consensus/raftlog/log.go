package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"go.etcd.io/raft/v3/raftpb"
)

const (
	segmentSuffix = ".raftlog"
	spareName     = "spare.tmp"
	minSegment    = 64 << 10
	headRoom      = 32 << 10 // more than a segment's head takes
)

// Options of a log.
type Options struct {
	Dir          string
	Identity     Identity
	FS           FS    // nil: the real one
	SegmentBytes int64 // 0: 16 MiB
}

func (o *Options) fill() {
	if o.FS == nil {
		o.FS = OS()
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 16 << 20
	}
	o.SegmentBytes = max(o.SegmentBytes, minSegment)
}

// segment is one that is no longer written.
type segment struct {
	seq      uint64
	maxIndex uint64 // highest index of an entry in it
}

// Log is open for appending. It is not safe for concurrent use.
type Log struct {
	opts   Options
	unlock func() error

	old      []segment
	cur      File
	seq      uint64
	off      int64
	size     int64
	maxIndex uint64
	next     uint64 // number of the next frame
	broken   bool   // the current segment must not be written any more

	spare    File
	spareErr error

	hard   *raftpb.HardState
	base   Base
	intent *Base
	marks  []Mark
	buf    []byte
}

func segmentName(seq uint64) string { return fmt.Sprintf("%016x%s", seq, segmentSuffix) }

func listSegments(fsys FS, dir string) ([]uint64, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	var seqs []uint64
	for _, name := range names {
		stem, ok := strings.CutSuffix(name, segmentSuffix)
		if !ok {
			continue
		}
		seq, err := strconv.ParseUint(stem, 16, 64)
		if err != nil || segmentName(seq) != name {
			return nil, &DamagedError{File: filepath.Join(dir, name), Reason: "strange file name"}
		}
		seqs = append(seqs, seq)
	}
	return seqs, nil
}

// Exists reports whether there is a log in dir, whole or not.
func Exists(fsys FS, dir string) (bool, error) {
	if fsys == nil {
		fsys = OS()
	}
	seqs, err := listSegments(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(seqs) > 0 || errors.Is(err, ErrDamaged), err
}

// Create makes a log that holds only its base.
func Create(opts Options, base Base) error {
	opts.fill()
	if exists, err := Exists(opts.FS, opts.Dir); err != nil || exists {
		return errors.Join(err, fmt.Errorf("%w: %s", ErrExists, opts.Dir))
	}
	if err := opts.FS.MakeDir(opts.Dir); err != nil {
		return fmt.Errorf("raftlog: make %s: %w", opts.Dir, err)
	}
	unlock, err := opts.FS.Lock(opts.Dir)
	if err != nil {
		return err
	}
	l := &Log{opts: opts, unlock: unlock, next: 1, hard: &raftpb.HardState{}, base: base}
	return errors.Join(l.roll(0), l.Close())
}

// Open reads a log and makes it ready for appending.
func Open(opts Options) (*Log, *State, error) {
	opts.fill()
	seqs, err := listSegments(opts.FS, opts.Dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(seqs) == 0 {
		return nil, nil, fmt.Errorf("%w (%s)", ErrMissing, opts.Dir)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("raftlog: list %s: %w", opts.Dir, err)
	}
	unlock, err := opts.FS.Lock(opts.Dir)
	if err != nil {
		return nil, nil, err
	}
	l := &Log{opts: opts, unlock: unlock}
	state, err := l.load(seqs)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, state, nil
}

// load reads all segments and leaves the log at its end.
func (l *Log) load(seqs []uint64) (*State, error) {
	images, err := l.readHeads(seqs)
	if err != nil {
		return nil, err
	}
	r := &replay{}
	var torn int64
	for i, s := range images {
		limit := uint64(0)
		if i+1 < len(images) {
			limit = images[i+1].head.prevFrame
		}
		if err := r.use(s.head); err != nil {
			return nil, s.damaged(0, "%v", err)
		}
		if torn, err = s.readFrames(limit, r.use); err != nil {
			return nil, err
		}
		l.old = append(l.old, segment{seq: s.seq, maxIndex: s.maxIndex})
	}
	last := images[len(images)-1]
	if err := r.finish(); err != nil {
		return nil, last.damaged(last.off, "%v", err)
	}
	l.old = l.old[:len(l.old)-1]
	l.seq, l.off, l.size, l.maxIndex, l.next = last.seq, last.off, int64(len(last.data)), last.maxIndex, last.next
	l.hard, l.base, l.intent, l.marks = r.state.Hard, r.state.Base, r.state.Intent, r.state.Marks
	l.broken = torn > 0
	r.state.Identity, r.state.TornBytes = l.opts.Identity, torn
	if l.cur, err = l.opts.FS.Open(last.name); err != nil {
		return nil, fmt.Errorf("raftlog: open %s: %w", last.name, err)
	}
	_ = l.opts.FS.Remove(filepath.Join(l.opts.Dir, spareName))
	if l.opts.FS.SyncDir(l.opts.Dir) != nil { // a segment that was taken back must not come again
		l.broken = true
	}
	_ = l.Prepare()
	return &r.state, nil
}

func (l *Log) readHeads(seqs []uint64) ([]*segmentImage, error) {
	var images []*segmentImage
	for i, seq := range seqs {
		s, err := readSegment(l.opts.FS, l.opts.Dir, segmentName(seq), seq)
		if err != nil {
			return nil, err
		}
		if i > 0 && seq != seqs[i-1]+1 {
			return nil, s.damaged(0, "segment %d is missing before it", seqs[i-1]+1)
		}
		if err := s.readHead(); err != nil {
			return nil, err
		}
		if *s.head.identity != l.opts.Identity {
			return nil, fmt.Errorf("%w: %s was written by node %x store %x id %x of cluster %x generation %d", ErrIdentity,
				s.name,
				s.head.identity.Node, s.head.identity.Store, s.head.identity.ID, s.head.identity.Cluster,
				s.head.identity.Generation)
		}
		images = append(images, s)
	}
	return images, nil
}

// Append writes a batch and returns when it is on stable storage. After an error nothing of it is promised, and it
// may be tried again, with more in it: the log goes on in a new segment, if it can.
func (l *Log) Append(b *Batch) error {
	c := content{hard: b.Hard, base: b.Base, reset: b.Reset, intent: b.Intent, marks: b.Marks, entries: b.Entries}
	payload, err := c.append(l.buf[:0])
	if err != nil {
		return err
	}
	l.buf = payload[:0]
	if cap(l.buf) > 4<<20 {
		l.buf = nil
	}
	need := align(headerBytes + int64(len(payload)))
	if need > maxFrameBytes {
		return fmt.Errorf("raftlog: append: batch of %d bytes", need)
	}
	if l.broken || l.off+need > l.size {
		if err := l.roll(need); err != nil {
			return err
		}
	}
	if err := l.writeFrame(kindBatch, payload); err != nil {
		return err
	}
	l.note(b)
	return nil
}

// note remembers what a written batch changed.
func (l *Log) note(b *Batch) {
	if b.Hard != nil {
		l.hard = b.Hard
	}
	if b.Reset {
		l.maxIndex = 0
		for i := range l.old {
			l.old[i].maxIndex = 0
		}
	}
	if b.Intent != nil {
		l.intent = b.Intent
	}
	if b.Marks != nil {
		l.marks = b.Marks
	}
	if n := len(b.Entries); n > 0 {
		l.maxIndex = max(l.maxIndex, b.Entries[n-1].GetIndex())
	}
	if b.Base != nil {
		l.base, l.intent = *b.Base, nil
		l.dropOld()
	}
}

func (l *Log) writeFrame(kind uint8, payload []byte) error {
	frame := appendFrame(make([]byte, 0, headerBytes+len(payload)+frameAlign), kind, uint32(l.seq), l.next, payload)
	if _, err := l.cur.WriteAt(frame, l.off); err != nil {
		l.broken = true
		return fmt.Errorf("raftlog: write segment %d at %d: %w", l.seq, l.off, err)
	}
	if err := l.cur.Sync(); err != nil {
		l.broken = true
		return fmt.Errorf("raftlog: sync segment %d: %w", l.seq, err)
	}
	l.off += int64(len(frame))
	l.next++
	return nil
}

// roll goes on in a new segment that has room for a frame of need bytes.
func (l *Log) roll(need int64) error {
	if l.spare == nil || need+headRoom > l.opts.SegmentBytes {
		if err := l.prepare(max(l.opts.SegmentBytes, need+headRoom)); err != nil {
			return err
		}
	}
	head := content{identity: &l.opts.Identity, prevFrame: l.next - 1, hard: l.hard, base: &l.base, intent: l.intent,
		marks: l.marks}
	payload, err := head.append(nil)
	if err != nil {
		return err
	}
	size, err := l.spare.Size()
	if err != nil {
		return fmt.Errorf("raftlog: size of spare: %w", err)
	}
	next := Log{opts: l.opts, cur: l.spare, seq: l.seq + 1, next: l.next}
	if err = next.writeFrame(kindHead, payload); err == nil {
		if err = l.publishSpare(next.seq); err != nil {
			l.broken = true // the disk may show that segment after a crash: it hides what this one would get now
		}
	}
	if err != nil {
		l.dropSpare()
		return err
	}
	if l.cur != nil {
		l.old = append(l.old, segment{seq: l.seq, maxIndex: l.maxIndex})
		_ = l.cur.Close()
	}
	l.cur, l.seq, l.off, l.size, l.next = next.cur, next.seq, next.off, size, next.next
	l.maxIndex, l.broken, l.spare = 0, false, nil
	_ = l.Prepare()
	return nil
}

func (l *Log) publishSpare(seq uint64) error {
	from, to := filepath.Join(l.opts.Dir, spareName), filepath.Join(l.opts.Dir, segmentName(seq))
	if err := l.opts.FS.Rename(from, to); err != nil {
		return fmt.Errorf("raftlog: name segment %d: %w", seq, err)
	}
	if err := l.opts.FS.SyncDir(l.opts.Dir); err != nil {
		return errors.Join(fmt.Errorf("raftlog: sync %s: %w", l.opts.Dir, err), l.opts.FS.Remove(to))
	}
	return nil
}

// Prepare allocates the next segment if there is none ready. It may be called at any time to try again.
func (l *Log) Prepare() error {
	if l.spare != nil {
		return nil
	}
	return l.prepare(l.opts.SegmentBytes)
}

func (l *Log) prepare(size int64) error {
	l.dropSpare()
	path := filepath.Join(l.opts.Dir, spareName)
	f, err := l.opts.FS.Create(path)
	if err == nil {
		if err = f.Allocate(size); err == nil {
			l.spare, l.spareErr = f, nil
			return nil
		}
		_ = f.Close()
		_ = l.opts.FS.Remove(path)
	}
	l.spareErr = fmt.Errorf("raftlog: allocate a segment of %d bytes in %s: %w", size, l.opts.Dir, err)
	return l.spareErr
}

func (l *Log) dropSpare() {
	if l.spare != nil {
		_ = l.spare.Close()
		l.spare = nil
	}
	_ = l.opts.FS.Remove(filepath.Join(l.opts.Dir, spareName))
}

// Full returns why there is no next segment; nil if there is one. There may be room in the current one still.
func (l *Log) Full() error {
	if l.spare != nil {
		return nil
	}
	return l.spareErr
}

// dropOld removes the segments that hold nothing after the base.
func (l *Log) dropOld() {
	for len(l.old) > 0 && l.old[0].maxIndex <= l.base.Index {
		if err := l.opts.FS.Remove(filepath.Join(l.opts.Dir, segmentName(l.old[0].seq))); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return // tried again with the next base
		}
		l.old = l.old[1:]
	}
}

// Close releases the log. What was appended stays; nothing is written.
func (l *Log) Close() error {
	var errs []error
	if l.cur != nil {
		errs = append(errs, l.cur.Close())
		l.cur = nil
	}
	l.dropSpare()
	if l.unlock != nil {
		errs = append(errs, l.unlock())
		l.unlock = nil
	}
	return errors.Join(errs...)
}

// Hard is the hard state as written.
func (l *Log) Hard() *raftpb.HardState { return l.hard }
