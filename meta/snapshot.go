package meta

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A snapshot is the pairs of one version in key order:
//
//	header  "rdmcsnap" | format, 1 byte | index, 8 bytes | CRC32C of all that, 4 bytes
//	frame   length, 4 bytes | CRC32C of the payload, 4 bytes | payload: pairs
//	pair    key length, uvarint | key | value length, uvarint | value
//	end     a frame of length 0 whose CRC32C is that of the count of pairs, 8 bytes, which follows
//
// The head among the pairs carries the digest of all others, which a restore recomputes.
const (
	snapshotMagic  = "rdmcsnap"
	snapshotFormat = 1
	snapshotHeader = 8 + 1 + 8 + 4
	frameHeadBytes = 4 + 4
	frameBytes     = 256 << 10 // a frame ends when it has reached this
	frameMax       = 4 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// codeSnapshotHead lists the fields of a snapshot's header.
func codeSnapshotHead(c *fields, index *uint64) {
	mark := c.Mark()
	c.Magic(snapshotMagic)
	c.Same8("format", snapshotFormat)
	c.U64(index)
	c.Sum(mark)
}

// frameHead is what stands before the payload of a frame.
type frameHead struct{ length, sum uint32 }

func (h *frameHead) code(c *fields) {
	c.U32(&h.length)
	c.U32(&h.sum)
}

func (w *kvWrite) code(c *fields) {
	c.bytes(&w.key)
	c.bytes(&w.value)
}

// ErrSnapshot is returned by Restore for a stream that is damaged, cut short, or older than the state it would replace.
var ErrSnapshot = errors.New("meta: bad snapshot")

// snapshot streams one version. It is pulled by its reader; between reads it holds nothing but the version.
type snapshot struct {
	*pin
	cur   kvCursor
	buf   []byte // what Read has not given out yet
	count uint64
	ended bool
	err   error
}

// Snapshot streams the whole state at the current index, while apply goes on. The reader must be closed; when the
// database is closed or restored meanwhile, it fails with ErrClosed.
func (db *DB) Snapshot() (io.ReadCloser, uint64, error) {
	db.life.RLock()
	defer db.life.RUnlock()
	p, err := pinned(db)
	if err != nil {
		return nil, 0, err
	}
	s := &snapshot{pin: p, cur: p.view.scan(nil, nil)}
	p.before = s.cur.close
	c := writer(make([]byte, 0, snapshotHeader))
	index := p.index()
	codeSnapshotHead(c, &index)
	s.buf = c.Written()
	return s, index, nil
}

// Read gives out the next bytes.
func (s *snapshot) Read(p []byte) (int, error) {
	n, state, err := s.read(p)
	metDamage(s.db, state, err)
	return n, err
}

// read is Read, and returns the number of the state that it read.
func (s *snapshot) read(p []byte) (n int, state uint64, err error) {
	s.db.life.RLock()
	defer s.db.life.RUnlock()
	if len(s.buf) == 0 && s.err == nil {
		s.err = s.frame()
	}
	if len(s.buf) == 0 {
		return 0, s.db.State(), s.err
	}
	n = copy(p, s.buf)
	s.buf = s.buf[n:]
	return n, 0, nil
}

// frame fills buf with the next frame.
func (s *snapshot) frame() error {
	if s.view == nil {
		return ErrClosed
	}
	if s.ended {
		return io.EOF
	}
	c := writer(make([]byte, frameHeadBytes, frameBytes+frameBytes/4))
	for len(c.Written()) < frameBytes && s.cur.next() {
		value, err := s.cur.value()
		if err != nil {
			return fmt.Errorf("meta: snapshot key %x: %w", s.cur.key(), err)
		}
		w := kvWrite{s.cur.key(), value}
		w.code(c)
		s.count++
	}
	if err := s.cur.sure(); err != nil {
		return fmt.Errorf("meta: snapshot: %w", err)
	}
	head := frameHead{length: uint32(len(c.Written()) - frameHeadBytes)}
	if head.length == 0 {
		s.ended = true
		c.U64(&s.count)
	}
	s.buf = c.Written()
	head.sum = crc32.Checksum(s.buf[frameHeadBytes:], castagnoli)
	head.code(writer(s.buf[:0]))
	return nil
}

// Restore replaces the state by a snapshot that is not older. It switches to the snapshot only when all of it is there,
// checked and durable. Until then the old state serves, and it stays if anything fails.
func (db *DB) Restore(r io.Reader) error {
	in, err := newSnapshotReader(r)
	if err != nil {
		return err
	}
	if index := db.Index(); in.index < index {
		return fmt.Errorf("meta: restore: snapshot of index %d, state of %d: %w", in.index, index, ErrSnapshot)
	}
	fresh, drop, err := db.freshStore()
	if err != nil {
		return fmt.Errorf("meta: restore: %w", err)
	}
	v, err := in.fill(fresh, db.disk)
	if err == nil {
		err = db.opts.raise(&db.cur.Load().head, &v.head)
	}
	if err == nil {
		err = fresh.sync(in.index)
	}
	if err == nil {
		err = db.switchTo(fresh, v)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("meta: restore: %w", err), drop())
	}
	return nil
}

// freshStore makes an empty store beside the present one; drop removes it again.
func (db *DB) freshStore() (s kvStore, drop func() error, err error) {
	if db.layout == nil {
		return newMemoryStore(), func() error { return nil }, nil
	}
	return db.layout.fresh(db.opts)
}

// switchTo makes a filled store the one in use, for good, and closes the old one.
func (db *DB) switchTo(fresh kvStore, v *version) error {
	db.life.Lock()
	defer db.life.Unlock()
	if db.closed {
		return ErrClosed
	}
	old, oldNum := db.store, 0
	if db.layout != nil {
		oldNum = db.layout.num
		if err := db.layout.use(oldNum + 1); err != nil {
			return err
		}
	}
	abandonPins(db)
	db.distrust.Store(nil)
	db.restores.Add(1)
	db.store = fresh
	db.publishVersion(v)
	db.synced.Store(v.head.Index)
	db.oldest.Store(v.head.Index)
	err := old.close()
	if db.layout != nil {
		err = errors.Join(err, db.layout.drop(oldNum))
		if db.disk != nil {
			err = errors.Join(err, db.disk.prepare(db.layout.path(db.layout.num), true))
			err = errors.Join(err, db.disk.opened())
		}
	}
	if err != nil && db.opts.Log != nil {
		db.opts.Log.Warn("meta: restore: cleaning up after the switch", "err", err) // the new state stands
	}
	return nil
}

// snapshotReader decodes a snapshot.
type snapshotReader struct {
	in    io.Reader
	index uint64
	count uint64
}

func newSnapshotReader(r io.Reader) (*snapshotReader, error) {
	var b [snapshotHeader]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, fmt.Errorf("meta: restore: header: %w: %w", ErrSnapshot, err)
	}
	s := &snapshotReader{in: r}
	c := reader(b[:])
	if codeSnapshotHead(c, &s.index); c.Finish() != nil {
		return nil, fmt.Errorf("meta: restore: header: %w: %w", ErrSnapshot, c.Err())
	}
	return s, nil
}

// fill writes all pairs into a store at the snapshot's index and checks the digest.
func (r *snapshotReader) fill(s kvStore, d *disk) (*version, error) {
	var sum sum128
	var last []byte
	for {
		pairs, err := r.frame()
		if err != nil {
			return nil, err
		}
		if pairs == nil {
			break
		}
		for _, p := range pairs {
			if bytes.Compare(last, p.key) >= 0 {
				return nil, fmt.Errorf("key %x after %x: %w", p.key, last, ErrSnapshot)
			}
			last = p.key
			if !bytes.Equal(p.key, headKey) {
				sum.add(hashPair(p.key, p.value))
			}
		}
		if err := d.roomFor(frameMax); err != nil {
			return nil, err
		}
		if err := s.commit(r.index, pairs); err != nil {
			return nil, err
		}
	}
	v, err := loadVersion(s, r.index)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	if v.head.Sum != sum {
		return nil, fmt.Errorf("digest differs: %w", ErrSnapshot)
	}
	return v, nil
}

// frame reads one frame; nil pairs are the end.
func (r *snapshotReader) frame() ([]kvWrite, error) {
	var b [frameHeadBytes]byte
	if _, err := io.ReadFull(r.in, b[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	var h frameHead
	h.code(reader(b[:]))
	n := int(h.length)
	end := n == 0
	if end {
		n = 8
	}
	if n > frameMax {
		return nil, fmt.Errorf("frame of %d bytes: %w", n, ErrSnapshot)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r.in, payload); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	if crc32.Checksum(payload, castagnoli) != h.sum {
		return nil, fmt.Errorf("checksum differs: %w", ErrSnapshot)
	}
	if end {
		if count := keyNumber(payload, 0); count != r.count {
			return nil, fmt.Errorf("%d pairs, end says %d: %w", r.count, count, ErrSnapshot)
		}
		return nil, nil
	}
	pairs, err := decodePairs(payload)
	r.count += uint64(len(pairs))
	return pairs, err
}

// decodePairs reads the payload of a frame, at least one pair.
func decodePairs(payload []byte) ([]kvWrite, error) {
	c := reader(payload)
	var out []kvWrite
	for c.Left() > 0 {
		var w kvWrite
		if w.code(c); len(w.key) == 0 || len(w.value) == 0 {
			c.Fail("an empty key or value")
		}
		out = append(out, w)
	}
	if c.Finish() != nil || len(out) == 0 {
		return nil, fmt.Errorf("pairs: %w", ErrSnapshot)
	}
	return out, nil
}
