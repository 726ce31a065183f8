// Package durable makes small files and the entries of directories survive a power failure.
package durable

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
)

// recorded is what Sync made durable since Record, while a test asks.
var recorded struct {
	sync.Mutex
	on    bool
	paths []string
}

// Record begins to note every path that Sync makes durable; stop ends that and returns them: for tests that ask what
// was synced.
func Record() (stop func() []string) {
	note := func(on bool) (paths []string) {
		recorded.Lock()
		defer recorded.Unlock()
		paths, recorded.paths, recorded.on = recorded.paths, nil, on
		return paths
	}
	note(true)
	return func() []string { return note(false) }
}

func record(path string) {
	recorded.Lock()
	defer recorded.Unlock()
	if recorded.on {
		recorded.paths = append(recorded.paths, path)
	}
}

// Sync makes the bytes of a file, or the entries of a directory, durable. It blocks until they are. The file system
// gathers calls that run at the same time into one journal commit, so no batching of our own is needed.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	record(path)
	return nil
}

// MakeDir makes a directory (mode 0700) and the missing ones above it, and makes durable what names them: it syncs the
// directory, the one above it, and the one above each that it made. The one above is left alone if this process may not
// read it: somebody else made it. A directory that is there already is synced too, for a crash may have come between
// its making and its sync.
func MakeDir(path string) error {
	toSync := []string{path, filepath.Dir(path)}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		toSync = append(toSync, filepath.Dir(dir))
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	for i, dir := range toSync {
		if err := Sync(dir); err != nil && !(i > 0 && errors.Is(err, os.ErrPermission)) {
			return err
		}
	}
	return nil
}

// newSuffix ends the name under which WriteFile writes.
const newSuffix = ".new"

// WriteFile makes or replaces a file (mode 0600) that is whole, old or new, whenever the power fails, and durable
// with its name when WriteFile returns nil. It is written as path+".new", which an error may leave and the next
// WriteFile replaces. Errors name the file.
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
