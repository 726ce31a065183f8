package pin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Memory is what a message is sent from or received into. It is the caller's until the call that uses it has returned.
type Memory interface {
	// Bytes is all of it, to be registered; nothing here reads or writes it.
	Bytes() []byte
	// ReadAt and WriteAt are for what goes by send/receive.
	io.ReaderAt
	io.WriterAt
}

// Bytes is memory of the program: mapped, not of the Go heap, where a device works on it after a failure.
type Bytes []byte

// Bytes is the memory.
func (b Bytes) Bytes() []byte { return b }

// ReadAt copies out of the memory.
func (b Bytes) ReadAt(p []byte, off int64) (int, error) {
	n := copy(p, b[min(off, int64(len(b))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt copies into the memory.
func (b Bytes) WriteAt(p []byte, off int64) (int, error) {
	n := copy(b[min(off, int64(len(b))):], p)
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// File is a file as memory: mapped, so that it can be registered, and never touched through the mapping by this program, as a file that gets
// shorter takes its pages away. What goes by send/receive is read and written by pread and pwrite. Only files whose pages may be pinned for
// long can be received into on every device: memfd and tmpfs.
type File struct {
	*os.File
	d   *Domain
	mem []byte
}

// NewFile maps the first size bytes of a file that is open for reading and writing. The file stays the caller's.
func NewFile(d *Domain, f *os.File, size int64) (*File, error) {
	if size <= 0 {
		return nil, fmt.Errorf("pin: map %d bytes of %s: nothing to send", size, f.Name())
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("pin: map %d bytes of %s: %w", size, f.Name(), err)
	}
	return &File{File: f, d: d, mem: mem}, nil
}

// Bytes is the mapping.
func (f *File) Bytes() []byte { return f.mem }

// Check tells whether the file still has the bytes that were mapped.
func (f *File) Check() error {
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	if st.Size() < int64(len(f.mem)) {
		return fmt.Errorf("%w: file has %d bytes, had %d", ErrStale, st.Size(), len(f.mem))
	}
	return nil
}

// Shrink makes the file shorter: transfers that use what goes fail, with ErrStale; when they have let go of it, or ctx is done, the file is cut.
func (f *File) Shrink(ctx context.Context, size int64) error {
	if size >= int64(len(f.mem)) {
		return f.Truncate(size)
	}
	gone := f.mem[max(size, 0):]
	err := f.d.Invalidate(gone)
	if err == nil {
		err = f.d.Drain(ctx, gone)
	}
	if err != nil {
		return fmt.Errorf("pin: shorten %s to %d bytes: %w", f.Name(), size, err)
	}
	return f.Truncate(size)
}

// Unmap ends the mapping, after transfers that use it have failed and let go of it. The file stays open.
func (f *File) Unmap(ctx context.Context) error {
	if f.mem == nil {
		return nil
	}
	err := f.d.Invalidate(f.mem)
	if err := errors.Join(err, f.d.Drain(ctx, f.mem)); err != nil {
		return fmt.Errorf("pin: unmap: %w", err)
	}
	err = unix.Munmap(f.mem)
	f.mem = nil
	return err
}
