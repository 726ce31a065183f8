package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// statRequests are the requests for the attributes of a node.
type statRequests struct {
	attrs *attributes
	life  *lifetime
}

// GetAttr answers FUSE_GETATTR.
func (r statRequests) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	_, status := r.answer(in.NodeId, out)
	return status
}

// Statx answers FUSE_STATX, which the kernel sends instead of FUSE_GETATTR when a program asks for the birth time. The
// kernel keeps what it gets here like the answer to a GETATTR, and the birth time for as long as it has the inode: a
// stat of what it keeps asks for nothing.
func (r statRequests) Statx(_ <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	var attr fuse.AttrOut
	n, status := r.answer(in.NodeId, &attr)
	if n == nil {
		return status
	}
	out.AttrValid, out.AttrValidNsec = attr.AttrValid, attr.AttrValidNsec
	setStatx(&out.Statx, &attr.Attr, r.attrs.nodes.btime(n))
	return status
}

// answer gives the attributes of a node; it is nil if there is none.
func (r statRequests) answer(id uint64, out *fuse.AttrOut) (*node, fuse.Status) {
	n := r.attrs.nodes.get(id)
	if n == nil {
		return nil, fuse.Status(syscall.ESTALE)
	}
	r.attrs.files.awaitSettled(r.life.ctx, n)
	r.attrs.answer(n, out)
	return n, fuse.OK
}

// setStatx gives the attributes of a GETATTR in the form of statx(2), with the birth time if it is known.
func setStatx(out *fuse.Statx, a *fuse.Attr, btime int64) {
	*out = fuse.Statx{
		Mask: unix.STATX_BASIC_STATS, Blksize: a.Blksize, Nlink: a.Nlink, Uid: a.Uid, Gid: a.Gid, Mode: uint16(a.Mode),
		Ino: a.Ino, Size: a.Size, Blocks: a.Blocks,
		Atime:     fuse.SxTime{Sec: a.Atime, Nsec: a.Atimensec},
		Mtime:     fuse.SxTime{Sec: a.Mtime, Nsec: a.Mtimensec},
		Ctime:     fuse.SxTime{Sec: a.Ctime, Nsec: a.Ctimensec},
		RdevMajor: a.Rdev >> 8 & 0xfff, RdevMinor: a.Rdev&0xff | a.Rdev>>12&0xfff00,
	}
	if btime != 0 {
		out.Mask |= unix.STATX_BTIME
		setTime(&out.Btime.Sec, &out.Btime.Nsec, btime)
	}
}
