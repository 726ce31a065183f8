package content

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Origin says what staged bytes belong to, for the listing after a crash.
type Origin struct {
	Ino         uint64
	Parent      uint64 // inode of the directory it was opened in, a hint
	Name        string // its name there, a hint; at most 255 bytes
	Node        uint32
	Incarnation uint32 // of the writer
}

// Staging is a file that takes the writes of an open file until they are published. It has a name in the
// store, so that its bytes are found again if the daemon dies while applications go on writing to it.
type Staging struct {
	s       *Store
	token   uint64
	created time.Time
	file    *os.File
	journal *os.File // the .stage file: what changed in an overlay; nil where the tag of the file says all
	noted   int64    // bytes of whole records in it
	torn    bool     // others may follow

	clone    ID     // what the file was cloned from; zero if it was not
	cloneRot uint32 // of that, then

	mu     sync.Mutex
	origin Origin
	closed bool
}

// stagingBook numbers the staging files.
type stagingBook struct {
	mu     sync.Mutex
	next   uint64
	open   map[uint64]bool
	spare  []uint64      // empty files, see Staging.Recycle
	bases  map[uint64]ID // of the overlays, open or not; guarded by Store.mu
	noTag  bool          // the file system keeps no attributes: all that is staged gets a .stage file
	closed bool
}

// NewStaging makes an empty staging file.
func (s *Store) NewStaging(origin Origin) (*Staging, error) {
	return s.newStaging(stageHead{origin: origin})
}

func (s *Store) newStaging(head stageHead) (*Staging, error) {
	if len(head.origin.Name) > nameBytesMax {
		return nil, fmt.Errorf("content: stage inode %d: name of %d bytes: %w", head.origin.Ino, len(head.origin.Name), ErrShape)
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	token, spare := s.stage.take(head.base.IsZero())
	s.needBase(token, head.base)
	head.created = time.Now()
	st := &Staging{s: s, token: token, origin: head.origin, created: head.created}
	if err := st.create(head, spare); err != nil {
		err = errors.Join(err, st.Drop())
		return nil, fmt.Errorf("content: stage inode %d: %w", head.origin.Ino, noSpace(err))
	}
	return st, nil
}

// take gives a token, one with an empty file if that will do and there is one.
func (b *stagingBook) take(plain bool) (token uint64, spare bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = make(map[uint64]bool)
	}
	if n := len(b.spare); plain && n > 0 {
		token, b.spare, spare = b.spare[n-1], b.spare[:n-1], true
	} else {
		b.next++
		token = b.next
	}
	b.open[token] = true
	return token, spare
}

func (b *stagingBook) giveBack(token uint64) {
	b.mu.Lock()
	delete(b.open, token)
	b.mu.Unlock()
}

func (b *stagingBook) isOpen(token uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open[token]
}

func (s *Store) stagePath(token uint64, suffix string) string {
	return filepath.Join(s.dir, "staging", fmt.Sprintf("%016x", token)+suffix)
}

// create makes the file with its description. Nothing is staged before it has one.
func (st *Staging) create(head stageHead, spare bool) (err error) {
	path, flag := st.s.stagePath(st.token, ".file"), os.O_RDWR
	if !spare {
		flag |= os.O_CREATE | os.O_EXCL
	}
	if !head.base.IsZero() || st.s.stage.withoutTags() {
		if err := st.createJournal(head); err != nil {
			return err
		}
		st.file, err = openFile(path, flag)
		return err
	}
	if st.file, err = openFile(path, flag); err != nil {
		return err
	}
	if spare {
		err = freshTimes(st.file)
	}
	if err == nil {
		err = setTag(st.file, appendTag(nil, &head))
	}
	if errors.Is(err, errNoTags) {
		st.s.stage.setWithoutTags()
		err = st.createJournal(head)
	}
	return err
}

// createJournal makes the .stage file.
func (st *Staging) createJournal(head stageHead) (err error) {
	st.journal, err = openFile(st.s.stagePath(st.token, ".stage"), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND)
	if err != nil {
		return err
	}
	return st.note(appendRecord(nil, recordHead, head.append(nil)))
}

// note appends a record to the .stage file. What an earlier one that failed has left is taken back first: nothing
// behind it would be read.
func (st *Staging) note(record []byte) error {
	if st.torn {
		if err := st.journal.Truncate(st.noted); err != nil {
			return err
		}
		st.torn = false
	}
	if _, err := st.journal.Write(record); err != nil {
		st.torn = true
		return err
	}
	st.noted += int64(len(record))
	return nil
}

// File is the staging file, for passthrough and for reading back. It belongs to the Staging.
func (st *Staging) File() *os.File { return st.file }

// Origin is what the bytes belong to.
func (st *Staging) Origin() Origin {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.origin
}

// SetOrigin notes what the bytes belong to from now on, as if they had been staged for that.
func (st *Staging) SetOrigin(origin Origin) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return fmt.Errorf("content: staged inode %d is now %d: %w", st.origin.Ino, origin.Ino, ErrClosed)
	}
	var err error
	head := stageHead{origin: origin, created: st.created}
	if st.journal != nil {
		err = st.note(appendRecord(nil, recordHead, head.append(nil)))
	} else {
		err = setTag(st.file, appendTag(nil, &head))
	}
	if err != nil {
		return fmt.Errorf("content: staged inode %d is now %d: %w", st.origin.Ino, origin.Ino, noSpace(err))
	}
	st.origin = origin
	return nil
}

// Drop removes the staged bytes: they are published, or not wanted.
func (st *Staging) Drop() error {
	if !st.close() {
		return nil
	}
	err := st.closeFiles()
	if st.journal != nil || st.file == nil {
		err = errors.Join(err, st.s.unlink(st.s.stagePath(st.token, ".file")), st.s.unlink(st.s.stagePath(st.token, ".stage")))
	} else {
		err = errors.Join(err, st.s.unlink(st.s.stagePath(st.token, ".file")))
	}
	err = errors.Join(err, st.s.dropBase(st.token))
	st.s.stage.giveBack(st.token)
	st.s.leave()
	return err
}

// Close lets go of the files and leaves them to be listed by [Store.Stagings].
func (st *Staging) Close() error {
	if !st.close() {
		return nil
	}
	err := st.closeFiles()
	st.s.stage.giveBack(st.token)
	st.s.leave()
	return err
}

// KeepUnpublished makes the staged bytes durable, notes why they were not published, and closes the Staging.
func (st *Staging) KeepUnpublished(reason string) error {
	var err error
	if st.journal == nil {
		err = st.createJournal(stageHead{origin: st.origin, created: st.created})
	}
	if err == nil {
		err = st.note(appendRecord(nil, recordReason, []byte(reason[:min(len(reason), reasonBytesMax)])))
	}
	err = errors.Join(err, st.s.syncFile(st.file)) // the bytes stay also where the reason finds no room
	if st.journal != nil {
		err = errors.Join(err, st.s.syncFile(st.journal))
	}
	if err = errors.Join(err, st.s.syncDir(filepath.Join(st.s.dir, "staging"))); err != nil {
		err = fmt.Errorf("content: keep staged inode %d: %w", st.origin.Ino, err)
	}
	return errors.Join(err, st.Close())
}

// close takes the right to end the Staging.
func (st *Staging) close() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return false
	}
	st.closed = true
	return true
}

func (st *Staging) closeFiles() error {
	var errs error
	for _, f := range []*os.File{st.file, st.journal} {
		if f != nil {
			errs = errors.Join(errs, f.Close())
		}
	}
	return errs
}

// Unpublished describes staged bytes.
type Unpublished struct {
	Token    uint64
	Origin   Origin
	Created  time.Time
	Modified time.Time // of the bytes
	Size     int64
	Base     ID     // overlays: the content below
	Reason   string // given to KeepUnpublished, or "" after a crash
	Open     bool   // a Staging has it now
	Damaged  bool   // its description can't be read; the bytes are there
}

// Stagings lists all staged bytes, open ones too, by age of their token.
func (s *Store) Stagings() ([]Unpublished, error) {
	return s.stagings(func(uint64) bool { return true })
}

// Unused lists the staged bytes that no Staging has, by age of their token. Unlike [Store.Stagings] it does not read
// what is known of the others, which may be much of an overlay that is being written.
func (s *Store) Unused() ([]Unpublished, error) {
	return s.stagings(func(token uint64) bool { return !s.stage.isOpen(token) })
}

// stagings lists those of some tokens.
func (s *Store) stagings(asked func(token uint64) bool) ([]Unpublished, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	tokens, err := s.stageTokens()
	if err != nil {
		return nil, fmt.Errorf("content: list staging: %w", err)
	}
	var list []Unpublished
	for _, token := range tokens {
		if s.stage.isSpare(token) || !asked(token) {
			continue
		}
		if u, ok := s.describe(token); ok {
			list = append(list, u)
		}
	}
	return list, nil
}

// stageTokens lists the tokens that have a file, in order.
func (s *Store) stageTokens() ([]uint64, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "staging")) // sorted by name
	if err != nil {
		return nil, err
	}
	var tokens []uint64
	for _, e := range entries {
		hex, ok := strings.CutSuffix(e.Name(), ".file")
		if token, err := strconv.ParseUint(hex, 16, 64); ok && err == nil && len(hex) == 16 {
			tokens = append(tokens, token)
		}
	}
	return tokens, nil
}

// describe reads what is known of a staging; ok is false if it went away meanwhile.
func (s *Store) describe(token uint64) (u Unpublished, ok bool) {
	st, err := os.Stat(s.stagePath(token, ".file"))
	if err != nil {
		return u, false
	}
	u = Unpublished{Token: token, Modified: st.ModTime(), Size: st.Size(), Open: s.stage.isOpen(token)}
	log, err := s.readDescription(token)
	if err != nil {
		u.Damaged = true
		return u, true
	}
	u.Origin, u.Created, u.Base, u.Reason = log.head.origin, log.head.created, log.head.base, log.reason
	if !u.Base.IsZero() {
		u.Size = log.size
	}
	return u, true
}

// OpenStaging takes staged bytes up again, to publish or drop them; an overlay's by [Store.OpenOverlay].
func (s *Store) OpenStaging(token uint64) (*Staging, error) {
	st, log, err := s.reopenStaging(token)
	if err != nil {
		return nil, err
	}
	if !log.head.base.IsZero() {
		return nil, errors.Join(fmt.Errorf("content: open staging %x: it is an overlay: %w", token, ErrShape), st.Close())
	}
	return st, nil
}

func (s *Store) reopenStaging(token uint64) (*Staging, stageLog, error) {
	if err := s.enter(); err != nil {
		return nil, stageLog{}, err
	}
	s.stage.mu.Lock()
	busy := s.stage.open[token]
	if !busy {
		s.stage.open[token] = true
	}
	s.stage.mu.Unlock()
	if busy {
		s.leave()
		return nil, stageLog{}, fmt.Errorf("content: open staging %x: %w", token, ErrBusy)
	}
	st := &Staging{s: s, token: token}
	log, err := st.reopen()
	if err != nil {
		return nil, log, errors.Join(fmt.Errorf("content: open staging %x: %w", token, err), st.Close())
	}
	return st, log, nil
}

func (st *Staging) reopen() (log stageLog, err error) {
	path := st.s.stagePath(st.token, ".stage")
	st.file, err = openFile(st.s.stagePath(st.token, ".file"), os.O_RDWR)
	if errors.Is(err, os.ErrNotExist) {
		return log, ErrNotFound
	}
	if err != nil {
		return log, err
	}
	if log, err = st.s.readDescription(st.token); err != nil {
		return log, err
	}
	st.origin, st.created = log.head.origin, log.head.created
	if log.tagged {
		return log, st.s.unlink(path)
	}
	if st.journal, err = openFile(path, os.O_RDWR|os.O_APPEND); err != nil {
		return log, err
	}
	st.noted = log.whole
	return log, st.journal.Truncate(log.whole) // drop a torn last record before others follow it
}

// readDescription reads what is known of a staging: from its .stage file, or else from the tag of its file, which is
// older.
func (s *Store) readDescription(token uint64) (stageLog, error) {
	log, err := readStage(s.stagePath(token, ".stage"))
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, ErrCorrupt) {
		return log, err
	}
	tag, tagErr := readTag(s.stagePath(token, ".file"))
	if tagErr != nil {
		return log, errors.Join(err, tagErr)
	}
	log.head, err = decodeTag(tag)
	log.tagged = err == nil
	return log, err
}

// DropStaging removes staged bytes that are not open, whatever their state.
func (s *Store) DropStaging(token uint64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.stage.isOpen(token) {
		return fmt.Errorf("content: drop staging %x: %w", token, ErrBusy)
	}
	return errors.Join(s.unlink(s.stagePath(token, ".file")), s.unlink(s.stagePath(token, ".stage")), s.dropBase(token))
}

// needBase keeps the base of an overlay for as long as its staged bytes are there: they are nothing without it.
func (s *Store) needBase(token uint64, base ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.index[base]; e != nil {
		e.deps++
		s.stage.bases[token] = base
	}
}

// dropBase undoes needBase.
func (s *Store) dropBase(token uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	base, ok := s.stage.bases[token]
	if !ok {
		return nil
	}
	delete(s.stage.bases, token)
	if e := s.index[base]; e != nil {
		e.deps--
	}
	return s.reapLocked(base)
}

// recoverStaging finds the next token and the bases of overlays, and removes descriptions whose bytes are gone and
// files that nothing was staged in.
func (s *Store) recoverStaging() error {
	s.stage.open = make(map[uint64]bool)
	s.stage.bases = make(map[uint64]ID)
	entries, err := os.ReadDir(filepath.Join(s.dir, "staging"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		hex, suffix, _ := strings.Cut(e.Name(), ".")
		token, err := strconv.ParseUint(hex, 16, 64)
		if err != nil {
			continue
		}
		s.stage.next = max(s.stage.next, token)
		switch suffix {
		case "stage":
			if err = s.dropWithout(token, ".stage", ".file"); err == nil {
				s.needBase(token, readBase(s.stagePath(token, ".stage")))
			}
		case "file":
			if info, statErr := e.Info(); statErr == nil && info.Size() == 0 {
				err = s.dropWithout(token, ".file", ".stage")
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dropWithout removes one file of a staging if the other is not there.
func (s *Store) dropWithout(token uint64, drop, without string) error {
	if _, err := os.Stat(s.stagePath(token, without)); !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return s.unlink(s.stagePath(token, drop))
}
