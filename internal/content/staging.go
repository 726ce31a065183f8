package content

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	// Over is the content that the bytes were written over: what they were made from, or were published as last. It is
	// zero if that was an empty file, or is not known.
	Over ID
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
	overEnd int64    // where the last record of what was written over ends

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
	failed map[uint64]string     // Staging.Refuse: why, also where the disk does not take the note either
	same   map[uint64]stagedMark // how files looked that hold what is published, and that somebody may still write
	spare  []uint64              // empty files, see Staging.Recycle
	noTag  bool                  // the file system keeps no attributes: all that is staged gets a .stage file
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
	if !head.base.IsZero() {
		head.origin.Over = head.base
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

// createJournal makes the .stage file. One that has no room for its head goes again: what is noted later begins anew.
func (st *Staging) createJournal(head stageHead) (err error) {
	path := st.s.files.stagePath(st.token, ".stage")
	st.journal, err = openFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND)
	if err != nil {
		return err
	}
	if err = st.note(appendRecord(nil, recordHead, head.append(nil))); err != nil {
		err = errors.Join(err, st.journal.Close(), st.s.files.unlink(path))
		st.journal, st.torn = nil, false
		return err
	}
	if head.origin.Over == head.base {
		return nil
	}
	return st.noteOver(head.origin.Over)
}

// noteOver appends a record, in place of the last one if that is of its kind: a program may call fsync very often.
func (st *Staging) noteOver(over ID) error {
	record := overRecord(over)
	if st.overEnd > 0 && st.overEnd == st.noted {
		st.noted, st.torn = st.noted-int64(len(record)), true
	}
	if err := st.note(record); err != nil {
		return err
	}
	st.overEnd = st.noted
	return nil
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

// SetOver notes that the bytes are those of a content, or were when its publish began: see [Origin]. It does not touch
// the file, whose times show what programs write.
func (st *Staging) SetOver(over ID) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.closed:
		return fmt.Errorf("content: staged inode %d is %s: %w", st.origin.Ino, over, ErrClosed)
	case st.origin.Over == over:
		return nil
	}
	var err error
	if st.journal != nil {
		err = st.noteOver(over)
	} else {
		head := stageHead{origin: st.origin, created: st.created}
		head.origin.Over = over
		err = st.createJournal(head)
	}
	if err != nil {
		return fmt.Errorf("content: staged inode %d is %s: %w", st.origin.Ino, over, noSpace(err))
	}
	st.origin.Over = over
	return nil
}

// SetOrigin notes what the bytes belong to from now on, as if they had been staged for that. What they were written
// over stays.
func (st *Staging) SetOrigin(origin Origin) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return fmt.Errorf("content: staged inode %d is now %d: %w", st.origin.Ino, origin.Ino, ErrClosed)
	}
	var err error
	origin.Over = st.origin.Over
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
