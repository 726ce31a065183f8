package content

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rdmcfs/rdmcfs/internal/durable"
	"golang.org/x/sys/unix"
)

// formatText is what FORMAT says.
const formatText = "rdmcfs content store 1\n"

// storeFiles are the files of a store: their names, and the steps that change what a power loss leaves.
type storeFiles struct {
	dir  string
	step func(step, path string) error // Options.Step, never nil
	lock *os.File

	shards [heldDirs]atomic.Bool // directories that are there, durably
	// handles are open directories, for looks at many files; nil until the first look. They are closed with the store.
	handles [heldDirs]atomic.Pointer[openDir]
	mu      sync.Mutex
	closed  bool // no handle is opened any more; protected by mu

	opening  sync.RWMutex // held for reading while a data file is opened and registered, or let go
	bodiesMu sync.Mutex
	bodies   map[ID]map[*body]struct{} // open data files of plain contents; protected by bodiesMu
}

// close releases the directory.
func (sf *storeFiles) close() {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	sf.closed = true
	for i := range sf.handles {
		if h := sf.handles[i].Swap(nil); h != nil {
			_ = h.file.Close() // a directory that was only looked through
		}
	}
	_ = sf.lock.Close() // closing the descriptor drops the flock; nothing was written to it
}

// prepare makes the directories and takes the lock.
func (sf *storeFiles) prepare() error {
	for _, dir := range []string{sf.dir, filepath.Join(sf.dir, "held"), filepath.Join(sf.dir, "staging")} {
		if err := durable.MakeDir(dir); err != nil {
			return err
		}
	}
	lock, err := os.OpenFile(filepath.Join(sf.dir, "LOCK"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrLocked
		}
		return fmt.Errorf("lock: %w", err)
	}
	if err := sf.prepareFormat(); err != nil {
		_ = lock.Close()
		return err
	}
	sf.lock = lock
	return nil
}

func (sf *storeFiles) prepareFormat() error {
	path := filepath.Join(sf.dir, "FORMAT")
	text, err := readBounded(path, 4096)
	if err == nil && len(text) != 0 {
		if string(text) != formatText {
			return fmt.Errorf("FORMAT says %.40q: %w", text, ErrFormat)
		}
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return durable.WriteFile(path, []byte(formatText))
}

// readBounded reads a file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// openFile opens a plain file. Unlike os.OpenFile it does not try to register the file for readiness events, which
// costs five calls and fails for plain files.
func openFile(path string, flag int) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flag|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

func (sf *storeFiles) open(id, base ID, state State, flag int) (*body, error) {
	b, err := loadSidecar(sf.sidecarPath(id, base, state), id, flag)
	if err != nil {
		return nil, err
	}
	if b.head.base != base {
		return nil, errors.Join(fmt.Errorf("content: %s: base in sidecar: %w", id, ErrCorrupt), b.close())
	}
	if b.head.has(flagInline) {
		return b, nil
	}
	if err := sf.openStream(b, flag); err != nil {
		return nil, errors.Join(err, b.close())
	}
	if err := b.checkStreamFile(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// openStream opens the data file of a content, or the stream of a delta.
func (sf *storeFiles) openStream(b *body, flag int) error {
	sf.opening.RLock()
	defer sf.opening.RUnlock()
	f, err := openFile(sf.streamPath(b.id, b.head.base), flag)
	if err != nil {
		return err
	}
	b.stream, b.streamFile = f, f
	if b.head.base.IsZero() {
		sf.register(b)
	}
	return nil
}

// writeNew writes a small sidecar durably. A torn one is found by its checksums at Open.
func (sf *storeFiles) writeNew(path string, m image) error {
	if err := sf.step("create", path); err != nil {
		return err
	}
	f, err := openFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.Write(m)
	if err == nil {
		err = sf.sync(f)
	}
	return errors.Join(err, f.Close())
}

// remove unlinks a content, its sidecar first: bytes without a sidecar are dropped at Open.
func (sf *storeFiles) remove(id, base ID, state State) error {
	var errs error
	for _, path := range []string{
		sf.sidecarPath(id, base, state), sf.streamPath(id, base),
	} {
		errs = errors.Join(errs, sf.unlink(path))
	}
	return errs
}

// unlink removes a file that may be absent.
func (sf *storeFiles) unlink(path string) error {
	if err := sf.step("unlink", path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("content: remove %s: %w", path, err)
	}
	return nil
}

// rename moves a file within its directory.
func (sf *storeFiles) rename(from, to string) error {
	if err := sf.step("rename", from+" -> "+to); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("content: rename %s: %w", from, err)
	}
	return nil
}

// sync makes a file durable.
func (sf *storeFiles) sync(f *os.File) error {
	if err := sf.step("fsync", f.Name()); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("content: sync %s: %w", f.Name(), err)
	}
	return nil
}

// syncShard makes the directory entries of a content durable.
func (sf *storeFiles) syncShard(id ID) error { return sf.syncDir(sf.shardDir(id)) }

// syncDir makes the entries of a directory durable.
func (sf *storeFiles) syncDir(dir string) error {
	if err := sf.step("fsync dir", dir); err != nil {
		return err
	}
	if err := durable.Sync(dir); err != nil {
		return fmt.Errorf("content: sync %s: %w", dir, err)
	}
	return nil
}

// ensureShard makes the directory of a content if it is not there.
func (sf *storeFiles) ensureShard(id ID) error {
	made := &sf.shards[shard(id)]
	if made.Load() {
		return nil
	}
	if err := os.MkdirAll(sf.shardDir(id), 0o700); err != nil {
		return err
	}
	if err := sf.syncDir(filepath.Join(sf.dir, "held")); err != nil {
		return err
	}
	made.Store(true)
	return nil
}

// openDir is an open directory.
type openDir struct {
	file *os.File
	conn syscall.RawConn
}

// shardHandle is the open directory of a shard. It is opened once and stays open until the store is released.
func (sf *storeFiles) shardHandle(i int) (syscall.RawConn, error) {
	if h := sf.handles[i].Load(); h != nil {
		return h.conn, nil
	}
	f, err := os.OpenFile(filepath.Join(sf.dir, "held", fmt.Sprintf("%02x", i)), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if h := sf.handles[i].Load(); h != nil {
		return h.conn, f.Close()
	}
	if sf.closed {
		return nil, errors.Join(ErrClosed, f.Close())
	}
	sf.handles[i].Store(&openDir{f, conn})
	return conn, nil
}

// fileLength is the length of a file of a content. It goes by the open directory of the shard: a start looks at very
// many files, and most of the time of a look by its whole path would go into the path.
func (sf *storeFiles) fileLength(id ID, name string) (int64, error) {
	dir, err := sf.shardHandle(shard(id))
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	var looked error
	if err := dir.Control(func(fd uintptr) { looked = unix.Fstatat(int(fd), name, &st, 0) }); err != nil {
		return 0, fmt.Errorf("content: %s: %w", name, err)
	}
	if looked != nil {
		return 0, fmt.Errorf("content: %s: %w", name, looked)
	}
	return st.Size, nil
}

// checkLengths compares the lengths of a content's files with what they should be. A negative size is not known. Most
// contents have no base and no holes: their size alone says how long the files are, and nothing is read.
func (sf *storeFiles) checkLengths(id ID, f form, size int64) error {
	if size >= 0 && f.base.IsZero() && sf.haveLengths(id, f, flatHeader(size)) == nil {
		return nil
	}
	h, err := readHeader(sf.sidecarPath(id, f.base, f.state), id)
	if err == nil && size >= 0 && h.size != size {
		err = fmt.Errorf("content: sidecar of %s is for %d bytes, not %d: %w", id, h.size, size, ErrCorrupt)
	}
	if err != nil {
		return err
	}
	return sf.haveLengths(id, f, h)
}

// haveLengths compares the lengths of a content's files with what a header says.
func (sf *storeFiles) haveLengths(id ID, f form, h header) error {
	bytes, err := sf.fileLength(id, sidecarName(id, f.base, f.state))
	if err == nil && bytes < h.fileBytes() {
		err = fmt.Errorf("content: sidecar of %s has %d bytes, not %d: %w", id, bytes, h.fileBytes(), ErrCorrupt)
	}
	if err != nil || h.has(flagInline) {
		return err
	}
	want := h.size
	if !f.base.IsZero() {
		want = h.streamBytes
	}
	bytes, err = sf.fileLength(id, streamName(id, f.base))
	if err == nil && bytes != want {
		err = fmt.Errorf("content: data file of %s has %d bytes, not %d: %w", id, bytes, want, ErrCorrupt)
	}
	return err
}
