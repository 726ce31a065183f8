package meta

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

// MaxEntryBytes bounds an encoded entry, so that one entry always fits one transaction.
const MaxEntryBytes = 1 << 20

// EncodeEntry is the form of an entry in the log.
func EncodeEntry(e Entry) []byte { return AppendEntry(nil, e) }

// AppendEntry appends the log form of e to buf.
func AppendEntry(buf []byte, e Entry) []byte {
	c := writer(buf)
	e.codeHead(c)
	code := e.Op.opcode()
	c.U8(&code)
	e.Op.(codedOp).code(c)
	return c.Written()
}

// DecodeEntry reads what AppendEntry wrote. It keeps no reference to data.
func DecodeEntry(data []byte) (Entry, error) {
	var e Entry
	if len(data) > MaxEntryBytes {
		return e, fmt.Errorf("meta: decode entry: %d bytes: %w", len(data), errMalformed)
	}
	c := reader(data)
	var code uint8
	e.codeHead(c)
	c.U8(&code)
	op := newOp(code, e.Format)
	if c.OK() && op == nil {
		return e, fmt.Errorf("meta: decode entry: operation %d: %w", code, errMalformed)
	}
	if op != nil {
		op.code(c)
	}
	if err := c.Finish(); err != nil {
		return e, fmt.Errorf("meta: decode entry: operation %d: %w", code, err)
	}
	e.Op = op
	return e, nil
}

// codeHead lists the format of the entry, which says what comes after it, and who proposes it.
func (e *Entry) codeHead(c *fields) {
	c.format = max(e.Format, format.First)
	c.V64(&c.format)
	if c.Reading() {
		e.Format = c.format
	}
	if c.format < format.First {
		c.Fail("format %d", c.format)
	}
	c.node(&e.Node)
	c.V32(&e.Incarnation)
	c.V64(&e.Seq)
	c.V64(&e.Acked)
	c.V32(&e.Generation)
}

type codedOp interface {
	Op
	code(*fields)
}

var opMakers = map[uint8]func() codedOp{
	1:  func() codedOp { return new(Create) },
	2:  func() codedOp { return new(Link) },
	3:  func() codedOp { return new(Unlink) },
	4:  func() codedOp { return new(Rmdir) },
	5:  func() codedOp { return new(Rename) },
	6:  func() codedOp { return new(SetAttr) },
	7:  func() codedOp { return new(Publish) },
	8:  func() codedOp { return new(Abort) },
	9:  func() codedOp { return new(Join) },
	10: func() codedOp { return new(Boot) },
	11: func() codedOp { return new(Down) },
	12: func() codedOp { return new(Evict) },
	13: func() codedOp { return new(Held) },
	14: func() codedOp { return new(Unheld) },
	15: func() codedOp { return new(SetPolicy) },
	16: func() codedOp { return new(Restore) },
	17: func() codedOp { return new(Expire) },
	18: func() codedOp { return new(AddToken) },
	21: func() codedOp { return new(Release) },
	22: func() codedOp { return new(Drain) },
	23: func() codedOp { return new(EvictSpare) },
	24: func() codedOp { return &Unlink{GiveBack: true} },
	25: func() codedOp { return new(SetVoters) },
	26: func() codedOp { return new(LockFile) },
	27: func() codedOp { return new(ReturnLocks) },
	28: func() codedOp { return new(UnlockFile) },
	29: func() codedOp { return new(Undelete) },
	30: func() codedOp { return new(Reserve) },
	31: func() codedOp { return new(DelegateNames) },
	32: func() codedOp { return new(ReturnNames) },
	33: func() codedOp { return new(RecallNames) },
	34: func() codedOp { return &Publish{Made: new(Made)} },
	35: func() codedOp { return new(RaiseFormat) },
	36: func() codedOp { return new(Audit) },
}

// opSince are the formats in which operations came that are not of the first one.
var opSince = map[uint8]uint64{}

// newOp makes an empty operation of a code, nil if a format has none.
func newOp(code uint8, format uint64) codedOp {
	if mk := opMakers[code]; mk != nil && opSince[code] <= format {
		return mk()
	}
	return nil
}

func (o *Create) code(c *fields) {
	c.ino(&o.Parent)
	c.str(&o.Name)
	c.U8((*uint8)(&o.Kind))
	c.V32(&o.Mode)
	o.Cred.code(c)
	c.V32(&o.Rdev)
	c.str(&o.Target)
	c.Flag(&o.Excl)
	c.lastTime(&o.Btime)
}

func (o *Reserve) code(c *fields) {
	c.V32(&o.Incarnation)
	c.ino(&o.Parent)
	c.str(&o.Name)
	c.ino(&o.Ino)
	o.Made.code(c)
	c.lastTime(&o.Btime)
}

func (m *Made) code(c *fields) {
	c.V32(&m.Mode)
	m.Cred.code(c)
	c.V32((*uint32)(&m.Policy))
}

func (o *DelegateNames) code(c *fields) {
	c.ino(&o.Dir)
	c.Flag(&o.Numbers)
}

func (o *ReturnNames) code(c *fields) {
	for i := range coder.Slice(&c.Coder, &o.Dirs, coder.Unbounded, 1) {
		c.ino(&o.Dirs[i])
	}
}

func (o *RecallNames) code(c *fields) { c.ino(&o.Dir) }

func (o *Cred) code(c *fields) {
	c.V32(&o.UID)
	c.V32(&o.GID)
}

func (o *Link) code(c *fields) {
	c.ino(&o.Ino)
	c.ino(&o.Parent)
	c.str(&o.Name)
}

func (o *Unlink) code(c *fields) {
	c.ino(&o.Parent)
	c.str(&o.Name)
	c.ino(&o.Ino)
}

func (o *Rmdir) code(c *fields) {
	c.ino(&o.Parent)
	c.str(&o.Name)
}

func (o *Rename) code(c *fields) {
	c.ino(&o.OldParent)
	c.str(&o.OldName)
	c.ino(&o.NewParent)
	c.str(&o.NewName)
	c.V32(&o.Flags)
	if o.Flags&RenameWhiteout != 0 {
		o.Cred.code(c)
	}
}

func (o *SetAttr) code(c *fields) {
	c.ino(&o.Ino)
	o.Patch.code(c)
	c.V32(&o.XattrFlags)
}

func (a *AttrPatch) code(c *fields) {
	c.V16((*uint16)(&a.Mask))
	c.V32(&a.Mode)
	c.V32(&a.UID)
	c.V32(&a.GID)
	c.I64(&a.Atime)
	c.I64(&a.Mtime)
	c.I64(&a.Ctime)
	c.bytesMap(&a.SetXattr)
	c.strs(&a.DelXattr)
}

func (o *Publish) code(c *fields) {
	c.ino(&o.Ino)
	c.content(&o.Session)
	c.content(&o.Base)
	c.I64(&o.Size)
	c.I64(&o.Holes)
	c.Fixed(o.Root[:])
	c.V64(&o.Votes.View)
	c.bytes(&o.Votes.Bitmap)
	for i := range coder.Slice(&c.Coder, &o.Missing, coder.Unbounded, 2) {
		c.node(&o.Missing[i].Node)
		c.U8((*uint8)(&o.Missing[i].Reason))
	}
	c.bytes(&o.Inline)
	o.Attr.code(c)
	c.ino(&o.LinkParent)
	c.str(&o.LinkName)
	c.str(&o.Hint)
	if o.Made != nil {
		o.Made.code(c)
	}
	c.lastTime(&o.Btime)
}

func (o *Audit) code(c *fields) {
	c.V64(&o.Of)
	c.V32(&o.UID)
	c.V32(&o.Login)
	c.str(&o.Command)
	c.str(&o.Outcome)
}

func (o *Abort) code(c *fields) { c.content(&o.Session) }

func (o *Join) code(c *fields) {
	c.str(&o.Name)
	c.str(&o.Addr)
	c.strMap(&o.Labels)
	c.Fixed(o.TokenHash[:])
	c.Flag(&o.Replace)
	c.Fixed(o.KeyHash[:])
	c.lastProgram(&o.Program)
}

func (o *Boot) code(c *fields) {
	c.node(&o.Node)
	c.Fixed(o.Store[:])
	c.str(&o.Addr)
	c.V64(&o.Nonce)
	c.lastProgram(&o.Program)
	if o.Program.Formats.Newest != 0 {
		c.last64(&o.Next)
	} else if c.Reading() {
		o.Next = 0
	}
}

func (o *RaiseFormat) code(c *fields) { c.V64(&o.To) }

func (o *Down) code(c *fields) {
	c.node(&o.Node)
	c.V32(&o.Incarnation)
	c.str(&o.Reason)
}

func (o *Evict) code(c *fields) {
	c.node(&o.Node)
	c.str(&o.Reason)
}

func (o *EvictSpare) code(c *fields) {
	c.node(&o.Node)
	c.str(&o.Reason)
	c.V64(&o.View)
	c.V64(&o.Checked)
}

func (o *Drain) code(c *fields) {
	c.node(&o.Node)
	c.Flag(&o.Undo)
}

func (o *Held) code(c *fields) {
	c.node(&o.Node)
	c.contents(&o.Contents)
	c.V64(&o.UpTo)
	c.V64(&o.View)
}

func (o *Unheld) code(c *fields) {
	c.node(&o.Node)
	c.contents(&o.Contents)
	c.U8((*uint8)(&o.Reason))
}

func (o *Release) code(c *fields) {
	c.node(&o.Node)
	c.contents(&o.Contents)
}

func (o *SetPolicy) code(c *fields) {
	c.ino(&o.Dir)
	has := o.Policy != nil
	c.Flag(&has)
	if c.Reading() {
		o.Policy = nil
		if has {
			o.Policy = new(Policy)
		}
	}
	if has {
		o.Policy.code(c)
	}
}

func (o *Restore) code(c *fields) {
	c.ino(&o.Ino)
	c.content(&o.Content)
	c.ino(&o.Parent)
	c.str(&o.Name)
	o.Cred.code(c)
}

func (o *Undelete) code(c *fields) {
	c.V64(&o.Removed)
	c.ino(&o.Parent)
	c.str(&o.Name)
	c.Flag(&o.Drop)
}

func (o *Expire) code(*fields) {}

func (o *AddToken) code(c *fields) {
	c.Fixed(o.Hash[:])
	c.I64(&o.Expires)
	c.Flag(&o.Replace)
	c.V32(&o.Uses)
}

func (o *SetVoters) code(c *fields) {
	c.nodes(&o.Voters)
	c.nodes(&o.Outgoing)
}

func (o *LockFile) code(c *fields) {
	c.V32(&o.Incarnation)
	c.ino(&o.Ino)
	c.lock(&o.Lock)
	c.Flag(&o.Wait)
	c.Flag(&o.Test)
}

func (o *ReturnLocks) code(c *fields) {
	c.V32(&o.Incarnation)
	c.ino(&o.Ino)
	c.V64(&o.Number)
	c.locks(&o.Held)
	c.locks(&o.Waiting)
}

func (o *UnlockFile) code(c *fields) {
	c.V32(&o.Incarnation)
	c.ino(&o.Ino)
	c.U8((*uint8)(&o.What))
	c.lock(&o.Lock)
}
