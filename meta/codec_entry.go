package meta

import "fmt"

// entryFormat is the first byte of an encoded entry.
const entryFormat = 1

// MaxEntryBytes bounds an encoded entry, so that one entry always fits one transaction.
const MaxEntryBytes = 1 << 20

// EncodeEntry is the form of an entry in the log.
func EncodeEntry(e Entry) []byte { return AppendEntry(nil, e) }

// AppendEntry appends the log form of e to buf.
func AppendEntry(buf []byte, e Entry) []byte {
	c := writer(append(buf, entryFormat))
	e.codeHead(c)
	code := e.Op.opcode()
	c.u8(&code)
	e.Op.(codedOp).code(c)
	return c.buf
}

// DecodeEntry reads what AppendEntry wrote. It keeps no reference to data.
func DecodeEntry(data []byte) (Entry, error) {
	var e Entry
	if len(data) > MaxEntryBytes {
		return e, fmt.Errorf("meta: decode entry: %d bytes: %w", len(data), errMalformed)
	}
	c := reader(data)
	var format, code uint8
	c.u8(&format)
	if c.err == nil && format != entryFormat {
		return e, fmt.Errorf("meta: decode entry: format %d: %w", format, errMalformed)
	}
	e.codeHead(c)
	c.u8(&code)
	op := newOp(code)
	if c.err == nil && op == nil {
		return e, fmt.Errorf("meta: decode entry: operation %d: %w", code, errMalformed)
	}
	if op != nil {
		op.code(c)
	}
	if err := c.finish(); err != nil {
		return e, fmt.Errorf("meta: decode entry: operation %d: %w", code, err)
	}
	e.Op = op
	return e, nil
}

func (e *Entry) codeHead(c *coder) {
	c.node(&e.Node)
	c.u32(&e.Incarnation)
	c.u64(&e.Seq)
	c.u64(&e.Acked)
	c.u32(&e.Generation)
}

type codedOp interface {
	Op
	code(*coder)
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
	19: func() codedOp { return new(SetVoters) },
	21: func() codedOp { return new(Release) },
	22: func() codedOp { return new(Drain) },
	23: func() codedOp { return new(EvictSpare) },
	24: func() codedOp { return &Unlink{GiveBack: true} },
}

func newOp(code uint8) codedOp {
	if mk := opMakers[code]; mk != nil {
		return mk()
	}
	return nil
}

func (o *Create) code(c *coder) {
	c.ino(&o.Parent)
	c.str(&o.Name)
	c.u8((*uint8)(&o.Kind))
	c.u32(&o.Mode)
	o.Cred.code(c)
	c.u32(&o.Rdev)
	c.str(&o.Target)
	c.flag(&o.Excl)
}

func (o *Cred) code(c *coder) {
	c.u32(&o.UID)
	c.u32(&o.GID)
}

func (o *Link) code(c *coder) {
	c.ino(&o.Ino)
	c.ino(&o.Parent)
	c.str(&o.Name)
}

func (o *Unlink) code(c *coder) {
	c.ino(&o.Parent)
	c.str(&o.Name)
	c.ino(&o.Ino)
}

func (o *Rmdir) code(c *coder) {
	c.ino(&o.Parent)
	c.str(&o.Name)
}

func (o *Rename) code(c *coder) {
	c.ino(&o.OldParent)
	c.str(&o.OldName)
	c.ino(&o.NewParent)
	c.str(&o.NewName)
	c.u32(&o.Flags)
}

func (o *SetAttr) code(c *coder) {
	c.ino(&o.Ino)
	o.Patch.code(c)
	c.u32(&o.XattrFlags)
}

func (a *AttrPatch) code(c *coder) {
	c.u16((*uint16)(&a.Mask))
	c.u32(&a.Mode)
	c.u32(&a.UID)
	c.u32(&a.GID)
	c.i64(&a.Atime)
	c.i64(&a.Mtime)
	c.i64(&a.Ctime)
	c.bytesMap(&a.SetXattr)
	c.strs(&a.DelXattr)
}

func (o *Publish) code(c *coder) {
	c.ino(&o.Ino)
	c.content(&o.Session)
	c.content(&o.Base)
	c.i64(&o.Size)
	c.i64(&o.Holes)
	c.fixed(o.Root[:])
	c.u64(&o.Votes.View)
	c.bytes(&o.Votes.Bitmap)
	n := c.length(len(o.Missing), 2)
	if c.reading {
		o.Missing = nil
		if n > 0 {
			o.Missing = make([]Missed, n)
		}
	}
	for i := range o.Missing {
		c.node(&o.Missing[i].Node)
		c.u8((*uint8)(&o.Missing[i].Reason))
	}
	c.bytes(&o.Inline)
	o.Attr.code(c)
	c.ino(&o.LinkParent)
	c.str(&o.LinkName)
	c.str(&o.Hint)
}

func (o *Abort) code(c *coder) { c.content(&o.Session) }

func (o *Join) code(c *coder) {
	c.str(&o.Name)
	c.str(&o.Addr)
	c.strMap(&o.Labels)
	c.fixed(o.TokenHash[:])
	c.flag(&o.Replace)
	c.fixed(o.KeyHash[:])
}

func (o *Boot) code(c *coder) {
	c.node(&o.Node)
	c.fixed(o.Store[:])
	c.str(&o.Addr)
	c.u64(&o.Nonce)
}

func (o *Down) code(c *coder) {
	c.node(&o.Node)
	c.u32(&o.Incarnation)
	c.str(&o.Reason)
}

func (o *Evict) code(c *coder) {
	c.node(&o.Node)
	c.str(&o.Reason)
}

func (o *EvictSpare) code(c *coder) {
	c.node(&o.Node)
	c.str(&o.Reason)
	c.u64(&o.View)
	c.u64(&o.Checked)
}

func (o *Drain) code(c *coder) {
	c.node(&o.Node)
	c.flag(&o.Undo)
}

func (o *Held) code(c *coder) {
	c.node(&o.Node)
	c.contents(&o.Contents)
	c.u64(&o.UpTo)
	c.u64(&o.View)
}

func (o *Unheld) code(c *coder) {
	c.node(&o.Node)
	c.contents(&o.Contents)
	c.u8((*uint8)(&o.Reason))
}

func (o *Release) code(c *coder) {
	c.node(&o.Node)
	c.contents(&o.Contents)
}

func (o *SetPolicy) code(c *coder) {
	c.ino(&o.Dir)
	has := o.Policy != nil
	c.flag(&has)
	if c.reading {
		o.Policy = nil
		if has {
			o.Policy = new(Policy)
		}
	}
	if has {
		o.Policy.code(c)
	}
}

func (o *Restore) code(c *coder) {
	c.ino(&o.Ino)
	c.content(&o.Content)
	c.ino(&o.Parent)
	c.str(&o.Name)
	o.Cred.code(c)
}

func (o *Expire) code(*coder) {}

func (o *AddToken) code(c *coder) {
	c.fixed(o.Hash[:])
	c.i64(&o.Expires)
	c.flag(&o.Replace)
	c.u32(&o.Uses)
}

func (o *SetVoters) code(c *coder) { c.nodes(&o.Voters) }
