package content

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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
	// IsVersion says that [Store.DropPublished] found the bytes to be published, and nobody has changed them since.
	IsVersion bool
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
	u = Unpublished{Token: token, Modified: st.ModTime(), Size: st.Size(), Open: b.isOpen(token),
		IsVersion: b.isPublished(token)}
	log, err := b.readDescription(token)
	if err != nil {
		u.Damaged = true
		return u, true
	}
	u.Origin, u.Created, u.Base, u.Reason = log.origin(), log.head.created, log.head.base, log.reason
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
	b.notePublished(token, stagedMark{})
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
	st.origin, st.created = log.origin(), log.head.created
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
	log.over = log.head.origin.Over
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
	b.notePublished(token, stagedMark{})
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
