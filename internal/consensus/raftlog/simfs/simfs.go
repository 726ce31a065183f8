// Package simfs is a file system in memory for raft logs: it can lose power and fail operations, both as a seed says.
//
// What was written and not synced is lost sector by sector at a power loss, each sector on its own; names that were
// not synced are lost name by name. A sync of a directory that fails may have brought some of its names to the disk.
//
//	disk := simfs.New()
//	... use it ...
//	disk = disk.PowerLoss(rng.IntN) // the disk after the power came back
package simfs

import (
	"io/fs"
	"path/filepath"
	"sort"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

const sectorBytes = 512

// Op names an operation for [Disk.Fail].
type Op string

// The operations that can be made to fail.
const (
	OpCreate   Op = "create"
	OpAllocate Op = "allocate"
	OpWrite    Op = "write"
	OpSync     Op = "sync"
	OpSyncDir  Op = "syncdir"
	OpRename   Op = "rename"
)

// inode is a file's content: as the processes see it, and as the disk holds it.
type inode struct {
	live   []byte
	synced []byte
	dirty  map[int64]bool // sectors written since the last sync
}

// Disk is a file system; it implements raftlog.FS.
type Disk struct {
	mu     sync.Mutex // protects all below
	dirs   map[string]bool
	names  map[string]*inode   // as the processes see them
	synced map[string]*inode   // as the disk holds them
	maybe  map[string][]*inode // as it may hold them too, since a sync failed; nil for no file
	locks  map[string]bool
	fail   func(op Op, path string) error
	writes int
}

var _ raftlog.FS = (*Disk)(nil)

// New returns an empty disk.
func New() *Disk {
	return &Disk{dirs: map[string]bool{}, names: map[string]*inode{}, synced: map[string]*inode{},
		maybe: map[string][]*inode{}, locks: map[string]bool{}}
}

// Fail makes operations fail with the error fail returns; nil ends that.
func (d *Disk) Fail(fail func(op Op, path string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = fail
}

// Writes counts the writes and syncs so far, for tests that lose power after each.
func (d *Disk) Writes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writes
}

// PowerLoss returns the disk as it is after a power loss now. intn(2) decides for each unsynced sector and name. The
// old disk stays usable, for goroutines that have not heard of the loss yet.
func (d *Disk) PowerLoss(intn func(n int) int) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	after := New()
	for dir := range d.dirs {
		after.dirs[dir] = true
	}
	copies := map[*inode]*inode{}
	for _, name := range d.everyNameLocked() {
		node := d.synced[name]
		if live := d.names[name]; live != node && intn(2) == 1 {
			node = live
		}
		for _, other := range d.maybe[name] {
			if intn(2) == 1 {
				node = other
			}
		}
		if node == nil {
			continue
		}
		if copies[node] == nil {
			copies[node] = node.afterPowerLoss(intn)
		}
		after.names[name], after.synced[name] = copies[node], copies[node]
	}
	return after
}

// everyNameLocked lists what there is or may be after a power loss.
func (d *Disk) everyNameLocked() []string {
	all := map[string]*inode{}
	for name := range d.maybe {
		all[name] = nil
	}
	return sortedKeys(d.names, d.synced, all)
}

func sortedKeys(maps ...map[string]*inode) []string {
	seen := map[string]bool{}
	var keys []string
	for _, m := range maps {
		for k := range m {
			if !seen[k] {
				seen[k] = true
				keys = append(keys, k)
			}
		}
	}
	sort.Strings(keys)
	return keys
}

func (n *inode) afterPowerLoss(intn func(n int) int) *inode {
	content := append([]byte(nil), n.synced...)
	if len(n.live) > len(content) {
		content = append(content, make([]byte, len(n.live)-len(content))...)
	}
	var sectors []int64
	for s := range n.dirty {
		sectors = append(sectors, s)
	}
	sort.Slice(sectors, func(i, j int) bool { return sectors[i] < sectors[j] })
	for _, s := range sectors {
		if from, to := s*sectorBytes, min((s+1)*sectorBytes, int64(len(n.live))); from < to && intn(2) == 1 {
			copy(content[from:to], n.live[from:to])
		}
	}
	return &inode{live: content, synced: append([]byte(nil), content...), dirty: map[int64]bool{}}
}

func (d *Disk) failing(op Op, path string) error {
	if d.fail == nil {
		return nil
	}
	return d.fail(op, path)
}

// MakeDir implements raftlog.FS.
func (d *Disk) MakeDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dirs[dir] = true
	return nil
}

// List implements raftlog.FS.
func (d *Disk) List(dir string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.dirs[dir] {
		return nil, fs.ErrNotExist
	}
	var names []string
	for _, path := range sortedKeys(d.names) {
		if filepath.Dir(path) == dir {
			names = append(names, filepath.Base(path))
		}
	}
	return names, nil
}

// Create implements raftlog.FS.
func (d *Disk) Create(path string) (raftlog.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failing(OpCreate, path); err != nil {
		return nil, err
	}
	if d.names[path] != nil {
		return nil, fs.ErrExist
	}
	d.names[path] = &inode{dirty: map[int64]bool{}}
	return &file{disk: d, node: d.names[path], path: path}, nil
}

// Open implements raftlog.FS.
func (d *Disk) Open(path string) (raftlog.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[path] == nil {
		return nil, fs.ErrNotExist
	}
	return &file{disk: d, node: d.names[path], path: path}, nil
}

// Rename implements raftlog.FS.
func (d *Disk) Rename(oldPath, newPath string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failing(OpRename, newPath); err != nil {
		return err
	}
	if d.names[oldPath] == nil {
		return fs.ErrNotExist
	}
	d.names[newPath] = d.names[oldPath]
	delete(d.names, oldPath)
	return nil
}

// Remove implements raftlog.FS.
func (d *Disk) Remove(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[path] == nil {
		return fs.ErrNotExist
	}
	delete(d.names, path)
	return nil
}

// SyncDir implements raftlog.FS.
func (d *Disk) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failing(OpSyncDir, dir); err != nil {
		for _, path := range sortedKeys(d.names, d.synced) {
			if filepath.Dir(path) == dir && d.names[path] != d.synced[path] {
				d.maybe[path] = append(d.maybe[path], d.names[path])
			}
		}
		return err
	}
	for path := range d.maybe {
		if filepath.Dir(path) == dir {
			delete(d.maybe, path)
		}
	}
	d.writes++
	for path := range d.synced {
		if filepath.Dir(path) == dir && d.names[path] == nil {
			delete(d.synced, path)
		}
	}
	for path, node := range d.names {
		if filepath.Dir(path) == dir {
			d.synced[path] = node
		}
	}
	return nil
}

// Lock implements raftlog.FS.
func (d *Disk) Lock(dir string) (func() error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.locks[dir] {
		return nil, raftlog.ErrLocked
	}
	d.locks[dir] = true
	return func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.locks, dir)
		return nil
	}, nil
}

// Corrupt lets change alter the bytes of a file on the disk, as rot would.
func (d *Disk) Corrupt(path string, change func(content []byte) []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.names[path]; n != nil {
		n.live = change(n.live)
		n.synced = append([]byte(nil), n.live...)
	}
}

type file struct {
	disk *Disk
	node *inode
	path string
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if off >= int64(len(f.node.live)) {
		return 0, nil
	}
	return copy(p, f.node.live[off:]), nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.disk.failing(OpWrite, f.path)
	if err != nil {
		p = p[:len(p)/2] // a short write
	}
	f.disk.writes++
	f.node.grow(off + int64(len(p)))
	copy(f.node.live[off:], p)
	for s := off / sectorBytes; s*sectorBytes < off+int64(len(p)); s++ {
		f.node.dirty[s] = true
	}
	return len(p), err
}

func (n *inode) grow(size int64) {
	if size > int64(len(n.live)) {
		n.live = append(n.live, make([]byte, size-int64(len(n.live)))...)
	}
}

func (f *file) Allocate(n int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.failing(OpAllocate, f.path); err != nil {
		return err
	}
	f.node.grow(n)
	return nil
}

func (f *file) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return int64(len(f.node.live)), nil
}

func (f *file) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.failing(OpSync, f.path); err != nil {
		return err
	}
	f.disk.writes++
	if len(f.node.synced) < len(f.node.live) {
		f.node.synced = append(f.node.synced, make([]byte, len(f.node.live)-len(f.node.synced))...)
	}
	for s := range f.node.dirty {
		from, to := s*sectorBytes, min((s+1)*sectorBytes, int64(len(f.node.live)))
		copy(f.node.synced[from:to], f.node.live[from:to])
	}
	f.node.dirty = map[int64]bool{}
	return nil
}

func (f *file) Close() error { return nil }
