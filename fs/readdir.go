package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// dirPage is how many names are read at once.
const dirPage = 512

// OpenDir answers FUSE_OPENDIR.
func (f *fileSystem) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := f.nodes.pin(in.NodeId)
	switch {
	case n == nil:
		return fuse.Status(syscall.ESTALE)
	case n.kind != meta.KindDir:
		f.nodes.unpin(n)
		return fuse.ENOTDIR
	}
	out.Fh = f.files.handles.add(&handle{node: n, dir: &dirStream{}})
	return fuse.OK
}

// ReleaseDir answers FUSE_RELEASEDIR.
func (f *fileSystem) ReleaseDir(in *fuse.ReleaseIn) {
	if h := f.files.handles.remove(in.Fh); h != nil {
		f.nodes.unpin(h.node)
	}
}

// FsyncDir answers FUSE_FSYNCDIR: what was answered is in the log already, and now the other nodes show it.
func (f *fileSystem) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return fuse.Status(fail(f.log, "show", meta.Ino(0), f.names.showFor(cancel, in.Pid)))
}

// dirAt returns the entry with that offset; ok is false at the end. Offsets 0 and 1 are "." and "..".
func (f *fileSystem) dirAt(h *handle, off uint64) (e meta.Dirent, ok bool, err error) {
	d := h.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if off == 0 {
		d.entries, d.done = d.entries[:0], false
		if err := f.dots(h); err != nil {
			return e, false, err
		}
	}
	for uint64(len(d.entries)) <= off && !d.done {
		after := ""
		if len(d.entries) > 2 {
			after = d.entries[len(d.entries)-1].Name
		}
		page, err := f.names.state().ReadDir(h.node.ino(), after, dirPage, f.names.cluster.Self())
		if err != nil {
			return e, false, err
		}
		d.entries = append(d.entries, page...)
		d.done = len(page) < dirPage
	}
	if off >= uint64(len(d.entries)) {
		return e, false, nil
	}
	return d.entries[off], true, nil
}

// dots begins the listing. A removed directory has nothing in it.
func (f *fileSystem) dots(h *handle) error {
	rec, err := f.names.state().Inode(h.node.ino())
	if err != nil {
		h.dir.done = true
		if errno(err) == syscall.ENOENT {
			return nil
		}
		return err
	}
	parent := rec.Parent
	if parent == 0 {
		parent = rec.Ino
	}
	h.dir.entries = append(h.dir.entries,
		meta.Dirent{Name: ".", Ino: rec.Ino, Kind: meta.KindDir}, meta.Dirent{Name: "..", Ino: parent, Kind: meta.KindDir})
	return nil
}

// ReadDir answers FUSE_READDIR. There is no FUSE_READDIRPLUS: the kernel takes its names for names of the epoch in
// which it reads the answer, whatever was renamed or removed since they were listed, and would show them until the next
// change.
func (f *fileSystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	h := f.files.handles.get(in.Fh)
	if h == nil || h.dir == nil {
		return fuse.EBADF
	}
	for off := in.Offset; ; off++ {
		d, ok, err := f.dirAt(h, off)
		if err != nil {
			return fuse.Status(fail(f.log, "read directory", h.node.ino(), err))
		}
		if !ok || !out.AddDirEntry(fuse.DirEntry{Name: d.Name, Ino: uint64(d.Ino), Mode: typeBits[d.Kind], Off: off + 1}) {
			return fuse.OK
		}
	}
}
