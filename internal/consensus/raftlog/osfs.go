package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/durable"
)

type osFS struct{}

// OS returns the real file system.
func OS() FS { return osFS{} }

func (osFS) MakeDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return osFS{}.SyncDir(filepath.Dir(dir))
}

func (osFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

func (osFS) Create(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Open(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Rename(oldPath, newPath string) error { return os.Rename(oldPath, newPath) }

func (osFS) Remove(path string) error { return os.Remove(path) }

func (osFS) SyncDir(dir string) error { return durable.Sync(dir) }

// Lock holds an flock on the directory's lock file for as long as the file is open.
func (osFS) Lock(dir string) (func() error, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("raftlog: lock %s: %w", path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, errors.Join(fmt.Errorf("%w: %s", err, path), f.Close())
	}
	return f.Close, nil
}

type osFile struct{ *os.File }

// Allocate reserves real blocks, so that writing inside them can't meet a full disk on file systems that honour it.
func (f osFile) Allocate(n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, n)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EOPNOTSUPP:
			return f.fill(n)
		default:
			return err
		}
	}
}

// fill writes zeros where fallocate is not there.
func (f osFile) fill(n int64) error {
	zeros := make([]byte, 1<<20)
	for off := int64(0); off < n; off += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), n-off)], off); err != nil {
			return err
		}
	}
	return nil
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Sync is fdatasync: size and extents that are needed to read the data back are synced with it.
func (f osFile) Sync() error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
