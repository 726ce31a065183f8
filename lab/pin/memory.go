package pin

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

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

// File is a file as memory: mapped, so that it can be registered, and never touched through the mapping by this
// program, as a file that gets shorter takes its pages away. What goes by send/receive is read and written by pread
// and pwrite. Only files whose pages may be pinned for long can be received into on every device: memfd and tmpfs.
type File struct {
	*os.File
	d   *Domain
	mem []byte

	mu    sync.Mutex
	users map[*watch]func() // transfers under way; the function is called when the file is cut
	cut   bool              // it was cut: nothing is sent from the mapping any more
	calm  chan struct{}     // made when the file is cut, closed when the last user has ended
}

// watch is a transfer's use of a file.
type watch struct{ _ byte } // of a size, so that each has an address of its own

// watched is memory that can be changed by others while it is used.
type watched interface {
	// watch makes lost be called, from another goroutine, when the memory is about to change, and returns ErrStale if
	// it has changed. The user calls end when nothing works on the memory any more.
	watch(lost func()) (end func(), err error)
}

func (f *File) watch(lost func()) (end func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		return nil, fmt.Errorf("%w: file was cut", ErrStale)
	}
	w := &watch{}
	f.users[w] = lost
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if delete(f.users, w); f.cut && len(f.users) == 0 {
			close(f.calm)
		}
	}, nil
}

// expel notifies all users that the file is cut, and waits until they have ended.
func (f *File) expel(ctx context.Context) error {
	f.mu.Lock()
	if !f.cut {
		f.cut, f.calm = true, make(chan struct{})
		if len(f.users) == 0 {
			close(f.calm)
		}
	}
	for _, lost := range f.users {
		lost()
	}
	f.mu.Unlock()
	select {
	case <-f.calm:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("transfers go on: %w", context.Cause(ctx))
	}
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
	return &File{File: f, d: d, mem: mem, users: make(map[*watch]func())}, nil
}

// Bytes is the mapping.
func (f *File) Bytes() []byte { return f.mem }

// Check reports whether the file still has the bytes that were mapped: ErrStale if not.
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

// Shrink makes the file shorter. Transfers that use it fail with ErrStale, whichever part of it they are at; when they
// have released it the file is cut. The mapping is of no use afterwards. If ctx is done before, the file keeps its
// length.
func (f *File) Shrink(ctx context.Context, size int64) error {
	if size < int64(len(f.mem)) {
		if err := f.retire(ctx); err != nil {
			return fmt.Errorf("pin: shorten %s to %d bytes: %w", f.Name(), size, err)
		}
	}
	return f.Truncate(size)
}

// retire ends all use of the mapping.
func (f *File) retire(ctx context.Context) error {
	if err := f.expel(ctx); err != nil {
		return err
	}
	if err := f.d.Invalidate(f.mem); err != nil {
		return err
	}
	return f.d.Drain(ctx, f.mem)
}

// Unmap ends the mapping, after transfers that use it have failed and let go of it. The file stays open.
func (f *File) Unmap(ctx context.Context) error {
	if f.mem == nil {
		return nil
	}
	if err := f.retire(ctx); err != nil {
		return fmt.Errorf("pin: unmap %s: %w", f.Name(), err)
	}
	err := unix.Munmap(f.mem)
	f.mem = nil
	return err
}
