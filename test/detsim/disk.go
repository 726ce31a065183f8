package detsim

import (
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// logDisk is the disk of a raft log, the same whatever directory a process has.
type logDisk struct {
	raftlog.FS
	dir string
	m   *machine
}

func (d logDisk) at(path string) string {
	return "/" + strings.TrimPrefix(strings.TrimPrefix(path, d.dir), "/")
}

// MakeDir implements raftlog.FS.
func (d logDisk) MakeDir(dir string) error { return d.FS.MakeDir(d.at(dir)) }

// List implements raftlog.FS.
func (d logDisk) List(dir string) ([]string, error) { return d.FS.List(d.at(dir)) }

// Create implements raftlog.FS.
func (d logDisk) Create(path string) (raftlog.File, error) {
	f, err := d.FS.Create(d.at(path))
	return logFile{f, d.m}, err
}

// Open implements raftlog.FS.
func (d logDisk) Open(path string) (raftlog.File, error) {
	f, err := d.FS.Open(d.at(path))
	return logFile{f, d.m}, err
}

// Rename implements raftlog.FS.
func (d logDisk) Rename(oldPath, newPath string) error {
	return d.FS.Rename(d.at(oldPath), d.at(newPath))
}

// Remove implements raftlog.FS.
func (d logDisk) Remove(path string) error { return d.FS.Remove(d.at(path)) }

// SyncDir implements raftlog.FS.
func (d logDisk) SyncDir(dir string) error { return d.FS.SyncDir(d.at(dir)) }

// Lock implements raftlog.FS.
func (d logDisk) Lock(dir string) (func() error, error) { return d.FS.Lock(d.at(dir)) }

// logFile is a file of the log on a disk that may be slow.
type logFile struct {
	raftlog.File
	m *machine
}

// Sync implements raftlog.File.
func (f logFile) Sync() error {
	if slow := f.m.slowDisk; slow > 0 {
		pass(f.m.w.between(0, slow))
	}
	return f.File.Sync()
}
