package meta

import (
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/filelock"
)

// errMalformed is wrapped by all that can be wrong with encoded bytes.
var errMalformed = coder.ErrMalformed

// fields is a coder that knows the types of this package. One method of each type (code) lists its fields. Numbers are
// varints, except times, which are eight bytes, big endian, as are all numbers in keys. An entry and a record are
// bounded as a whole; lists and texts in them are bounded by what is left of that.
type fields struct {
	coder.Coder
	format uint64 // of the entry that is coded; records have none, see since
}

func writer(buf []byte) *fields { return &fields{Coder: coder.Writer(buf, coder.Big)} }

func reader(b []byte) *fields { return &fields{Coder: coder.Reader(b, coder.Big)} }

// since reports whether an entry has the fields that came in a format. A record has no format: a field that is added to
// it is one of the last, and left out when it is 0, which it is until an entry of the new format sets it.
func (c *fields) since(format uint64) bool { return c.format >= format }

// last64 are numbers at the end. Those from which on all are 0 are left out, as in records from before they were added.
func (c *fields) last64(ps ...*uint64) {
	last := uint64(1)
	for i, p := range ps {
		switch {
		case !c.Reading() && !slices.ContainsFunc(ps[i:], func(p *uint64) bool { return *p != 0 }):
			return
		case c.Reading() && c.OK() && c.Left() == 0:
			*p = 0
		default:
			c.V64(p)
			last = *p
		}
	}
	if c.Reading() && last == 0 {
		c.Fail("a last number that is 0")
	}
}

// lastTime is a time at the end, as last64.
func (c *fields) lastTime(p *int64) {
	bits := uint64(*p)
	if c.last64(&bits); c.Reading() {
		*p = int64(bits)
	}
}

// lastProgram is the program of a node, behind numbers at the end (last64). Without formats all of it is left out, as
// in what was written before it was added.
func (c *fields) lastProgram(p *Program, before ...*uint64) {
	c.last64(append(before, &p.Formats.Oldest, &p.Formats.Newest)...)
	if p.Formats.Newest != 0 {
		c.str(&p.Version)
	} else if c.Reading() {
		p.Version = ""
	}
}

func (c *fields) bytes(p *[]byte) { c.Bytes(p, coder.Unbounded) }

func (c *fields) str(p *string) { c.Text(p, coder.Unbounded) }

func (c *fields) strs(p *[]string) {
	for i := range coder.Slice(&c.Coder, p, coder.Unbounded, 1) {
		c.str(&(*p)[i])
	}
}

func (c *fields) ino(p *Ino) { c.V64((*uint64)(p)) }

func (c *fields) node(p *NodeID) { c.V32((*uint32)(p)) }

func (c *fields) nodes(p *[]NodeID) {
	for i := range coder.Slice(&c.Coder, p, coder.Unbounded, 1) {
		c.node(&(*p)[i])
	}
}

func (c *fields) lease(p *Lease) {
	c.node(&p.Node)
	c.V32(&p.Incarnation)
}

func (c *fields) lock(p *filelock.Lock) {
	c.U8((*uint8)(&p.Kind))
	c.U8((*uint8)(&p.Mode))
	c.V64(&p.First)
	c.V64(&p.End)
	c.V32(&p.Owner.Node)
	c.V32(&p.Owner.Incarnation)
	c.V64(&p.Owner.Space)
	c.V64(&p.Owner.ID)
	c.V64(&p.Handle)
	c.V32(&p.PID)
	c.V64(&p.Request)
}

func (c *fields) locks(p *[]filelock.Lock) {
	for i := range coder.Slice(&c.Coder, p, coder.Unbounded, lockBytesMin) {
		c.lock(&(*p)[i])
	}
}

// lockBytesMin is the least that a lock takes.
const lockBytesMin = 11

func (c *fields) content(p *ContentID) {
	c.node(&p.Node)
	c.V32(&p.Incarnation)
	c.V64(&p.Seq)
}

func (c *fields) contents(p *[]ContentID) {
	for i := range coder.Slice(&c.Coder, p, coder.Unbounded, 3) {
		c.content(&(*p)[i])
	}
}

func (c *fields) ranges(p *[]IndexRange) {
	for i := range coder.Slice(&c.Coder, p, coder.Unbounded, 2) {
		c.V64(&(*p)[i].Lo)
		c.V64(&(*p)[i].Hi)
	}
}

func (c *fields) strMap(p *map[string]string) {
	coder.Map(&c.Coder, p, c.Count(len(*p), coder.Unbounded, 2), func(key, value *string) {
		c.str(key)
		c.str(value)
	})
}

func (c *fields) bytesMap(p *map[string][]byte) {
	coder.Map(&c.Coder, p, c.Count(len(*p), coder.Unbounded, 2), func(key *string, value *[]byte) {
		c.str(key)
		c.bytes(value)
	})
}
