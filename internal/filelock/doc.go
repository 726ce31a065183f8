// Package filelock keeps the advisory locks of files: flock(2), and fcntl(2) with both of its kinds, POSIX and OFD.
// Its answers are those of Linux on a local disk.
//
// It is a pure core: it takes requests and gives answers. Who waits, and for how long, is its caller's business. A
// [Table] is not safe for concurrent use.
//
// A lock belongs to a file, an inode number, and not to what the kernel has of it: a mount may have several kernel
// inodes of one file, for different versions of its bytes.
package filelock
