package content

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// sparesMax bounds the empty files that are kept to be staged in again.
const sparesMax = 16

// Recycle ends the Staging like [Staging.Drop], but keeps its file, emptied, for another one: that costs the file
// system far less than a new inode each time. The caller guarantees that nobody except the Staging can still have the
// file open or mapped, and that nobody except the Staging could ever read it.
func (st *Staging) Recycle() error {
	if st.journal != nil || !st.s.wantsSpare() {
		return st.Drop()
	}
	if !st.close() {
		return nil
	}
	// Emptied first and closed then: that makes file systems forget that a file which was cut to nothing should be
	// written out when its next user closes it.
	err := st.file.Truncate(0)
	err = errors.Join(err, st.file.Close())
	if err != nil {
		err = errors.Join(err, st.s.files.unlink(st.s.files.stagePath(st.token, ".file")))
	}
	st.s.putSpare(st.token, err == nil)
	st.s.index.leave()
	return err
}

func (b *stagings) wantsSpare() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.spare) < sparesMax && !b.noTag && !b.closed
}

// putSpare ends the use of a token, whose file is empty if it is good.
func (b *stagings) putSpare(token uint64, good bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, token)
	if good && !b.closed {
		b.spare = append(b.spare, token)
	}
}

func (b *stagings) isSpare(token uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.spare {
		if t == token {
			return true
		}
	}
	return false
}

func (b *stagings) withoutTags() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.noTag
}

func (b *stagings) setWithoutTags() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noTag = true
}

// dropSpares removes the empty files at the end; there will be no more.
func (b *stagings) dropSpares() error {
	b.mu.Lock()
	list := b.spare
	b.spare, b.closed = nil, true
	b.mu.Unlock()
	var errs error
	for _, token := range list {
		errs = errors.Join(errs, b.files.unlink(b.files.stagePath(token, ".file")))
	}
	return errs
}

// tagName is the extended attribute of a staged file that says what it belongs to. With most names it fits into the
// inode.
const tagName = "user.rdmcfs"

// tagBytesMax bounds it.
const tagBytesMax = 64 + nameBytesMax

var errNoTags = errors.New("content: the file system keeps no user attributes")

func setTag(f *os.File, tag []byte) error {
	err := unix.Fsetxattr(int(f.Fd()), tagName, tag, 0)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) {
		return errNoTags
	}
	return err
}

func readTag(path string) ([]byte, error) {
	tag := make([]byte, tagBytesMax)
	n, err := unix.Getxattr(path, tagName, tag)
	if err != nil {
		return nil, err
	}
	return tag[:n], nil
}

// freshTimes makes a used file look new.
func freshTimes(f *os.File) error {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	return unix.UtimesNanoAt(int(f.Fd()), "", now, unix.AT_EMPTY_PATH)
}
