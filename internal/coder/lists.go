package coder

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// Unbounded is the bound of lists and texts of which only the size of the whole message says how long they may be: what
// is left of the input still bounds them.
const Unbounded = math.MaxInt

// Fixed is exactly len(p) bytes.
func (c *Coder) Fixed(p []byte) {
	if !c.reading {
		copy(c.room(len(p)), p)
		return
	}
	if b := c.take(len(p)); b != nil {
		copy(p, b)
	} else {
		clear(p)
	}
}

// Count is the number of items that follow, as a varint: at most max, and each takes at least each bytes, which is 1 or
// more.
func (c *Coder) Count(n, max, each int) int {
	return c.bounded(c.varint(uint64(n)), max, each)
}

// Count32 is Count in four bytes.
func (c *Coder) Count32(n, max, each int) int {
	v := uint32(n)
	c.U32(&v)
	return c.bounded(uint64(v), max, each)
}

// Count8 is Count in one byte.
func (c *Coder) Count8(n, max, each int) int {
	v := uint8(n)
	c.U8(&v)
	return c.bounded(uint64(v), max, each)
}

func (c *Coder) bounded(v uint64, max, each int) int {
	if c.reading && (v > uint64(max) || v > uint64(c.Left()/each)) {
		c.Fail("%d items, at most %d and %d bytes left", v, max, c.Left())
		return 0
	}
	return int(v)
}

// Slice codes the number of items of a list, makes the list if it is read, and returns it: the caller then codes each
// item. An empty list is read as nil. The items of a list that is read are zero, and stay so after a fault.
func Slice[T any](c *Coder, p *[]T, max, each int) []T {
	return sized(c, p, c.Count(len(*p), max, each))
}

// Slice32 is Slice with the number in four bytes.
func Slice32[T any](c *Coder, p *[]T, max, each int) []T {
	return sized(c, p, c.Count32(len(*p), max, each))
}

func sized[T any](c *Coder, p *[]T, n int) []T {
	if !c.reading {
		return *p
	}
	*p = nil
	if n > 0 {
		*p = make([]T, n)
	}
	return *p
}

// Bytes is the length as a varint, at most max, and the bytes. What is read is a copy; nil if it is empty.
func (c *Coder) Bytes(p *[]byte, max int) { c.Fixed(Slice(c, p, max, 1)) }

// View is Bytes, except that what is read is a part of the input; nil if it is empty.
func (c *Coder) View(p *[]byte, max int) { c.part(p, c.Count(len(*p), max, 1)) }

// View32 is View with the length in four bytes.
func (c *Coder) View32(p *[]byte, max int) { c.part(p, c.Count32(len(*p), max, 1)) }

// View8 is View with the length in one byte.
func (c *Coder) View8(p *[]byte, max int) { c.part(p, c.Count8(len(*p), max, 1)) }

func (c *Coder) part(p *[]byte, n int) {
	if !c.reading {
		copy(c.room(len(*p)), *p)
		return
	}
	*p = nil
	if n > 0 {
		*p = c.take(n)
	}
}

// Rest is all bytes up to the end, at most max. What is read is a part of the input; nil if it is empty.
func (c *Coder) Rest(p *[]byte, max int) { c.part(p, c.rest(len(*p), max)) }

// Text is the length as a varint, at most max, and the bytes of a text.
func (c *Coder) Text(p *string, max int) { c.text(p, c.Count(len(*p), max, 1)) }

// RestText is a text up to the end, of at most max bytes.
func (c *Coder) RestText(p *string, max int) { c.text(p, c.rest(len(*p), max)) }

// rest is the length of what is n bytes long and lies at the end.
func (c *Coder) rest(n, max int) int {
	if !c.reading {
		return n
	}
	if c.Left() > max {
		c.Fail("%d bytes, at most %d", c.Left(), max)
	}
	return c.Left()
}

// Text8 is Text with the length in one byte.
func (c *Coder) Text8(p *string, max int) { c.text(p, c.Count8(len(*p), max, 1)) }

func (c *Coder) text(p *string, n int) {
	if !c.reading {
		copy(c.room(n), *p)
		return
	}
	*p = string(c.take(n))
}

// Map codes n entries of a map in the order of their keys; the caller has coded the number by [Coder.Count], and entry
// codes one of them. What is read has each key once and in that order, so that equal maps have equal bytes; an empty
// map is read as nil.
func Map[K cmp.Ordered, V any](c *Coder, p *map[K]V, n int, entry func(key *K, value *V)) {
	if !c.reading {
		writeMap(*p, n, entry)
		return
	}
	*p = nil
	var last K
	for i := range n {
		var key K
		var value V
		entry(&key, &value)
		if i > 0 && key <= last {
			c.Fail("key %v behind %v", key, last)
		}
		if c.err != nil {
			return
		}
		if *p == nil {
			*p = make(map[K]V, n)
		}
		(*p)[key], last = value, key
	}
}

func writeMap[K cmp.Ordered, V any](m map[K]V, n int, entry func(key *K, value *V)) {
	if n == 0 {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(m))[:n] {
		value := m[key]
		entry(&key, &value)
	}
}
