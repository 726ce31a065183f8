package fs

import (
	"errors"
	"io"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// copyChunk is the buffer of a copy that the kernel cannot make for us.
const copyChunk = 1 << 20

// source is what a handle reads from.
func (h *handle) source() io.ReaderAt {
	if l := h.staged(); l != nil {
		return l.stage
	}
	return h.version
}

// fd is a descriptor of exactly the handle's bytes, or -1.
func (h *handle) fd() int {
	if l := h.staged(); l != nil {
		return l.stage.Fd()
	}
	return h.version.fd()
}

// Read answers FUSE_READ, of files that have no passthrough.
func (f *fileSystem) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	h := f.files.handles.get(in.Fh)
	if h == nil || h.dir != nil {
		return nil, fuse.EBADF
	}
	source := h.source()
	if h.followed != nil {
		v, done := f.files.follow.read(h.followed)
		if v == nil {
			return nil, fuse.EIO
		}
		defer done()
		source = v
	}
	f.files.noteCached(h)
	n, err := readFull(source, buf, int64(in.Offset))
	if err != nil {
		return nil, fuse.Status(fail(f.log, "read", h.node.ino(), err))
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// Write answers FUSE_WRITE, of files that have no passthrough.
func (f *fileSystem) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	l := f.files.writable(in.Fh)
	if l == nil {
		return 0, fuse.EBADF
	}
	n, err := l.stage.WriteAt(data, f.place(l, in))
	if n > 0 {
		l.touched()
	}
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		ctx, stop := f.life.callContext(cancel, in.Pid)
		defer stop()
		f.attrs.killPrivOf(ctx, l.node)
	}
	if err != nil && n == 0 {
		return 0, fuse.Status(fail(f.log, "write", l.node.ino(), err))
	}
	return uint32(n), fuse.OK
}

// Writev answers FUSE_WRITE when the data came in pieces.
func (f *fileSystem) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	if len(data) == 1 {
		return f.Write(cancel, in, data[0])
	}
	return 0, fuse.ENOSYS
}

// Lseek answers FUSE_LSEEK for SEEK_DATA and SEEK_HOLE.
func (f *fileSystem) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	h := f.files.handles.get(in.Fh)
	if h == nil || h.dir != nil {
		return fuse.EBADF
	}
	if h.followed != nil {
		v, done := f.files.follow.read(h.followed)
		if v == nil {
			return fuse.EIO
		}
		defer done()
		h = &handle{node: h.node, version: v}
	}
	if fd := h.fd(); fd >= 0 {
		at, err := unix.Seek(fd, int64(in.Offset), int(in.Whence))
		out.Offset = uint64(at)
		return fuse.ToStatus(err)
	}
	at, no := f.seekPlain(h, int64(in.Offset), in.Whence)
	out.Offset = uint64(at)
	return fuse.Status(no)
}

// seekPlain seeks in what is no plain file here.
func (f *fileSystem) seekPlain(h *handle, off int64, whence uint32) (int64, syscall.Errno) {
	l := h.staged()
	if l == nil {
		return h.version.seek(off, whence)
	}
	st, err := l.stage.Stat()
	if err != nil {
		return 0, fail(f.log, "seek", h.node.ino(), err)
	}
	data, err := l.stage.Data(st.Size)
	if err != nil {
		return 0, fail(f.log, "seek", h.node.ino(), err)
	}
	return seekExtents(data, st.Size, off, whence)
}

// seek finds the next data or hole of a version at or after off.
func (v *version) seek(off int64, whence uint32) (at int64, no syscall.Errno) {
	if off < 0 || off >= v.size {
		return 0, syscall.ENXIO
	}
	if whence == unix.SEEK_HOLE {
		return min(v.NextHole(off), v.size), 0
	}
	if at = v.NextData(off); at >= v.size {
		return 0, syscall.ENXIO
	}
	return at, 0
}

// seekExtents finds the next data or hole at or after off.
func seekExtents(data []replicate.Extent, size, off int64, whence uint32) (int64, syscall.Errno) {
	if off < 0 || off >= size {
		return 0, syscall.ENXIO
	}
	for _, e := range data {
		end := min(e.Offset+e.Length, size)
		switch {
		case end <= off:
			continue
		case whence == unix.SEEK_DATA:
			return max(off, e.Offset), 0
		case e.Offset > off:
			return off, 0
		}
		off = end
	}
	if whence == unix.SEEK_DATA {
		return 0, syscall.ENXIO
	}
	return min(off, size), 0
}

// Fallocate answers FUSE_FALLOCATE.
func (f *fileSystem) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	l := f.files.writable(in.Fh)
	if l == nil {
		return fuse.EBADF
	}
	ctx, stop := f.life.callContext(cancel, in.Pid)
	defer stop()
	err := l.allocate(ctx, in.Mode, int64(in.Offset), int64(in.Length))
	l.touched()
	return fuse.Status(fail(f.log, "allocate", l.node.ino(), err))
}

// CopyFileRange answers FUSE_COPY_FILE_RANGE.
func (f *fileSystem) CopyFileRange(_ <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	src := f.files.handles.get(in.FhIn)
	dst := f.files.writable(in.FhOut)
	if src == nil || src.dir != nil || dst == nil {
		return 0, fuse.EBADF
	}
	length := int(min(in.Len, 1<<30))
	n, err := copyRange(src, int64(in.OffIn), dst.stage, int64(in.OffOut), length)
	if n > 0 {
		dst.touched()
	}
	if err != nil && n == 0 {
		return 0, fuse.Status(fail(f.log, "copy", dst.node.ino(), err))
	}
	return uint32(n), fuse.OK
}

// copyRange copies within the kernel where both sides are plain files.
func copyRange(src *handle, offIn int64, dst Staged, offOut int64, length int) (int, error) {
	if in, out := src.fd(), dst.Fd(); in >= 0 && out >= 0 {
		n, err := unix.CopyFileRange(in, &offIn, out, &offOut, length, 0)
		if err == nil || !errors.Is(err, syscall.EXDEV) && !errors.Is(err, syscall.EOPNOTSUPP) &&
			!errors.Is(err, syscall.EINVAL) {
			return max(n, 0), err // it is -1 with an error
		}
	}
	buf := make([]byte, min(length, copyChunk))
	done := 0
	for done < length {
		p := buf[:min(len(buf), length-done)]
		n, err := readFull(src.source(), p, offIn+int64(done))
		if err != nil || n == 0 {
			return done, err
		}
		n, err = dst.WriteAt(p[:n], offOut+int64(done))
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// StatFs answers FUSE_STATFS.
func (f *fileSystem) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	const unit = 4096
	space, err := f.files.staging.Space()
	if err != nil {
		return fuse.Status(fail(f.log, "statfs", 0, err))
	}
	files, _ := f.names.state().StatFS()
	*out = fuse.StatfsOut{
		Blocks: space.Total / unit, Bfree: space.Free / unit, Bavail: space.Available / unit,
		Files: files + space.Available/unit, Ffree: space.Available / unit,
		Bsize: unit, Frsize: unit, NameLen: nameBytesMax,
	}
	return fuse.OK
}
