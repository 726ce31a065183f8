package content

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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
	s       *stagings
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

// stagings are the files of a store that bytes are staged in, open or left by a crash. It numbers them.
type stagings struct {
	index *index // keeps the bases of overlays
	files *storeFiles
	clone func(dst, src *os.File) error // Options.Clone, never nil

	mu     sync.Mutex
	next   uint64
	open   map[uint64]bool
	failed map[uint64]string // Staging.Refuse: why, also where the disk does not take the note either
	spare  []uint64          // empty files, see Staging.Recycle
	noTag  bool              // the file system keeps no attributes: all that is staged gets a .stage file
	closed bool
}

// NewStaging makes an empty staging file.
func (s *Store) NewStaging(origin Origin) (*Staging, error) {
	return s.staging.create(stageHead{origin: origin}, "")
}

// create stages in a file that has another name at path, or if path is empty in an empty one.
func (b *stagings) create(head stageHead, path string) (*Staging, error) {
	if len(head.origin.Name) > nameBytesMax {
		return nil, fmt.Errorf("content: stage inode %d: name of %d bytes: %w", head.origin.Ino, len(head.origin.Name),
			ErrShape)
	}
	if err := b.index.enter(); err != nil {
		return nil, err
	}
	token, there := b.take(path == "" && head.base.IsZero())
	b.index.needBase(token, head.base)
	head.created = time.Now()
	st := &Staging{s: b, token: token, origin: head.origin, created: head.created}
	var err error
	if path != "" {
		there, err = true, os.Link(path, b.files.stagePath(token, ".file"))
	}
	if err == nil {
		err = st.create(head, there)
	}
	if err != nil {
		err = errors.Join(err, st.Drop())
		return nil, fmt.Errorf("content: stage inode %d: %w", head.origin.Ino, noSpace(err))
	}
	return st, nil
}

// take returns a token, one with an empty file if the caller accepts that and there is one.
func (b *stagings) take(plain bool) (token uint64, spare bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.spare); plain && n > 0 {
		token, b.spare, spare = b.spare[n-1], b.spare[:n-1], true
	} else {
		b.next++
		token = b.next
	}
	b.open[token] = true
	return token, spare
}

func (b *stagings) giveBack(token uint64) {
	b.mu.Lock()
	delete(b.open, token)
	b.mu.Unlock()
}

// fail notes what the disk said when it did not take bytes; "" forgets it.
func (b *stagings) fail(token uint64, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if why == "" {
		delete(b.failed, token)
		return
	}
	if b.failed == nil {
		b.failed = map[uint64]string{}
	}
	b.failed[token] = why
}

func (b *stagings) failure(token uint64) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed[token]
}

func (b *stagings) isOpen(token uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open[token]
}

func (sf *storeFiles) stagePath(token uint64, suffix string) string {
	return filepath.Join(sf.dir, "staging", fmt.Sprintf("%016x", token)+suffix)
}

// create makes the file, if it is not there, and its description. Nothing is staged before it has one.
func (st *Staging) create(head stageHead, there bool) (err error) {
	path, flag := st.s.files.stagePath(st.token, ".file"), os.O_RDWR
	if !there {
		flag |= os.O_CREATE | os.O_EXCL
	}
	if !head.base.IsZero() || st.s.withoutTags() {
		if err := st.createJournal(head); err != nil {
			return err
		}
		st.file, err = openFile(path, flag)
		return err
	}
	if st.file, err = openFile(path, flag); err != nil {
		return err
	}
	if there {
		err = freshTimes(st.file)
	}
	if err == nil {
		err = setTag(st.file, appendTag(nil, &head))
	}
	if errors.Is(err, errNoTags) {
		st.s.setWithoutTags()
		err = st.createJournal(head)
	}
	return err
}

// createJournal makes the .stage file.
func (st *Staging) createJournal(head stageHead) (err error) {
	st.journal, err = openFile(st.s.files.stagePath(st.token, ".stage"), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND)
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
		err = errors.Join(err, st.s.files.unlink(st.s.files.stagePath(st.token, ".file")),
			st.s.files.unlink(st.s.files.stagePath(st.token, ".stage")))
	} else {
		err = errors.Join(err, st.s.files.unlink(st.s.files.stagePath(st.token, ".file")))
	}
	err = errors.Join(err, st.s.index.dropBase(st.token))
	st.s.fail(st.token, "")
	st.s.giveBack(st.token)
	st.s.index.leave()
	return err
}

// Close lets go of the files and leaves them to be listed by [Store.Stagings].
func (st *Staging) Close() error {
	if !st.close() {
		return nil
	}
	err := st.closeFiles()
	st.s.giveBack(st.token)
	st.s.index.leave()
	return err
}

// KeepUnpublished makes the staged bytes durable, notes why they were not published, and closes the Staging.
func (st *Staging) KeepUnpublished(reason string) error {
	err := st.noteText(recordReason, reason)
	if taken := st.s.files.sync(st.file); taken != nil { // the bytes stay also where the reason finds no room
		err = errors.Join(err, taken, st.Refuse(taken))
	}
	if st.journal != nil {
		err = errors.Join(err, st.s.files.sync(st.journal))
	}
	if err = errors.Join(err, st.s.files.syncDir(filepath.Join(st.s.files.dir, "staging"))); err != nil {
		err = fmt.Errorf("content: keep staged inode %d: %w", st.origin.Ino, err)
	}
	return errors.Join(err, st.Close())
}

// Refuse notes that the disk has not taken some of the bytes. The kernel reports that only once, and may afterwards
// read what was on the disk before. So nobody uses the bytes any more.
func (st *Staging) Refuse(why error) error {
	st.s.fail(st.token, why.Error())
	if err := st.noteText(recordRefused, why.Error()); err != nil {
		return fmt.Errorf("content: note that the disk refused staged inode %d: %w", st.origin.Ino, err)
	}
	return st.s.files.sync(st.journal)
}

// noteText appends a record with a text to the .stage file, which is made if there is none.
func (st *Staging) noteText(kind byte, text string) error {
	if st.journal == nil {
		if err := st.createJournal(stageHead{origin: st.origin, created: st.created}); err != nil {
			return err
		}
	}
	return st.note(appendRecord(nil, kind, []byte(text[:min(len(text), reasonBytesMax)])))
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
	return s.staging.list(func(uint64) bool { return true })
}

// Unused lists the staged bytes that no Staging has, by age of their token. Unlike [Store.Stagings] it does not read
// what is known of the others, which may be much of an overlay that is being written.
func (s *Store) Unused() ([]Unpublished, error) {
	return s.staging.list(func(token uint64) bool { return !s.staging.isOpen(token) })
}

// list lists those of some tokens.
func (b *stagings) list(asked func(token uint64) bool) ([]Unpublished, error) {
	if err := b.index.enter(); err != nil {
		return nil, err
	}
	defer b.index.leave()
	tokens, err := b.tokens()
	if err != nil {
		return nil, fmt.Errorf("content: list staging: %w", err)
	}
	var list []Unpublished
	for _, token := range tokens {
		if b.isSpare(token) || !asked(token) {
			continue
		}
		if u, ok := b.describe(token); ok {
			list = append(list, u)
		}
	}
	return list, nil
}

// tokens lists the tokens that have a file, in order.
func (b *stagings) tokens() ([]uint64, error) {
	entries, err := os.ReadDir(filepath.Join(b.files.dir, "staging")) // sorted by name
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
func (b *stagings) describe(token uint64) (u Unpublished, ok bool) {
	st, err := os.Stat(b.files.stagePath(token, ".file"))
	if err != nil {
		return u, false
	}
	u = Unpublished{Token: token, Modified: st.ModTime(), Size: st.Size(), Open: b.isOpen(token)}
	log, err := b.readDescription(token)
	if err != nil {
		u.Damaged = true
		return u, true
	}
	u.Origin, u.Created, u.Base, u.Reason = log.head.origin, log.head.created, log.head.base, log.reason
	if why := cmp.Or(log.refused, b.failure(token)); why != "" {
		u.Reason = strings.TrimPrefix(u.Reason+"; the disk has not taken all of the bytes: "+why, "; ")
	}
	if !u.Base.IsZero() {
		u.Size = log.size
	}
	return u, true
}

// OpenStaging takes staged bytes up again, to publish or drop them; an overlay's by [Store.OpenOverlay]. ErrRefused:
// the disk has not taken all of them, and nobody knows what is read in their place.
func (s *Store) OpenStaging(token uint64) (*Staging, error) {
	st, log, err := s.staging.reopen(token)
	if err != nil {
		return nil, err
	}
	if !log.head.base.IsZero() {
		return nil, errors.Join(fmt.Errorf("content: open staging %x: it is an overlay: %w", token, ErrShape), st.Close())
	}
	return st, nil
}

func (b *stagings) reopen(token uint64) (*Staging, stageLog, error) {
	if err := b.index.enter(); err != nil {
		return nil, stageLog{}, err
	}
	b.mu.Lock()
	busy := b.open[token]
	if !busy {
		b.open[token] = true
	}
	b.mu.Unlock()
	if busy {
		b.index.leave()
		return nil, stageLog{}, fmt.Errorf("content: open staging %x: %w", token, ErrBusy)
	}
	st := &Staging{s: b, token: token}
	log, err := st.reopen()
	if err != nil {
		return nil, log, errors.Join(fmt.Errorf("content: open staging %x: %w", token, err), st.Close())
	}
	return st, log, nil
}

func (st *Staging) reopen() (log stageLog, err error) {
	path := st.s.files.stagePath(st.token, ".stage")
	st.file, err = openFile(st.s.files.stagePath(st.token, ".file"), os.O_RDWR)
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
	log.refused = cmp.Or(log.refused, st.s.failure(st.token))
	if log.refused != "" {
		return log, fmt.Errorf("%w: %w: %s", ErrRefused, unix.EIO, log.refused)
	}
	if log.tagged {
		return log, st.s.files.unlink(path)
	}
	if st.journal, err = openFile(path, os.O_RDWR|os.O_APPEND); err != nil {
		return log, err
	}
	st.noted = log.whole
	return log, st.journal.Truncate(log.whole) // drop a torn last record before others follow it
}

// readDescription reads what is known of a staging: from its .stage file, or else from the tag of its file, which is
// older.
func (b *stagings) readDescription(token uint64) (stageLog, error) {
	log, err := readStage(b.files.stagePath(token, ".stage"))
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, ErrCorrupt) {
		return log, err
	}
	tag, tagErr := readTag(b.files.stagePath(token, ".file"))
	if tagErr != nil {
		return log, errors.Join(err, tagErr)
	}
	log.head, err = decodeTag(tag)
	log.tagged = err == nil
	return log, err
}

// DropStaging removes staged bytes that are not open, whatever their state.
func (s *Store) DropStaging(token uint64) error { return s.staging.drop(token) }

func (b *stagings) drop(token uint64) error {
	if err := b.index.enter(); err != nil {
		return err
	}
	defer b.index.leave()
	if b.isOpen(token) {
		return fmt.Errorf("content: drop staging %x: %w", token, ErrBusy)
	}
	b.fail(token, "")
	return errors.Join(b.files.unlink(b.files.stagePath(token, ".file")),
		b.files.unlink(b.files.stagePath(token, ".stage")), b.index.dropBase(token))
}

// recover finds the next token and the bases of overlays, and removes descriptions whose bytes are gone and
// files that nothing was staged in, among them the ones that are data files of contents.
func (b *stagings) recover() error {
	entries, err := os.ReadDir(filepath.Join(b.files.dir, "staging"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		hex, suffix, _ := strings.Cut(e.Name(), ".")
		token, err := strconv.ParseUint(hex, 16, 64)
		if err != nil {
			continue
		}
		b.next = max(b.next, token)
		switch suffix {
		case "stage":
			if err = b.dropWithout(token, ".stage", ".file"); err == nil {
				b.index.needBase(token, readBase(b.files.stagePath(token, ".stage")))
			}
		case "file":
			if info, statErr := e.Info(); statErr == nil && info.Size() == 0 {
				err = b.dropWithout(token, ".file", ".stage")
			} else if b.isContent(token) {
				err = errors.Join(b.files.unlink(b.files.stagePath(token, ".file")),
					b.files.unlink(b.files.stagePath(token, ".stage")))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isContent reports whether a staged file still is the data file of a content: see Store.StepAside. Other names of it
// say nothing: whoever copies the directory may make links.
func (b *stagings) isContent(token uint64) bool {
	var st, other unix.Stat_t
	if unix.Stat(b.files.stagePath(token, ".file"), &st) != nil || st.Nlink < 2 {
		return false
	}
	paths, _ := filepath.Glob(filepath.Join(b.files.dir, "held", "*", "*"+suffixData)) // the pattern is a good one
	for _, path := range paths {
		if unix.Stat(path, &other) == nil && other.Dev == st.Dev && other.Ino == st.Ino {
			return true
		}
	}
	return false
}

// dropWithout removes one file of a staging if the other is not there.
func (b *stagings) dropWithout(token uint64, drop, without string) error {
	if _, err := os.Stat(b.files.stagePath(token, without)); !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return b.files.unlink(b.files.stagePath(token, drop))
}
