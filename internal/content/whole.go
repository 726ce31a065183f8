package content

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Whole reports whether the files of a stored content, and of those it is a delta over, are there with their lengths.
// size is the content's length as the log has it. No bytes are read. A content that is not whole counts as damaged from
// then on. The files of each content are looked at once after Open: what comes later was synced before it got its name.
func (s *Store) Whole(id ID, size int64) bool {
	above, layer := ID{}, id
	for range DepthMax + 1 {
		base, ok := s.wholeLayer(layer, size)
		switch {
		case !ok && layer != id && s.baseOf(above) != layer:
			return true // it was folded meanwhile, which reads all of it
		case !ok && layer != id:
			s.markDamaged(id, fmt.Errorf("content: %s: base %s: %w", id, layer, ErrCorrupt))
			return false
		case !ok || base.IsZero():
			return ok
		}
		above, layer, size = layer, base, -1
	}
	return false
}

// baseOf is what a content is a delta over; zero for a plain one, and for one that is not here.
func (s *Store) baseOf(id ID) ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.index[id]; e != nil {
		return e.base
	}
	return ID{}
}

// wholeLayer is Whole of one content without its bases. A negative size is not known.
func (s *Store) wholeLayer(id ID, size int64) (base ID, ok bool) {
	for {
		s.mu.Lock()
		e := s.index[id]
		if e == nil || e.state == Partial || e.damaged || e.dead && size >= 0 {
			s.mu.Unlock()
			return ID{}, false
		}
		state, base, looked := e.state, e.base, e.checked || e.looked
		s.mu.Unlock()
		if looked {
			return base, true
		}
		err := s.lookAtFiles(id, base, state, size)
		if err != nil && s.moved(id, state, base) {
			continue // a commit or a fold moved it meanwhile
		}
		if errors.Is(err, ErrCorrupt) || errors.Is(err, os.ErrNotExist) {
			s.markDamaged(id, err)
			return base, false
		}
		if err != nil {
			return base, true // it can't be looked at now: a read tells
		}
		s.mu.Lock()
		if e := s.index[id]; e != nil {
			e.looked = true
		}
		s.mu.Unlock()
		return base, true
	}
}

// lookAtFiles compares the lengths of a content's files with what they should be.
func (s *Store) lookAtFiles(id, base ID, state State, size int64) error {
	bytes, err := s.fileLength(id, sidecarName(id, base, state))
	if err == nil && bytes < headerBytes {
		err = fmt.Errorf("content: sidecar of %s: %d bytes: %w", id, bytes, ErrCorrupt)
	}
	if err != nil || base.IsZero() && 0 <= size && size <= InlineBytesMax {
		return err
	}
	want := size
	if size < 0 || !base.IsZero() {
		h, err := readHeader(s.sidecarPath(id, base, state), id)
		if err != nil || h.has(flagInline) {
			return err
		}
		if want = h.size; !base.IsZero() {
			want = h.streamBytes
		}
	}
	bytes, err = s.fileLength(id, streamName(id, base))
	if errors.Is(err, os.ErrNotExist) && base.IsZero() {
		if h, herr := readHeader(s.sidecarPath(id, base, state), id); herr == nil && h.has(flagInline) {
			return nil // few bytes between holes
		}
	}
	if err == nil && bytes != want {
		err = fmt.Errorf("content: data file of %s has %d bytes, not %d: %w", id, bytes, want, ErrCorrupt)
	}
	return err
}

// fileLength is the length of a file of a content. It goes by the open directory of the shard: a start looks at very
// many files, and most of the time of a look by its whole path would go into the path.
func (s *Store) fileLength(id ID, name string) (int64, error) {
	dir, err := s.shardHandle(shard(id))
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

// shardHandle is the open directory of a shard. It is opened once and stays so until the store is given free.
func (s *Store) shardHandle(i int) (syscall.RawConn, error) {
	if h := s.handles[i].Load(); h != nil {
		return h.conn, nil
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "held", fmt.Sprintf("%02x", i)), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.handles[i].Load(); h != nil {
		return h.conn, f.Close()
	}
	if s.closed && s.open == 0 {
		return nil, errors.Join(ErrClosed, f.Close())
	}
	s.handles[i].Store(&openDir{f, conn})
	return conn, nil
}

// openDir is an open directory.
type openDir struct {
	file *os.File
	conn syscall.RawConn
}
