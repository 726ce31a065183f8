// Package backup keeps the names of a cluster in one file, and brings them back into an empty directory.
//
// The file is a snapshot of package meta: all that the log has made of the names, with attributes, extended attributes,
// policies, versions and the bytes of files of up to 4 KiB. It is checked as a whole when it is written and when it is
// read. The bytes of larger files are not in it. They come from the content stores of stopped nodes, by the id of the
// content, or from plain directories with copies of the files, by the path. Whatever comes is checked by the root of
// its hashes, which the backup has.
//
//	daemon ──snapshot──> Save ──> FILE ──> Open ──> Book.Restore ──> a directory of a mount
//	                                                 ▲ stores, plain directories
//
// A restore works as any program on a mount does. So what it makes is published, placed and synced as always.
package backup
