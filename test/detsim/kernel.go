package detsim

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/fs"
)

// kernel stands in for Linux: programs of a machine send their requests to the mount through it. It caches nothing.
type kernel struct {
	requests fuse.RawFileSystem

	once sync.Once
	gone chan struct{}
}

var _ fs.Kernel = (*kernel)(nil)

func newKernel(requests fuse.RawFileSystem) *kernel {
	return &kernel{requests: requests, gone: make(chan struct{})}
}

func (k *kernel) end() { k.once.Do(func() { close(k.gone) }) }

// Serve implements fs.Kernel: requests come from the programs' own goroutines.
func (k *kernel) Serve() { <-k.gone }

// Device implements fs.Kernel.
func (k *kernel) Device() string { return "" }

// Passthrough implements fs.Kernel.
func (k *kernel) Passthrough() bool { return false }

// MapsDirect implements fs.Kernel.
func (k *kernel) MapsDirect() bool { return true }

// RegisterBackingFd implements fs.Kernel.
func (k *kernel) RegisterBackingFd(*fuse.BackingMap) (int32, syscall.Errno) { return 0, syscall.ENOSYS }

// UnregisterBackingFd implements fs.Kernel.
func (k *kernel) UnregisterBackingFd(int32) syscall.Errno { return syscall.ENOSYS }

// InodeNotify implements fs.Kernel.
func (k *kernel) InodeNotify(uint64, int64, int64) fuse.Status { return fuse.OK }

// Epoch implements fs.Kernel.
func (k *kernel) Epoch() bool { return true }

// Unmount implements fs.Kernel.
func (k *kernel) Unmount(context.Context) error {
	k.end()
	return nil
}

// Detach implements fs.Kernel.
func (k *kernel) Detach() error {
	k.end()
	return nil
}

// Abort implements fs.Kernel.
func (k *kernel) Abort() error {
	k.end()
	return nil
}

// Close implements fs.Kernel.
func (k *kernel) Close() error { return nil }

// program is a program on a machine: its requests go to the mount of the process that runs when it was begun.
type program struct {
	k   *kernel
	pid uint32
}

// lookTries is how often a name is looked up again that an open found changed, as Linux does.
const lookTries = 4

func (p *program) header(node uint64) fuse.InHeader {
	return fuse.InHeader{NodeId: node, Caller: fuse.Caller{Pid: p.pid}}
}

// file is an open file of a program.
type file struct {
	p    *program
	node uint64
	fh   uint64
}

// lookup gives the node of a name in the root directory; ENOENT if there is none.
func (p *program) lookup(name string) (fuse.EntryOut, syscall.Errno) {
	h := p.header(fuse.FUSE_ROOT_ID)
	var out fuse.EntryOut
	st := p.k.requests.Lookup(nil, &h, name, &out)
	if st == fuse.OK && out.NodeId == 0 {
		st = fuse.ENOENT
	}
	return out, syscall.Errno(st)
}

// openCreate is open(2) with O_CREAT: it opens what has the name, or makes a new file.
func (p *program) openCreate(name string, flags uint32) (*file, syscall.Errno) {
	for range lookTries {
		f, no := p.open(name, flags)
		if no != syscall.ENOENT && no != syscall.ESTALE {
			return f, no
		}
		var out fuse.CreateOut
		in := fuse.CreateIn{InHeader: p.header(fuse.FUSE_ROOT_ID), Flags: flags | syscall.O_CREAT, Mode: 0o644}
		st := p.k.requests.Create(nil, &in, name, &out)
		if st == fuse.OK {
			return &file{p: p, node: out.NodeId, fh: out.Fh}, 0
		}
		if syscall.Errno(st) != syscall.ESTALE {
			return nil, syscall.Errno(st)
		}
	}
	return nil, syscall.ESTALE
}

// open opens a file by its name.
func (p *program) open(name string, flags uint32) (*file, syscall.Errno) {
	for range lookTries {
		entry, no := p.lookup(name)
		if no != 0 {
			return nil, no
		}
		in := fuse.OpenIn{InHeader: p.header(entry.NodeId), Flags: flags}
		var out fuse.OpenOut
		st := p.k.requests.Open(nil, &in, &out)
		if st == fuse.OK {
			return &file{p: p, node: entry.NodeId, fh: out.Fh}, 0
		}
		p.k.requests.Forget(entry.NodeId, 1)
		if syscall.Errno(st) != syscall.ESTALE {
			return nil, syscall.Errno(st)
		}
	}
	return nil, syscall.ESTALE
}

// chunk is the most that one request writes, and readBytes what one reads.
const (
	chunk     = 1 << 20
	readBytes = 128 << 10
)

func (f *file) write(data []byte, off int64) syscall.Errno {
	for len(data) > 0 {
		part := data[:min(chunk, len(data))]
		in := fuse.WriteIn{InHeader: f.p.header(f.node), Fh: f.fh, Offset: uint64(off), Size: uint32(len(part))}
		n, st := f.p.k.requests.Write(nil, &in, part)
		if st != fuse.OK {
			return syscall.Errno(st)
		}
		data, off = data[n:], off+int64(n)
	}
	return 0
}

// read reads the whole file, a buffer of readBytes at a time.
func (f *file) read(buf []byte) (state, syscall.Errno) {
	var sum maphash.Hash
	sum.SetSeed(sums)
	size := 0
	for {
		in := fuse.ReadIn{InHeader: f.p.header(f.node), Fh: f.fh, Offset: uint64(size), Size: readBytes}
		res, st := f.p.k.requests.Read(nil, &in, buf)
		if st != fuse.OK {
			return state{}, syscall.Errno(st)
		}
		part, st := res.Bytes(buf)
		if st != fuse.OK {
			return state{}, syscall.Errno(st)
		}
		_, _ = sum.Write(part) // it never fails
		size += len(part)
		res.Done()
		if len(part) < readBytes {
			return state{size: size, sum: sum.Sum64()}, 0
		}
	}
}

func (f *file) fsync() syscall.Errno {
	in := fuse.FsyncIn{InHeader: f.p.header(f.node), Fh: f.fh}
	return syscall.Errno(f.p.k.requests.Fsync(nil, &in))
}

// close is close(2): its errno is that of the flush.
func (f *file) close() syscall.Errno {
	flush := fuse.FlushIn{InHeader: f.p.header(f.node), Fh: f.fh}
	no := syscall.Errno(f.p.k.requests.Flush(nil, &flush))
	release := fuse.ReleaseIn{InHeader: f.p.header(f.node), Fh: f.fh}
	f.p.k.requests.Release(nil, &release)
	f.p.k.requests.Forget(f.node, 1)
	return no
}

func (p *program) unlink(name string) syscall.Errno {
	if e, no := p.lookup(name); no != 0 {
		return no
	} else {
		defer p.k.requests.Forget(e.NodeId, 1)
	}
	h := p.header(fuse.FUSE_ROOT_ID)
	return syscall.Errno(p.k.requests.Unlink(nil, &h, name))
}

func (p *program) rename(from, to string) syscall.Errno {
	in := fuse.RenameIn{InHeader: p.header(fuse.FUSE_ROOT_ID), Newdir: fuse.FUSE_ROOT_ID}
	return syscall.Errno(p.k.requests.Rename(nil, &in, from, to))
}

// list gives the names of the root directory.
func (p *program) list() ([]string, syscall.Errno) {
	open := fuse.OpenIn{InHeader: p.header(fuse.FUSE_ROOT_ID)}
	var out fuse.OpenOut
	if st := p.k.requests.OpenDir(nil, &open, &out); st != fuse.OK {
		return nil, syscall.Errno(st)
	}
	defer p.k.requests.ReleaseDir(&fuse.ReleaseIn{InHeader: p.header(fuse.FUSE_ROOT_ID), Fh: out.Fh})
	var names []string
	for off := uint64(0); ; {
		buf := make([]byte, 64<<10)
		entries := fuse.NewDirEntryList(buf, off)
		in := fuse.ReadIn{InHeader: p.header(fuse.FUSE_ROOT_ID), Fh: out.Fh, Offset: off, Size: uint32(len(buf))}
		if st := p.k.requests.ReadDir(nil, &in, entries); st != fuse.OK {
			return nil, syscall.Errno(st)
		}
		if entries.Offset == off {
			return names, 0
		}
		names = append(names, direntNames(buf)...)
		off = entries.Offset
	}
}

// direntNames reads the names of packed entries, which end at the first zero.
func direntNames(buf []byte) (names []string) {
	const head, lengthAt, align = 24, 16, 8
	for len(buf) >= head {
		n := int(binary.NativeEndian.Uint32(buf[lengthAt:]))
		if n == 0 {
			return names
		}
		if name := string(buf[head : head+n]); name != "." && name != ".." {
			names = append(names, name)
		}
		buf = buf[(head+n+align-1)/align*align:]
	}
	return names
}
