package backup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/durable"
	"github.com/rdmcfs/rdmcfs/meta"
)

// newSuffix is what a file is called until it is whole.
const newSuffix = ".new"

// Save makes a backup at a path: write gets where the bytes go. The file is there, checked and durable, when it
// returns, or what was there before stays.
func Save(path string, write func(io.Writer) error) (meta.Snapshotted, error) {
	name := path + newSuffix
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return meta.Snapshotted{}, fmt.Errorf("backup: %w", err)
	}
	buf := bufio.NewWriterSize(f, 1<<20)
	err = errors.Join(write(buf), buf.Flush())
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	var info meta.Snapshotted
	if err == nil {
		info, err = Check(name)
	}
	if err == nil {
		err = os.Rename(name, path)
	}
	if err == nil {
		err = durable.Sync(filepath.Dir(path))
	}
	if err != nil {
		return info, errors.Join(fmt.Errorf("backup: %s: %w", path, err), removed(name))
	}
	return info, nil
}

func removed(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Check reads a backup to its end and checks all of it.
func Check(path string) (meta.Snapshotted, error) {
	f, err := os.Open(path)
	if err != nil {
		return meta.Snapshotted{}, err
	}
	defer f.Close()
	return meta.CheckSnapshot(bufio.NewReaderSize(f, 1<<20))
}

// Book is a backup that is open. It takes about as much room below the directory for temporary files as the backup.
type Book struct {
	db  *meta.DB
	dir string
}

// Open checks a backup and opens it. The Book must be closed.
func Open(path string) (*Book, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	defer f.Close()
	dir, err := os.MkdirTemp("", "rdmcfs-backup-")
	if err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	db, err := meta.Open(dir, meta.Options{ReserveBytes: -1})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("backup: %s: %w", path, err), os.RemoveAll(dir))
	}
	b := &Book{db: db, dir: dir}
	if err := db.Restore(bufio.NewReaderSize(f, 1<<20)); err != nil {
		return nil, errors.Join(fmt.Errorf("backup: %s: %w", path, err), b.Close())
	}
	return b, nil
}

// Close lets the backup go.
func (b *Book) Close() error { return errors.Join(b.db.Close(), os.RemoveAll(b.dir)) }
