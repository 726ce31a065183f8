package meta

import (
	"math"
	"syscall"
)

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

func (r *bucketRecord) code(c *fields) {
	c.V64(&r.Contents)
	c.V64(&r.Bytes)
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
type record interface{ code(*fields) }

func encodeRecord(r record) []byte {
	c := writer(make([]byte, 0, 128))
	c.Same8("format", recordFormat)
	r.code(c)
	return c.Written()
}

func decodeRecord(data []byte, r record) error {
	c := reader(data)
	c.Same8("format", recordFormat)
	r.code(c)
	return c.Finish()
}

func (d *dirent) code(c *fields) {
	c.ino(&d.Ino)
	c.U8((*uint8)(&d.Kind))
	c.Flag(&d.Reserved)
}

func (i *Inode) code(c *fields) {
	i.fields(c)
	c.lastTime(&i.Btime)
}

// fields are those of an inode but for its Btime, which goes to the end of what holds the inode.
func (i *Inode) fields(c *fields) {
	c.ino(&i.Ino)
	c.U8((*uint8)(&i.Kind))
	c.V32(&i.Mode)
	c.V32(&i.UID)
	c.V32(&i.GID)
	c.V32(&i.Rdev)
	c.V32(&i.Nlink)
	c.size(&i.Size)
	c.size(&i.Holes)
	c.I64(&i.Atime)
	c.I64(&i.Mtime)
	c.I64(&i.Ctime)
	c.ino(&i.Parent)
	c.str(&i.Name)
	c.str(&i.Target)
	c.V32(&i.Xattrs)
	c.V32((*uint32)(&i.Policy))
	c.V64(&i.Version)
	c.content(&i.Content)
	c.lease(&i.Reserved)
}

// size is a number that is never negative.
func (c *fields) size(p *int64) { c.Size(p, math.MaxInt64) }

func (r *contentRecord) code(c *fields) {
	c.content(&r.ID)
	c.ino(&r.Ino)
	c.V64(&r.Version)
	c.content(&r.Base)
	c.size(&r.Size)
	c.size(&r.Holes)
	c.Fixed(r.Root[:])
	c.I64(&r.Mtime)
	c.V64(&r.Published)
	c.V32((*uint32)(&r.Policy))
	c.U8((*uint8)(&r.State))
	c.str(&r.Reason)
	c.size(&r.Expires)
	c.Flag(&r.Inline)
	c.nodes(&r.Owed)
	c.nodes(&r.Placed)
}

func (r *owedRecord) code(c *fields) {
	c.content(&r.Content)
	c.U8((*uint8)(&r.Reason))
	c.I64(&r.Since)
	c.size(&r.Size)
}

func (r *tokenRecord) code(c *fields) {
	c.I64(&r.Expires)
	c.Flag(&r.Replace)
	c.V32(&r.Left)
	c.node(&r.UsedBy)
}

func (p *Policy) code(c *fields) {
	c.V32((*uint32)(&p.ID))
	c.U8((*uint8)(&p.Placement))
	c.V32(&p.Copies)
	c.strMap(&p.Labels)
	c.V32(&p.MinCopies)
	c.Flag(&p.AckLocal)
	c.V32(&p.Retain)
	c.last64(&p.KeepRemoved, &p.SendRate, (*uint64)(&p.Priority))
}

func (r *nodeRecord) code(c *fields) {
	c.node(&r.ID)
	c.str(&r.Name)
	c.str(&r.Addr)
	c.strMap(&r.Labels)
	c.U8((*uint8)(&r.State))
	c.str(&r.Reason)
	c.Fixed(r.Store[:])
	c.V32(&r.Incarnation)
	c.V64(&r.BootView)
	c.V64(&r.JoinIndex)
	c.V64(&r.DownIndex)
	c.ranges(&r.Backlog)
	c.V64(&r.Recheck.Lo)
	c.V64(&r.Recheck.Hi)
	c.Flag(&r.Voter)
	c.V64(&r.BootNonce)
	c.V64(&r.RecheckView)
	c.Fixed(r.JoinKey[:])
	c.lastProgram(&r.Program, &r.DrainIndex)
}

func (r *Result) code(c *fields) {
	c.V64(&r.Index)
	errno := uint32(r.Errno)
	if c.V32(&errno); c.Reading() {
		r.Errno = syscall.Errno(errno)
	}
	c.ino(&r.Ino)
	c.Flag(&r.Existed)
	hasInode := r.Inode != Inode{}
	if c.Flag(&hasInode); hasInode {
		if r.Inode.fields(c); r.Inode == (Inode{}) {
			c.Fail("an inode that is none")
		}
	}
	c.V64(&r.Version)
	c.nodes(&r.Owed)
	c.Flag(&r.Conflict)
	c.Flag(&r.Orphan)
	c.node(&r.Node)
	c.V32(&r.Incarnation)
	c.V64(&r.View)
	c.ino(&r.Removed)
	if hasInode {
		c.lastTime(&r.Inode.Btime)
	}
}
