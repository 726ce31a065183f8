package fs

import (
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// fsIocFsGetXattr is FS_IOC_FSGETXATTR of linux/fs.h, which asks for a struct fsxattr.
const fsIocFsGetXattr = 0x801c581f

// flagless answers the ioctls of lsattr(1) and chattr(1): an inode has no flags here, and takes none.
type flagless struct{ fuse.RawFileSystem }

// Ioctl answers FUSE_IOCTL.
func (flagless) Ioctl(
	_ <-chan struct{}, in *fuse.IoctlIn, inbuf []byte, _ *fuse.IoctlOut, outbuf []byte,
) fuse.Status {
	switch in.Cmd {
	case unix.FS_IOC_GETFLAGS, fsIocFsGetXattr:
		clear(outbuf)
		return fuse.OK
	case unix.FS_IOC_SETFLAGS:
		if !slices.ContainsFunc(inbuf, func(b byte) bool { return b != 0 }) {
			return fuse.OK
		}
		return fuse.Status(unix.EOPNOTSUPP)
	}
	return fuse.Status(unix.ENOTTY)
}
