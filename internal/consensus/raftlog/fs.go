package raftlog

// FS is what a log needs of a file system; a simulated one can lose power.
type FS interface {
	// MakeDir makes a directory and syncs its parent; an existing one is no error.
	MakeDir(dir string) error
	// List returns the names in a directory, sorted; fs.ErrNotExist if there is none.
	List(dir string) ([]string, error)
	// Create makes a new file; fs.ErrExist if there is one.
	Create(path string) (File, error)
	// Open opens a file to read and write.
	Open(path string) (File, error)
	// Rename replaces newPath by oldPath.
	Rename(oldPath, newPath string) error
	// Remove removes a file.
	Remove(path string) error
	// SyncDir makes creations, renames and removals in dir durable.
	SyncDir(dir string) error
	// Lock takes the lock of a directory, for this process and others; ErrLocked if it is held.
	Lock(dir string) (unlock func() error, err error)
}

// File is an open file of an FS.
type File interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	// Allocate reserves and zeroes the first n bytes, and makes that the file's size.
	Allocate(n int64) error
	Size() (int64, error)
	// Sync makes the file's data, and its size, durable.
	Sync() error
	Close() error
}
