package meta

import (
	"encoding/binary"
	"errors"
	"math"
	"sort"
)

// errMalformed is the only thing that can be wrong with encoded bytes.
var errMalformed = errors.New("meta: malformed encoding")

// coder walks over the fields of a value, either appending them to buf or reading them from it. One method per
// type (code) lists the fields for both directions, so that the two can't drift apart. Appending writes nothing to the
// value: others may read it.
//
// Reading never allocates more than the remaining input: every length is checked against it first. After
// the first fault the rest reads as zeros and err is set.
type coder struct {
	buf     []byte
	reading bool
	err     error
}

func writer(buf []byte) *coder { return &coder{buf: buf} }

func reader(buf []byte) *coder { return &coder{buf: buf, reading: true} }

// finish reports whether reading used up the input without a fault.
func (c *coder) finish() error {
	if c.err == nil && len(c.buf) != 0 {
		c.err = errMalformed
	}
	return c.err
}

func (c *coder) fail() { c.err, c.buf = errMalformed, nil }

func (c *coder) uvarint(v uint64) uint64 {
	if !c.reading {
		c.buf = binary.AppendUvarint(c.buf, v)
		return v
	}
	v, n := binary.Uvarint(c.buf)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.buf = c.buf[n:]
	return v
}

func (c *coder) u64(p *uint64) {
	if v := c.uvarint(*p); c.reading {
		*p = v
	}
}

// last64 is a number at the end that is left out when it is 0, as in records from before it was added.
func (c *coder) last64(p *uint64) {
	switch {
	case !c.reading && *p == 0:
	case c.reading && c.err == nil && len(c.buf) == 0:
		*p = 0
	default:
		if c.u64(p); c.reading && *p == 0 {
			c.fail()
		}
	}
}

func (c *coder) u32(p *uint32) {
	v := c.uvarint(uint64(*p))
	if v > math.MaxUint32 {
		c.fail()
		v = 0
	}
	if c.reading {
		*p = uint32(v)
	}
}

func (c *coder) u16(p *uint16) {
	v := c.uvarint(uint64(*p))
	if v > math.MaxUint16 {
		c.fail()
		v = 0
	}
	if c.reading {
		*p = uint16(v)
	}
}

func (c *coder) u8(p *uint8) {
	if !c.reading {
		c.buf = append(c.buf, *p)
		return
	}
	if len(c.buf) == 0 {
		c.fail()
		*p = 0
		return
	}
	*p, c.buf = c.buf[0], c.buf[1:]
}

func (c *coder) flag(p *bool) {
	var b uint8
	if *p {
		b = 1
	}
	c.u8(&b)
	if b > 1 {
		c.fail()
	}
	if c.reading {
		*p = b == 1
	}
}

// i64 is fixed width: times and sizes.
func (c *coder) i64(p *int64) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(*p))
		return
	}
	if len(c.buf) < 8 {
		c.fail()
		*p = 0
		return
	}
	*p, c.buf = int64(binary.BigEndian.Uint64(c.buf)), c.buf[8:]
}

// fixed reads or writes exactly len(p) bytes.
func (c *coder) fixed(p []byte) {
	if !c.reading {
		c.buf = append(c.buf, p...)
		return
	}
	if len(c.buf) < len(p) {
		c.fail()
		clear(p)
		return
	}
	copy(p, c.buf)
	c.buf = c.buf[len(p):]
}

// length is the count of elements of which each takes at least min bytes.
func (c *coder) length(n, min int) int {
	v := c.uvarint(uint64(n))
	if c.reading && v > uint64(len(c.buf)/min) {
		c.fail()
		return 0
	}
	return int(v)
}

func (c *coder) bytes(p *[]byte) {
	n := c.length(len(*p), 1)
	if c.reading {
		*p = nil
		if n > 0 {
			*p = make([]byte, n)
		}
	}
	c.fixed(*p)
}

func (c *coder) str(p *string) {
	n := c.length(len(*p), 1)
	if !c.reading {
		c.buf = append(c.buf, *p...)
		return
	}
	*p = string(c.buf[:n])
	c.buf = c.buf[n:]
}

func (c *coder) strs(p *[]string) {
	n := c.length(len(*p), 1)
	if c.reading {
		*p = nil
		if n > 0 {
			*p = make([]string, n)
		}
	}
	for i := range *p {
		c.str(&(*p)[i])
	}
}

func (c *coder) ino(p *Ino) {
	if v := Ino(c.uvarint(uint64(*p))); c.reading {
		*p = v
	}
}

func (c *coder) node(p *NodeID) { c.u32((*uint32)(p)) }

func (c *coder) nodes(p *[]NodeID) {
	n := c.length(len(*p), 1)
	if c.reading {
		*p = nil
		if n > 0 {
			*p = make([]NodeID, n)
		}
	}
	for i := range *p {
		c.node(&(*p)[i])
	}
}

func (c *coder) lease(p *Lease) {
	c.node(&p.Node)
	c.u32(&p.Incarnation)
}

func (c *coder) content(p *ContentID) {
	c.node(&p.Node)
	c.u32(&p.Incarnation)
	c.u64(&p.Seq)
}

func (c *coder) contents(p *[]ContentID) {
	n := c.length(len(*p), 3)
	if c.reading {
		*p = nil
		if n > 0 {
			*p = make([]ContentID, n)
		}
	}
	for i := range *p {
		c.content(&(*p)[i])
	}
}

func (c *coder) ranges(p *[]IndexRange) {
	n := c.length(len(*p), 2)
	if c.reading {
		*p = nil
		if n > 0 {
			*p = make([]IndexRange, n)
		}
	}
	for i := range *p {
		c.u64(&(*p)[i].Lo)
		c.u64(&(*p)[i].Hi)
	}
}

// strMap writes keys in order, and accepts no other order, so that equal maps have equal bytes.
func (c *coder) strMap(p *map[string]string) {
	n := c.length(len(*p), 2)
	if !c.reading {
		for _, k := range sortedKeys(*p) {
			v := (*p)[k]
			c.str(&k)
			c.str(&v)
		}
		return
	}
	*p = nil
	last := ""
	for i := range n {
		var k, v string
		c.str(&k)
		c.str(&v)
		if c.err != nil || i > 0 && k <= last {
			c.fail()
			return
		}
		if *p == nil {
			*p = make(map[string]string, n)
		}
		(*p)[k], last = v, k
	}
}

func (c *coder) bytesMap(p *map[string][]byte) {
	n := c.length(len(*p), 2)
	if !c.reading {
		for _, k := range sortedKeys(*p) {
			v := (*p)[k]
			c.str(&k)
			c.bytes(&v)
		}
		return
	}
	*p = nil
	last := ""
	for i := range n {
		var k string
		var v []byte
		c.str(&k)
		c.bytes(&v)
		if c.err != nil || i > 0 && k <= last {
			c.fail()
			return
		}
		if *p == nil {
			*p = make(map[string][]byte, n)
		}
		(*p)[k], last = v, k
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
