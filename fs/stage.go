package fs

import (
	"context"
	"io"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// Staging makes the files that bytes are written to before they are published.
type Staging interface {
	// Create makes an empty staged file.
	Create(info StageInfo) (Staged, error)
	// CopyUp makes a staged file that begins with the bytes of base. Large ones may be an overlay over base. The
	// staged file may use base until it is closed; the caller keeps it open.
	CopyUp(ctx context.Context, info StageInfo, base replicate.ContentReader) (Staged, error)
	// TakeOver makes a staged file of the file that programs read base by, which base must have: they see what is
	// written to it. base reads a copy from then on; the caller keeps it open. It fails where CopyUp may still work.
	TakeOver(info StageInfo, base replicate.ContentReader) (Staged, error)
	// Space is the size of the underlying file system.
	Space() (Space, error)
}

// StageInfo says what staged bytes belong to, for the list of unpublished files.
type StageInfo struct {
	Ino    meta.Ino
	Parent meta.Ino
	Path   string
	Base   meta.ContentID
	Holes  int64 // of Base
}

// Space is the room for data. Free is what no file takes, Available what files here may take of it.
type Space struct{ Total, Free, Available uint64 }

// StageStat is what a staged file looks like now. Times are nanoseconds since 1970.
type StageStat struct {
	Size, Allocated     int64
	Atime, Mtime, Ctime int64
}

// Staged is one staged file. It is safe for concurrent use; after Drop or Keep it must not be used.
type Staged interface {
	io.ReaderAt
	io.WriterAt
	// Fd is a descriptor, open for reading and writing, of a plain file with exactly the staged bytes, or -1 for an
	// overlay.
	Fd() int
	Stat() (StageStat, error)
	Truncate(size int64) error
	// Allocate is fallocate(2); modes it cannot do give EOPNOTSUPP.
	Allocate(mode uint32, offset, length int64) error
	// SetTimes sets atime and mtime; a nil one stays.
	SetTimes(atime, mtime *int64) error
	// Data lists, ascending, where below size other bytes than zeros may be.
	Data(size int64) ([]replicate.Extent, error)
	// Snapshot settles what is to be published now.
	Snapshot() (Snapshot, error)
	// Sync makes the bytes durable.
	Sync() error
	// Keep closes the file and leaves it listed as unpublished.
	Keep(reason string) error
	// Drop closes and removes it.
	Drop() error
}

// Snapshot is what a publish takes of a staged file. Done has to be called at its end, before the next one is taken.
type Snapshot struct {
	Size  int64
	Holes int64 // of Size, what takes no room
	Data  []replicate.Extent
	// Exact says that the file counts its writes: then Dirty has all that changed since the last published
	// snapshot, and Changed whether anything did.
	Exact   bool
	Changed bool
	Dirty   []replicate.Extent
	// Source reads the bytes; each read is whole against writes.
	Source io.ReaderAt
	// Done reports what became of it: the content it was published as, or not ok.
	Done func(published meta.ContentID, ok bool)
}
