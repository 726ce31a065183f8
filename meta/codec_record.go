package meta

import "syscall"

// recordFormat is the first byte of every record with fields.
const recordFormat = 1

// contentRecord is what is stored of a content.
type contentRecord struct {
	Content
	Owed   []NodeID // nodes with an owed row, ascending
	Placed []NodeID // PlaceCopies: the nodes it is placed on, ascending
}

// owedRecord is the value of an owed row.
type owedRecord struct {
	Content ContentID
	Reason  OwedReason
	Since   int64
	Size    int64
}

// bucketRecord counts live contents of one policy in a run of publish indexes.
type bucketRecord struct{ Contents, Bytes uint64 }

func (r *bucketRecord) code(c *coder) {
	c.u64(&r.Contents)
	c.u64(&r.Bytes)
}

// tokenRecord is a join token.
type tokenRecord struct {
	Expires int64
	Replace bool
	Left    uint32 // joins that the token still serves
	UsedBy  NodeID // the last one it let in; zero while unused
}

// nodeRecord is a Node and what only apply needs of it.
type nodeRecord struct {
	Node
	BootNonce   uint64
	RecheckView uint64   // view from which Recheck began
	JoinKey     [32]byte // Join.KeyHash
}

// dirent is the value of a name.
type dirent struct {
	Ino      Ino
	Kind     Kind
	Reserved bool
}

// present is the value of a key that says all. No value is empty: the store takes that for absence.
var present = []byte{recordFormat}

// rawValue is the stored form of bytes from outside.
func rawValue(b []byte) []byte { return append(append(make([]byte, 0, len(b)+1), recordFormat), b...) }

// record is a value with a field list.
type record interface{ code(*coder) }

func encodeRecord(r record) []byte {
	c := writer(make([]byte, 0, 128))
	format := uint8(recordFormat)
	c.u8(&format)
	r.code(c)
	return c.buf
}

func decodeRecord(data []byte, r record) error {
	c := reader(data)
	var format uint8
	c.u8(&format)
	if format != recordFormat {
		c.fail()
	}
	r.code(c)
	return c.finish()
}

func (d *dirent) code(c *coder) {
	c.ino(&d.Ino)
	c.u8((*uint8)(&d.Kind))
	c.flag(&d.Reserved)
}

func (i *Inode) code(c *coder) {
	c.ino(&i.Ino)
	c.u8((*uint8)(&i.Kind))
	c.u32(&i.Mode)
	c.u32(&i.UID)
	c.u32(&i.GID)
	c.u32(&i.Rdev)
	c.u32(&i.Nlink)
	c.size(&i.Size)
	c.size(&i.Holes)
	c.i64(&i.Atime)
	c.i64(&i.Mtime)
	c.i64(&i.Ctime)
	c.ino(&i.Parent)
	c.str(&i.Name)
	c.str(&i.Target)
	c.u32(&i.Xattrs)
	c.u32((*uint32)(&i.Policy))
	c.u64(&i.Version)
	c.content(&i.Content)
	c.lease(&i.Reserved)
}

// size is a number that is never negative.
func (c *coder) size(p *int64) {
	v := c.uvarint(uint64(*p))
	if v > 1<<63-1 {
		c.fail()
		v = 0
	}
	*p = int64(v)
}

func (r *contentRecord) code(c *coder) {
	c.content(&r.ID)
	c.ino(&r.Ino)
	c.u64(&r.Version)
	c.content(&r.Base)
	c.size(&r.Size)
	c.size(&r.Holes)
	c.fixed(r.Root[:])
	c.i64(&r.Mtime)
	c.u64(&r.Published)
	c.u32((*uint32)(&r.Policy))
	c.u8((*uint8)(&r.State))
	c.str(&r.Reason)
	c.size(&r.Expires)
	c.flag(&r.Inline)
	c.nodes(&r.Owed)
	c.nodes(&r.Placed)
}

func (r *owedRecord) code(c *coder) {
	c.content(&r.Content)
	c.u8((*uint8)(&r.Reason))
	c.i64(&r.Since)
	c.size(&r.Size)
}

func (r *tokenRecord) code(c *coder) {
	c.i64(&r.Expires)
	c.flag(&r.Replace)
	c.u32(&r.Left)
	c.node(&r.UsedBy)
}

func (p *Policy) code(c *coder) {
	c.u32((*uint32)(&p.ID))
	c.u8((*uint8)(&p.Placement))
	c.u32(&p.Copies)
	c.strMap(&p.Labels)
	c.u32(&p.MinCopies)
	c.flag(&p.AckLocal)
	c.u32(&p.Retain)
}

func (r *nodeRecord) code(c *coder) {
	c.node(&r.ID)
	c.str(&r.Name)
	c.str(&r.Addr)
	c.strMap(&r.Labels)
	c.u8((*uint8)(&r.State))
	c.str(&r.Reason)
	c.fixed(r.Store[:])
	c.u32(&r.Incarnation)
	c.u64(&r.BootView)
	c.u64(&r.JoinIndex)
	c.u64(&r.DownIndex)
	c.ranges(&r.Backlog)
	c.u64(&r.Recheck.Lo)
	c.u64(&r.Recheck.Hi)
	c.flag(&r.Voter)
	c.u64(&r.BootNonce)
	c.u64(&r.RecheckView)
	c.fixed(r.JoinKey[:])
	c.last64(&r.DrainIndex)
}

func (r *Result) code(c *coder) {
	c.u64(&r.Index)
	errno := uint32(r.Errno)
	c.u32(&errno)
	r.Errno = syscall.Errno(errno)
	c.ino(&r.Ino)
	c.flag(&r.Existed)
	hasInode := r.Inode != Inode{}
	c.flag(&hasInode)
	if hasInode {
		r.Inode.code(c)
	}
	c.u64(&r.Version)
	c.nodes(&r.Owed)
	c.flag(&r.Conflict)
	c.flag(&r.Orphan)
	c.node(&r.Node)
	c.u32(&r.Incarnation)
	c.u64(&r.View)
	c.ino(&r.Removed)
}
