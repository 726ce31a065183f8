package coder

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// ErrMalformed is wrapped by the errors of all faults in what was read.
var ErrMalformed = errors.New("malformed encoding")

// Order is the order of the bytes of numbers of fixed width.
type Order bool

// The orders of bytes. Each format names its own in one place.
const (
	Big    Order = false // the highest byte first: such numbers sort like their bytes
	Little Order = true
)

// Coder walks over the fields of a value, and either appends them or reads them. Use [Writer] or [Reader] to make one.
// Writing changes nothing in the value: others may read it at the same time. A Coder belongs to one goroutine.
type Coder struct {
	b       []byte // reading: the input; writing: the buffer up to its capacity
	at      int    // the next byte that is read or written
	err     error
	reading bool
	little  Order
}

// Writer is a Coder that appends to buf, as the append of Go does.
func Writer(buf []byte, order Order) Coder {
	return Coder{b: buf[:cap(buf)], at: len(buf), little: order}
}

// Reader is a Coder that reads b, which must not change meanwhile.
func Reader(b []byte, order Order) Coder { return Coder{b: b, reading: true, little: order} }

// Reading reports whether fields are read. A list of fields needs it only to make what a field lies in.
func (c *Coder) Reading() bool { return c.reading }

// OK reports whether there was no fault so far: only then the fields that were read mean something.
func (c *Coder) OK() bool { return c.err == nil }

// Written returns buf with all fields appended.
func (c *Coder) Written() []byte { return c.b[:c.at] }

// Left is the number of bytes that were not read yet; 0 after a fault.
func (c *Coder) Left() int { return len(c.b) - c.at }

// Mark is where the next field begins, for [Coder.Sum].
func (c *Coder) Mark() int { return c.at }

// Finish returns the first fault. It is a fault too if the input was not used up.
func (c *Coder) Finish() error {
	if c.reading && c.at < len(c.b) {
		c.Fail("%d bytes too many", c.Left())
	}
	return c.err
}

// Err returns the first fault, where bytes behind the fields are allowed.
func (c *Coder) Err() error { return c.err }

// Fail says that what was read makes no sense. Only the first fault counts.
func (c *Coder) Fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: byte %d: %s", ErrMalformed, c.at, fmt.Sprintf(format, args...))
	}
	if c.reading {
		c.at = len(c.b)
	}
}

// take returns the next n bytes of the input, nil if there are not so many.
func (c *Coder) take(n int) []byte {
	if n < 0 || n > len(c.b)-c.at {
		c.Fail("%d bytes wanted, %d left", n, c.Left())
		return nil
	}
	part := c.b[c.at : c.at+n : c.at+n]
	c.at += n
	return part
}

// room returns the next n bytes of the buffer, to be written. A buffer that is large enough stays where it is, be it on
// the stack: nothing here may store a part of it.
func (c *Coder) room(n int) []byte {
	if n > len(c.b)-c.at {
		b := make([]byte, max(2*len(c.b), c.at+n, 64))
		copy(b, c.b[:c.at])
		c.b = b
	}
	c.at += n
	return c.b[c.at-n : c.at]
}

// U8 is one byte.
func (c *Coder) U8(p *uint8) {
	if !c.reading {
		c.room(1)[0] = *p
		return
	}
	*p = 0
	if b := c.take(1); b != nil {
		*p = b[0]
	}
}

// U16 is a number of two bytes.
func (c *Coder) U16(p *uint16) {
	if !c.reading {
		if b := c.room(2); c.little {
			binary.LittleEndian.PutUint16(b, *p)
		} else {
			binary.BigEndian.PutUint16(b, *p)
		}
		return
	}
	b := c.take(2)
	switch {
	case b == nil:
		*p = 0
	case bool(c.little):
		*p = binary.LittleEndian.Uint16(b)
	default:
		*p = binary.BigEndian.Uint16(b)
	}
}

// U32 is a number of four bytes.
func (c *Coder) U32(p *uint32) {
	if !c.reading {
		if b := c.room(4); c.little {
			binary.LittleEndian.PutUint32(b, *p)
		} else {
			binary.BigEndian.PutUint32(b, *p)
		}
		return
	}
	b := c.take(4)
	switch {
	case b == nil:
		*p = 0
	case bool(c.little):
		*p = binary.LittleEndian.Uint32(b)
	default:
		*p = binary.BigEndian.Uint32(b)
	}
}

// U64 is a number of eight bytes.
func (c *Coder) U64(p *uint64) {
	if !c.reading {
		if b := c.room(8); c.little {
			binary.LittleEndian.PutUint64(b, *p)
		} else {
			binary.BigEndian.PutUint64(b, *p)
		}
		return
	}
	b := c.take(8)
	switch {
	case b == nil:
		*p = 0
	case bool(c.little):
		*p = binary.LittleEndian.Uint64(b)
	default:
		*p = binary.BigEndian.Uint64(b)
	}
}

// I64 is a number of eight bytes with a sign: times and sizes.
func (c *Coder) I64(p *int64) {
	v := uint64(*p)
	c.U64(&v)
	if c.reading {
		*p = int64(v)
	}
}

// VarintBytesMax is the length of the longest varint.
const VarintBytesMax = binary.MaxVarintLen64

// varint is a number in groups of seven bits, the lowest first. Each group except the last has the upper bit set. The
// shortest form is the only one.
func (c *Coder) varint(v uint64) uint64 {
	if !c.reading {
		var b [VarintBytesMax]byte
		n := binary.PutUvarint(b[:], v)
		copy(c.room(n), b[:n])
		return v
	}
	v, n := binary.Uvarint(c.b[c.at:])
	if n <= 0 || n > 1 && c.b[c.at+n-1] == 0 {
		c.Fail("bad number")
		return 0
	}
	c.at += n
	return v
}

// upTo is a varint of at most max.
func (c *Coder) upTo(v, max uint64) uint64 {
	v = c.varint(v)
	if c.reading && v > max {
		c.Fail("number %d, at most %d", v, max)
		return 0
	}
	return v
}

// V64 is a number as a varint.
func (c *Coder) V64(p *uint64) {
	if v := c.varint(*p); c.reading {
		*p = v
	}
}

// V32 is a number of at most 32 bits as a varint.
func (c *Coder) V32(p *uint32) {
	if v := c.upTo(uint64(*p), math.MaxUint32); c.reading {
		*p = uint32(v)
	}
}

// V16 is a number of at most 16 bits as a varint.
func (c *Coder) V16(p *uint16) {
	if v := c.upTo(uint64(*p), math.MaxUint16); c.reading {
		*p = uint16(v)
	}
}

// Size is a number from 0 to max as a varint: a size or an offset in bytes.
func (c *Coder) Size(p *int64, max int64) {
	if v := c.upTo(uint64(*p), uint64(max)); c.reading {
		*p = int64(v)
	}
}

// Int is a number from 0 to max as a varint.
func (c *Coder) Int(p *int, max int) {
	if v := c.upTo(uint64(*p), uint64(max)); c.reading {
		*p = int(v)
	}
}

// Flag is a byte that is 0 or 1.
func (c *Coder) Flag(p *bool) {
	var b uint8
	if *p {
		b = 1
	}
	if c.U8(&b); b > 1 {
		c.Fail("flag %d", b)
	}
	if c.reading {
		*p = b == 1
	}
}

// Same8 is a byte that is always v: a version.
func (c *Coder) Same8(what string, v uint8) {
	got := v
	if c.U8(&got); c.err == nil && got != v {
		c.Fail("%s %d, want %d", what, got, v)
	}
}

// Magic is a text that is always the same, by which a format is known.
func (c *Coder) Magic(text string) {
	if !c.reading {
		copy(c.room(len(text)), text)
		return
	}
	if b := c.take(len(text)); b != nil && string(b) != text {
		c.Fail("does not begin with %q", text)
	}
}

// Zeros is n bytes that have no meaning yet and are 0.
func (c *Coder) Zeros(n int) {
	if !c.reading {
		clear(c.room(n))
		return
	}
	for _, b := range c.take(n) {
		if b != 0 {
			c.Fail("reserved byte %d", b)
			return
		}
	}
}

// Pad is n bytes that have no meaning. They are written as 0 and read as anything.
func (c *Coder) Pad(n int) {
	if c.reading {
		c.take(n)
		return
	}
	clear(c.room(n))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum is the CRC32C of all bytes since a mark, in four bytes. Another one is a fault.
func (c *Coder) Sum(mark int) { c.SumAfter(0, mark) }

// SumAfter is Sum for bytes that lie elsewhere, whose CRC32C is before, and all bytes since a mark.
func (c *Coder) SumAfter(before uint32, mark int) {
	sum := crc32.Update(before, castagnoli, c.b[min(mark, c.at):c.at])
	got := sum
	if c.U32(&got); c.err == nil && got != sum {
		c.Fail("checksum %08x, want %08x", got, sum)
	}
}
