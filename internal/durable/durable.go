// Package durable makes small files and the entries of directories survive a power failure.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// Sync makes the bytes of a file, or the entries of a directory, durable. It blocks until they are. The file system gathers calls that
// run at the same time into one journal commit, so no batching of our own is needed.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// newSuffix is of the name under which WriteFile writes.
const newSuffix = ".new"

// WriteFile makes or replaces a file (mode 0600) that is whole, old or new, whenever the power fails, and durable with its name when
// WriteFile returns nil. It is written as path+".new", which an error may leave and the next WriteFile replaces. Errors name the file.
func WriteFile(path string, data []byte) error {
	if err := writeSynced(path+newSuffix, data); err != nil {
		return err
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return err
	}
	return Sync(filepath.Dir(path))
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
