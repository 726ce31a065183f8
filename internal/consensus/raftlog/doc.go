// Package raftlog keeps a raft log on disk in preallocated segments, and tells a torn end from a damaged log.
//
// A directory holds segments named by number. A segment is a file of fixed size, allocated and zero before it is
// used, so that appending can't run out of space in the middle: the next segment is always allocated ahead, and when
// that fails the log says so ([Log.Full]) while there is still room in the current one.
//
//	segment:  frame frame frame ... zeros
//	frame:    header (32 bytes: magic, kind, length, number, CRCs) payload padding to 8
//	first:    kind head: identity, hard state, base, number of the frame that must precede it
//	others:   kind batch: entries, hard state, base; written and synced as one
//
// Frames are numbered over the whole log, and frame n+1 is only written when frame n is on stable storage. So
// an unreadable frame with nothing after it is the torn end of a write that was never acknowledged (if some sector
// of it is still zero); one with readable frames after it, or with every sector written, is damage: [ErrDamaged].
// After a write error the log goes on in a new segment, whose head names the last good frame: what follows
// that frame in the older segment is ignored.
//
// The base is the point before the first entry: {index, term, voters at that index}. The state machine holds
// everything up to it. Moving it forward lets old segments go.
//
// Why not etcd's storage/wal? By its source (v3.7.3; not tried out), a log that has met an error can't be used again in
// the same process. Close returns at a failing sync and keeps the files' locks. After a failed preallocation the next
// segment is a nil file, which panics at the following cut. Bytes whose write failed are dropped from its page buffer
// although the chain of checksums includes them, so what is written later can't be read back. Nor can it be put on a
// simulated disk, and its segment size and metrics are globals.
package raftlog
