package sim

import (
	"errors"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

var errPower = errors.New("sim: power lost")

// powerFS is the disk of a process's raft log: the power may go before each of its operations. From then on nothing more
// reaches the disk.
type powerFS struct {
	*simfs.Disk
	lost func() bool
}

// powerFile is an open file of it.
type powerFile struct {
	raftlog.File
	fs *powerFS
}

func (p *powerFS) wrap(f raftlog.File, err error) (raftlog.File, error) {
	if err != nil {
		return nil, err
	}
	return &powerFile{f, p}, nil
}

// Create implements raftlog.FS.
func (p *powerFS) Create(path string) (raftlog.File, error) {
	if p.lost() {
		return nil, errPower
	}
	return p.wrap(p.Disk.Create(path))
}

// Open implements raftlog.FS.
func (p *powerFS) Open(path string) (raftlog.File, error) { return p.wrap(p.Disk.Open(path)) }

// Rename implements raftlog.FS.
func (p *powerFS) Rename(from, to string) error {
	if p.lost() {
		return errPower
	}
	return p.Disk.Rename(from, to)
}

// Remove implements raftlog.FS.
func (p *powerFS) Remove(path string) error {
	if p.lost() {
		return errPower
	}
	return p.Disk.Remove(path)
}

// SyncDir implements raftlog.FS.
func (p *powerFS) SyncDir(dir string) error {
	if p.lost() {
		return errPower
	}
	return p.Disk.SyncDir(dir)
}

// WriteAt implements raftlog.File.
func (f *powerFile) WriteAt(b []byte, off int64) (int, error) {
	if f.fs.lost() {
		return 0, errPower
	}
	return f.File.WriteAt(b, off)
}

// Allocate implements raftlog.File.
func (f *powerFile) Allocate(n int64) error {
	if f.fs.lost() {
		return errPower
	}
	return f.File.Allocate(n)
}

// Sync implements raftlog.File.
func (f *powerFile) Sync() error {
	if f.fs.lost() {
		return errPower
	}
	return f.File.Sync()
}
