package meta

import (
	"maps"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// errMalformed is wrapped by all that can be wrong with encoded bytes.
var errMalformed = coder.ErrMalformed

// fields is a coder that knows the types of this package. One method of each type (code) lists its fields. Numbers are
// varints but for times, which are eight bytes, big endian, as are all numbers in keys. An entry and a record are
// bounded as a whole; lists and texts in them are bounded by what is left of that.
type fields struct{ coder.Coder }

func writer(buf []byte) *fields { return &fields{coder.Writer(buf, coder.Big)} }

func reader(b []byte) *fields { return &fields{coder.Reader(b, coder.Big)} }

// last64 is a number at the end that is left out when it is 0, as in records from before it was added.
func (c *fields) last64(p *uint64) {
	switch {
	case !c.Reading() && *p == 0:
	case c.Reading() && c.OK() && c.Left() == 0:
		*p = 0
	default:
		if c.V64(p); c.Reading() && *p == 0 {
			c.Fail("a last number that is 0")
		}
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

func (c *fields) strMap(p *map[string]string) { codeMap(c, p, (*fields).str) }

func (c *fields) bytesMap(p *map[string][]byte) { codeMap(c, p, (*fields).bytes) }

// codeMap writes keys in order, and accepts no other order, so that equal maps have equal bytes.
func codeMap[V any](c *fields, p *map[string]V, value func(*fields, *V)) {
	n := c.Count(len(*p), coder.Unbounded, 2)
	if !c.Reading() && n > 0 {
		for _, k := range slices.Sorted(maps.Keys(*p)) {
			v := (*p)[k]
			c.str(&k)
			value(c, &v)
		}
	}
	if !c.Reading() {
		return
	}
	*p = nil
	last := ""
	for i := range n {
		var k string
		var v V
		c.str(&k)
		value(c, &v)
		if i > 0 && k <= last {
			c.Fail("key %q behind %q", k, last)
		}
		if !c.OK() {
			return
		}
		if *p == nil {
			*p = make(map[string]V, n)
		}
		(*p)[k], last = v, k
	}
}
