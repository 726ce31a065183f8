package fs

import (
	"errors"
	"os"
	"syscall"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// PlainFile is the part of Staged that any plain file can do.
type PlainFile struct {
	*os.File
	fd  int
	out *writeOut
}

// NewPlainFile wraps a file, which stays the caller's.
func NewPlainFile(f *os.File) PlainFile {
	fd := int(f.Fd())
	return PlainFile{File: f, fd: fd, out: &writeOut{fd: fd}}
}

// Fd is the descriptor.
func (p PlainFile) Fd() int { return p.fd }

// Stat is fstat(2).
func (p PlainFile) Stat() (StageStat, error) {
	var st unix.Stat_t
	if err := unix.Fstat(p.Fd(), &st); err != nil {
		return StageStat{}, err
	}
	return StageStat{
		Size: st.Size, Allocated: st.Blocks * blockBytes,
		Atime: st.Atim.Nano(), Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(),
	}, nil
}

// Allocate is fallocate(2).
func (p PlainFile) Allocate(mode uint32, offset, length int64) error {
	return unix.Fallocate(p.Fd(), mode, offset, length)
}

// SetTimes is futimens(3).
func (p PlainFile) SetTimes(atime, mtime *int64) error {
	spec := func(t *int64) unix.Timespec {
		if t == nil {
			return unix.Timespec{Nsec: unix.UTIME_OMIT}
		}
		return unix.NsecToTimespec(*t)
	}
	return unix.UtimesNanoAt(p.Fd(), "", []unix.Timespec{spec(atime), spec(mtime)}, unix.AT_EMPTY_PATH)
}

// Data lists the extents between holes. Of a file that is changed meanwhile it lists some state of it.
func (p PlainFile) Data(size int64) ([]replicate.Extent, error) {
	var out []replicate.Extent
	fd := p.Fd()
	for off := int64(0); off < size; {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, syscall.ENXIO) || err == nil && data >= size {
			break
		}
		if err != nil {
			return nil, err
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if errors.Is(err, syscall.ENXIO) {
			hole, err = size, nil // cut meanwhile
		}
		if err != nil {
			return nil, err
		}
		off = min(hole, size)
		out = replicate.AppendExtent(out, replicate.Extent{Offset: data, Length: off - data})
	}
	return out, nil
}

// Sync makes the bytes durable. Once that, or a write-out before it, has failed it always fails.
func (p PlainFile) Sync() error { return p.out.sync(p.File.Sync) }

// NoteFailure makes the staged file note a failed write-out, if one has failed.
func (p PlainFile) NoteFailure(st Refuser) error { return p.out.note(st) }

// Snapshot is the file as it is while it is read. Once a write-out has failed, all reads fail.
func (p PlainFile) Snapshot() (Snapshot, error) {
	st, err := p.Stat()
	if err != nil {
		return Snapshot{}, err
	}
	data, err := p.Data(st.Size)
	holes := st.Size - extentBytes(data)
	return Snapshot{Size: st.Size, Holes: holes, Data: data, Source: writtenOut{p.File, p.out},
		Done: func(meta.ContentID, bool) {}}, err
}
