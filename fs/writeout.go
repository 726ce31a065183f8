package fs

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// writeOut records whether the kernel failed to write bytes of a staged file to the disk. The kernel takes pages that
// it could not write for clean: it drops them when memory is short, and what is read then is what was on the disk
// before. It reports the failure once to each descriptor. Here the file stays failed for good, as nobody knows which
// bytes are still right.
type writeOut struct {
	fd int

	mu  sync.Mutex
	err error
}

// behindAll is an offset where no file has a page: the kernel waits for nothing there.
const behindAll = 1 << 62

// failed is the error of the first write-out that failed, as far as is known now. It does not wait for the disk.
func (w *writeOut) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	switch err := unix.SyncFileRange(w.fd, behindAll, 1, unix.SYNC_FILE_RANGE_WAIT_BEFORE); err {
	case nil, unix.EINVAL, unix.ESPIPE, unix.EBADF, unix.ENOSYS, unix.EPERM, unix.EINTR: // of the call itself
	default:
		w.noteLocked(err)
	}
	return w.err
}

// noteLocked remembers that the kernel has reported a failure. mu is held.
func (w *writeOut) noteLocked(err error) {
	w.err = fmt.Errorf("fs: staged bytes could not be written to the disk: %w", err)
}

// Refuser is a staged file that notes that its disk has not taken some of the bytes.
type Refuser interface{ Refuse(why error) error }

// note makes the staged file note a failed write-out: the kernel does not report it again.
func (w *writeOut) note(st Refuser) error {
	if failed := w.failed(); failed != nil {
		return st.Refuse(failed)
	}
	return nil
}

// sync does what makes the bytes durable.
func (w *writeOut) sync(do func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		if err := do(); err != nil {
			w.noteLocked(err)
		}
	}
	return w.err
}

// WrittenOut reads from src, which reads f, staged bytes that are to be published. It fails once the kernel has failed
// to write bytes of f to the disk, unless that was reported on another descriptor before f was opened. note, which is
// called before f is closed, makes the staged file note the failure.
func WrittenOut(src io.ReaderAt, f *os.File) (r io.ReaderAt, note func(Refuser) error) {
	out := &writeOut{fd: int(f.Fd())}
	return writtenOut{src, out}, out.note
}

// writtenOut reads staged bytes that are to be published: none once a write-out has failed.
type writtenOut struct {
	src io.ReaderAt
	out *writeOut
}

// ReadAt checks after the read: a failure is reported before the pages can go.
func (w writtenOut) ReadAt(p []byte, off int64) (int, error) {
	n, err := w.src.ReadAt(p, off)
	if failed := w.out.failed(); failed != nil {
		return 0, failed
	}
	return n, err
}
