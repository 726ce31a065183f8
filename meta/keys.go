package meta

import "encoding/binary"

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
//	k expires content              contents kept until a time
//	o node index                   owedRecord: one content owed to one node
//	r node incarnation ino         inodes reserved under a lease
//	f node                         reservations of dead leases of the node remain to be freed
//	m node                         Node
//	s node store                   a store that the node had before it was replaced
//	w node                         progress: numbers of the node's incarnation that change with every entry
//	x node seq                     Result in the exactly-once window
//	q policy                       Policy
//	t hash                         token
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
	tableOwed     = 'o'
	tableReserved = 'r'
	tableFree     = 'f'
	tableNode     = 'm'
	tableFormer   = 's'
	tableProgress = 'w'
	tableResult   = 'x'
	tablePolicy   = 'q'
	tableToken    = 't'
)

var headKey = []byte{tableHead}

// key64 is a table and one 8-byte number, with room to append.
func key64(table byte, v uint64) []byte {
	k := make([]byte, 9, 32)
	k[0] = table
	binary.BigEndian.PutUint64(k[1:], v)
	return k
}

func key32(table byte, v uint32) []byte {
	k := make([]byte, 5, 32)
	k[0] = table
	binary.BigEndian.PutUint32(k[1:], v)
	return k
}

func keyContent(table byte, id ContentID) []byte {
	k := make([]byte, 17)
	k[0] = table
	b := id.Bytes()
	copy(k[1:], b[:])
	return k
}

func inodeKey(ino Ino) []byte { return key64(tableInode, uint64(ino)) }

func direntKey(dir Ino, name string) []byte {
	return keyName(tableDirent, dir, name)
}

func keyName(table byte, ino Ino, name string) []byte {
	k := make([]byte, 9+len(name))
	k[0] = table
	binary.BigEndian.PutUint64(k[1:], uint64(ino))
	copy(k[9:], name)
	return k
}

func nameKey(ino, parent Ino, name string) []byte {
	k := make([]byte, 17+len(name))
	k[0] = tableName
	binary.BigEndian.PutUint64(k[1:], uint64(ino))
	binary.BigEndian.PutUint64(k[9:], uint64(parent))
	copy(k[17:], name)
	return k
}

func versionKey(ino Ino, id ContentID) []byte {
	b := id.Bytes()
	return append(key64(tableVersion, uint64(ino)), b[:]...)
}

// bucketBits is the binary logarithm of how many publish indexes a bucket counts.
const bucketBits = 10

func bucketKey(policy PolicyID, bucket uint64) []byte {
	return binary.BigEndian.AppendUint64(key32(tableBucket, uint32(policy)), bucket)
}

func keptKey(expires int64, id ContentID) []byte {
	b := id.Bytes()
	return append(key64(tableKept, uint64(expires)), b[:]...)
}

func owedKey(node NodeID, published uint64) []byte {
	return binary.BigEndian.AppendUint64(key32(tableOwed, uint32(node)), published)
}

func reservedKey(l Lease, ino Ino) []byte {
	k := binary.BigEndian.AppendUint32(key32(tableReserved, uint32(l.Node)), l.Incarnation)
	return binary.BigEndian.AppendUint64(k, uint64(ino))
}

func resultKey(node NodeID, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(key32(tableResult, uint32(node)), seq)
}

func formerKey(node NodeID, store [16]byte) []byte {
	return append(key32(tableFormer, uint32(node)), store[:]...)
}

func tokenKey(hash [32]byte) []byte { return append([]byte{tableToken}, hash[:]...) }

// tailContent reads the content at the end of a key.
func tailContent(key []byte) ContentID {
	return ContentIDFromBytes([16]byte(key[len(key)-16:]))
}
