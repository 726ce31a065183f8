package meta

import (
	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/filelock"
)

// Keys of the replicated state. The first byte is the table; numbers are big-endian so that they sort.
//
//	H                              head: index, time, view, counters, digest (not part of the digest's sum)
//	i ino                          Inode
//	d parent name                  dirent: inode number, kind, reserved or not
//	n ino parent name              further names of a hard-linked inode (the first is in the Inode)
//	a ino name                     extended attribute
//	c content                      contentRecord
//	b content                      inline bytes
//	p index                        content published at that index, while it is live; not the inline ones
//	u policy bucket                bucketRecord: how many of them under a policy, per 1024 indexes
//	v ino content                  live contents of an inode other than the current one
//	k expires content              contents kept until a time; of node 0: the removed file of the log index in it
//	z index                        RemovedFile: the file that was removed at that index, while it is kept
//	o node index                   owedRecord: one content owed to one node
//	r node incarnation ino         inodes reserved under a lease
//	f node                         reservations of dead leases of the node remain to be freed
//	m node                         Node
//	s node store                   a store that the node had before it was replaced
//	w node                         progress: numbers of the node's incarnation that change with every entry
//	x node seq                     Result in the exactly-once window
//	q policy                       Policy
//	t hash                         token
//	y                              electorate: who votes in raft
//	A                              auditCount: how many rows the next table has
//	A index                        auditRecord: a command that changed the cluster
//	l ino                          fileLocks: who decides the locks of a file, and its locks
//	j node incarnation ino         files in whose fileLocks an incarnation is named
//	g node incarnation space id ino   files whose record locks an owner waits for
//	e dir                          Lease: who gives the new names of a directory by itself
//	h node incarnation dir         directories whose names are delegated to a lease
const (
	tableHead     = 'H'
	tableInode    = 'i'
	tableDirent   = 'd'
	tableName     = 'n'
	tableXattr    = 'a'
	tableContent  = 'c'
	tableInline   = 'b'
	tableIndex    = 'p'
	tableBucket   = 'u'
	tableVersion  = 'v'
	tableKept     = 'k'
	tableRemoved  = 'z'
	tableOwed     = 'o'
	tableReserved = 'r'
	tableFree     = 'f'
	tableNode     = 'm'
	tableFormer   = 's'
	tableProgress = 'w'
	tableResult   = 'x'
	tablePolicy   = 'q'
	tableToken    = 't'
	tableVoters   = 'y'
	tableLocks    = 'l'
	tableLocked   = 'j'
	tableWaits    = 'g'
	tableNames    = 'e'
	tableNamesOf  = 'h'
	tableAudit    = 'A'
)

var headKey = []byte{tableHead}

// key begins a key of a table, with room for size bytes.
func key(table byte, size int) coder.Coder {
	c := coder.Writer(make([]byte, 0, size), coder.Big)
	c.U8(&table)
	return c
}

// keyNumber is the number of eight bytes at a place of a key.
func keyNumber(key []byte, at int) (v uint64) {
	c := coder.Reader(key[at:], coder.Big)
	c.U64(&v)
	return v
}

// keyRoom is the room of a key that others append to.
const keyRoom = 32

// key64 is a table and one 8-byte number, with room to append.
func key64(table byte, v uint64) []byte {
	c := key(table, keyRoom)
	c.U64(&v)
	return c.Written()
}

func key32(table byte, v uint32) []byte {
	c := key(table, keyRoom)
	c.U32(&v)
	return c.Written()
}

func keyContent(table byte, id ContentID) []byte {
	c := key(table, 17)
	id.Code(&c)
	return c.Written()
}

func inodeKey(ino Ino) []byte { return key64(tableInode, uint64(ino)) }

func direntKey(dir Ino, name string) []byte {
	return keyName(tableDirent, dir, name)
}

func keyName(table byte, ino Ino, name string) []byte {
	c := key(table, 9+len(name))
	c.U64((*uint64)(&ino))
	return append(c.Written(), name...)
}

func nameKey(ino, parent Ino, name string) []byte {
	c := key(tableName, 17+len(name))
	c.U64((*uint64)(&ino))
	c.U64((*uint64)(&parent))
	return append(c.Written(), name...)
}

func versionKey(ino Ino, id ContentID) []byte {
	c := key(tableVersion, keyRoom)
	c.U64((*uint64)(&ino))
	id.Code(&c)
	return c.Written()
}

// bucketBits is the binary logarithm of how many publish indexes a bucket counts.
const bucketBits = 10

func bucketKey(policy PolicyID, bucket uint64) []byte {
	return key32and64(tableBucket, uint32(policy), bucket)
}

func keptKey(expires int64, id ContentID) []byte {
	c := key(tableKept, keyRoom)
	c.I64(&expires)
	id.Code(&c)
	return c.Written()
}

func namesKey(dir Ino) []byte { return key64(tableNames, uint64(dir)) }

func removedKey(index uint64) []byte { return key64(tableRemoved, index) }

func owedKey(node NodeID, published uint64) []byte {
	return key32and64(tableOwed, uint32(node), published)
}

func reservedKey(l Lease, ino Ino) []byte { return keyOfLease(tableReserved, l, ino) }

func lockedKey(l Lease, ino Ino) []byte { return keyOfLease(tableLocked, l, ino) }

func namesOfKey(l Lease, dir Ino) []byte { return keyOfLease(tableNamesOf, l, dir) }

// keyOfLease is an inode that belongs to a lease.
func keyOfLease(table byte, l Lease, ino Ino) []byte {
	c := key(table, keyRoom)
	c.U32((*uint32)(&l.Node))
	c.U32(&l.Incarnation)
	c.U64((*uint64)(&ino))
	return c.Written()
}

// waitsKey is a file that an owner waits for; the rows of an owner are those under the key without the file.
func waitsKey(o filelock.Owner, ino Ino) []byte {
	c := key(tableWaits, waitsKeyBytes)
	c.U32(&o.Node)
	c.U32(&o.Incarnation)
	c.U64(&o.Space)
	c.U64(&o.ID)
	c.U64((*uint64)(&ino))
	return c.Written()
}

const (
	waitsKeyBytes = 33
	waitsKeyOwner = 25 // table and owner
)

func resultKey(node NodeID, seq uint64) []byte {
	return key32and64(tableResult, uint32(node), seq)
}

func key32and64(table byte, first uint32, second uint64) []byte {
	c := key(table, keyRoom)
	c.U32(&first)
	c.U64(&second)
	return c.Written()
}

func formerKey(node NodeID, store [16]byte) []byte {
	return append(key32(tableFormer, uint32(node)), store[:]...)
}

func tokenKey(hash [32]byte) []byte { return append([]byte{tableToken}, hash[:]...) }

// tailContent reads the content at the end of a key.
func tailContent(key []byte) ContentID {
	return ContentIDFromBytes([16]byte(key[len(key)-16:]))
}
