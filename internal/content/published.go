package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Version is a content as the log knows it.
type Version struct {
	ID   ID
	Size int64
	Root Hash
}

// stagedMark is how the files of staged bytes look; zero if they can't be looked at.
type stagedMark struct{ bytes, journal mark }

// DropPublished drops staged bytes that no Staging has if they are exactly those of a version, and reports whether they
// are. While a program may still write to the file, as one that had it open by passthrough when the daemon died, the
// file stays, and has IsVersion in the lists as long as it is not changed. The bytes are read without a claim on them:
// others may list and open them meanwhile. ErrBusy: a Staging has them. ErrRefused: the disk has not taken all of them.
func (s *Store) DropPublished(ctx context.Context, token uint64, v Version) (same bool, err error) {
	if err := s.index.enter(); err != nil {
		return false, err
	}
	defer s.index.leave()
	same, err = s.dropPublished(ctx, token, v)
	if err != nil {
		return same, fmt.Errorf("content: compare staging %x: %w", token, err)
	}
	return same, nil
}

func (s *Store) dropPublished(ctx context.Context, token uint64, v Version) (same bool, err error) {
	b := s.staging
	if b.isOpen(token) {
		return false, ErrBusy
	}
	f, err := os.Open(b.files.stagePath(token, ".file"))
	if err != nil {
		return false, err
	}
	defer f.Close()
	written, before := mayBeWritten(f), b.look(token)
	if written && b.isPublished(token) {
		return true, nil
	}
	same, err = s.isVersion(ctx, token, f, v)
	if err != nil || !same || b.look(token) != before {
		b.notePublished(token, stagedMark{})
		return false, err
	}
	if !written {
		return true, b.drop(token)
	}
	if time.Since(time.Unix(before.bytes.mtime.Unix())) > markTick {
		b.notePublished(token, before)
	}
	return true, nil
}

// markTick is the coarsest step of file times: a change this soon after another one may not show.
const markTick = 20 * time.Millisecond

// mayBeWritten reports whether anybody may have a file open or mapped for writing, as far as is known. f is open for
// reading. The kernel refuses a read lease then.
func mayBeWritten(f *os.File) bool {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return true
	}
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err != nil
}

func (b *stagings) look(token uint64) stagedMark {
	return stagedMark{markAt(b.files.stagePath(token, ".file")), markAt(b.files.stagePath(token, ".stage"))}
}

// notePublished notes how a file looks that holds what is published; zero forgets it.
func (b *stagings) notePublished(token uint64, m stagedMark) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m == (stagedMark{}) {
		delete(b.same, token)
		return
	}
	if b.same == nil {
		b.same = map[uint64]stagedMark{}
	}
	b.same[token] = m
}

// isPublished reports whether a file is as it was when it held what is published.
func (b *stagings) isPublished(token uint64) bool {
	b.mu.Lock()
	m, ok := b.same[token]
	b.mu.Unlock()
	return ok && b.look(token) == m
}

// isVersion compares staged bytes, in f, with a version. It ends at the first block that differs if the version is
// held here.
func (s *Store) isVersion(ctx context.Context, token uint64, f *os.File, v Version) (same bool, err error) {
	log, err := s.staging.readDescription(token)
	if err != nil {
		return false, err
	}
	if log.refused != "" || s.staging.failure(token) != "" {
		return false, ErrRefused
	}
	var src io.ReaderAt = f
	size := markOf(f).size
	if !log.head.base.IsZero() {
		r, err := s.opener.openBase(token, log.head.base)
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrNoBase, err)
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		src, size = newOverlay(&Staging{s: s.staging, token: token, file: f}, r, log), log.size
	}
	if size != v.Size {
		return false, nil
	}
	held, err := s.Open(v.ID)
	if err != nil {
		return rootIs(ctx, src, v, func(int64, *Hash) bool { return true })
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	return rootIs(ctx, src, v, func(i int64, leaf *Hash) bool {
		want, err := held.Leaf(i)
		return err != nil || want == *leaf
	})
}

// rootIs computes the root of src, unless a leaf may not be one of the version's.
func rootIs(ctx context.Context, src io.ReaderAt, v Version, may func(i int64, leaf *Hash) bool) (bool, error) {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	t := newTree()
	for i := range blockCount(v.Size) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		block := sc.block[:blockLen(v.Size, i)]
		if err := readZeroFilled(src, block, i*BlockBytes); err != nil {
			return false, err
		}
		leaf := Leaf(block)
		if !may(i, &leaf) {
			return false, nil
		}
		t.add(leaf)
	}
	return t.root(v.Size) == v.Root, nil
}
