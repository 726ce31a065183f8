package coder_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// everything has a field of each form.
type everything struct {
	A    uint8
	B    uint16
	C    uint32
	D    uint64
	E    int64
	F    uint64
	G    uint32
	H    uint16
	I    int64
	J    int
	K    bool
	L    [3]byte
	M    []byte
	N    []byte
	O    []byte
	P    string
	O8   []byte
	P8   string
	Q    []uint32
	R    []uint16
	S    map[string]uint8
	Tail []byte
}

func (m *everything) code(c *coder.Coder) {
	mark := c.Mark()
	c.Magic("all")
	c.Same8("version", 7)
	c.U8(&m.A)
	c.U16(&m.B)
	c.U32(&m.C)
	c.U64(&m.D)
	c.I64(&m.E)
	c.V64(&m.F)
	c.V32(&m.G)
	c.V16(&m.H)
	c.Size(&m.I, math.MaxInt64)
	c.Int(&m.J, 1000)
	c.Flag(&m.K)
	c.Zeros(2)
	c.Fixed(m.L[:])
	c.Sum(mark)
	c.Bytes(&m.M, 100)
	c.View(&m.N, 100)
	c.View32(&m.O, 100)
	c.Text(&m.P, 400)
	c.View8(&m.O8, 200)
	c.Text8(&m.P8, 20)
	for i := range coder.Slice(c, &m.Q, 10, 4) {
		c.U32(&m.Q[i])
	}
	for i := range coder.Slice32(c, &m.R, 10, 1) {
		c.V16(&m.R[i])
	}
	coder.Map(c, &m.S, c.Count(len(m.S), 5, 2), func(key *string, value *uint8) {
		c.Text(key, 10)
		c.U8(value)
	})
	c.Rest(&m.Tail, 50)
}

func (m *everything) encode(order coder.Order) []byte {
	c := coder.Writer(nil, order)
	m.code(&c)
	return c.Written()
}

func decode(b []byte, order coder.Order) (m everything, err error) {
	c := coder.Reader(b, order)
	m.code(&c)
	return m, c.Finish()
}

func anything(r *rapid.T) (m everything) {
	m = everything{
		A: rapid.Uint8().Draw(r, "a"), B: rapid.Uint16().Draw(r, "b"), C: rapid.Uint32().Draw(r, "c"),
		D: rapid.Uint64().Draw(r, "d"),
		E: rapid.Int64().Draw(r, "e"), F: rapid.Uint64().Draw(r, "f"), G: rapid.Uint32().Draw(r, "g"),
		H: rapid.Uint16().Draw(r, "h"),
		I: rapid.Int64Min(0).Draw(r, "i"), J: rapid.IntRange(0, 1000).Draw(r, "j"), K: rapid.Bool().Draw(r, "k"),
		P: rapid.StringN(0, 100, 400).Draw(r, "p"),
	}
	part := rapid.SliceOfN(rapid.Byte(), 0, 50)
	m.M, m.N, m.O, m.Tail = part.Draw(r, "m"), part.Draw(r, "n"), part.Draw(r, "o"), part.Draw(r, "tail")
	m.O8, m.P8 = part.Draw(r, "o8"), rapid.StringN(0, 5, 20).Draw(r, "p8")
	m.Q = rapid.SliceOfN(rapid.Uint32(), 0, 10).Draw(r, "q")
	m.R = rapid.SliceOfN(rapid.Uint16(), 0, 10).Draw(r, "r")
	m.S = rapid.MapOfN(rapid.StringN(0, 2, 10), rapid.Uint8(), 0, 5).Draw(r, "s")
	if len(m.S) == 0 {
		m.S = nil
	}
	for _, p := range []*[]byte{&m.M, &m.N, &m.O, &m.O8, &m.Tail} {
		if len(*p) == 0 {
			*p = nil
		}
	}
	if len(m.Q) == 0 {
		m.Q = nil
	}
	if len(m.R) == 0 {
		m.R = nil
	}
	return m
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m, order := anything(r), coder.Order(rapid.Bool().Draw(r, "order"))
		b := m.encode(order)
		got, err := decode(b, order)
		if err != nil {
			r.Fatal(err)
		}
		if diff := cmp.Diff(m, got); diff != "" {
			r.Fatal(diff)
		}
		cut := rapid.IntRange(0, len(b)-len(m.Tail)-1).Draw(r, "cut")
		if _, err := decode(b[:cut], order); !errors.Is(err, coder.ErrMalformed) {
			r.Fatalf("cut to %d of %d bytes: %v", cut, len(b), err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	m := everything{M: []byte{1}, P: "text", Q: []uint32{1, 2}, R: []uint16{3}, S: map[string]uint8{"a": 1, "b": 2},
		Tail: []byte{4}}
	f.Add(m.encode(coder.Big), false)
	f.Add(m.encode(coder.Little), true)
	f.Fuzz(func(t *testing.T, b []byte, little bool) {
		codertest.Again(t, b, func(b []byte) ([]byte, error) {
			m, err := decode(b, coder.Order(little))
			return m.encode(coder.Order(little)), err
		})
	})
}

// read gives what a list of fields makes of bytes.
func read(b []byte, fields func(*coder.Coder)) error {
	c := coder.Reader(b, coder.Big)
	fields(&c)
	return c.Finish()
}

func TestFaults(t *testing.T) {
	var (
		n16   uint16
		n32   uint32
		n64   uint64
		size  int64
		flag  bool
		bytes []byte
		text  string
		list  []uint64
		flags map[string]bool
	)
	for name, err := range map[string]error{
		"nothing":     read(nil, func(c *coder.Coder) { c.U32(&n32) }),
		"too much":    read([]byte{1, 2}, func(c *coder.Coder) { c.V16(&n16) }),
		"long number": read([]byte{0x80, 0}, func(c *coder.Coder) { c.V64(&n64) }),
		"endless number": read([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}, func(c *coder.Coder) {
			c.V64(&n64)
		}),
		"17 bits":           read([]byte{0x80, 0x80, 4}, func(c *coder.Coder) { c.V16(&n16) }),
		"33 bits":           read([]byte{0x80, 0x80, 0x80, 0x80, 0x10}, func(c *coder.Coder) { c.V32(&n32) }),
		"size":              read([]byte{11}, func(c *coder.Coder) { c.Size(&size, 10) }),
		"flag":              read([]byte{2}, func(c *coder.Coder) { c.Flag(&flag) }),
		"version":           read([]byte{2}, func(c *coder.Coder) { c.Same8("version", 1) }),
		"magic":             read([]byte("abd"), func(c *coder.Coder) { c.Magic("abc") }),
		"reserved":          read([]byte{0, 1}, func(c *coder.Coder) { c.Zeros(2) }),
		"sum":               read([]byte{1, 0, 0, 0, 0}, func(c *coder.Coder) { c.Pad(1); c.Sum(0) }),
		"more than max":     read([]byte{3, 1, 2, 3}, func(c *coder.Coder) { c.Bytes(&bytes, 2) }),
		"more than is left": read([]byte{3, 1, 2}, func(c *coder.Coder) { c.View(&bytes, 9) }),
		"text":              read([]byte{200, 1}, func(c *coder.Coder) { c.Text(&text, coder.Unbounded) }),
		"rest":              read([]byte{3, 1, 2}, func(c *coder.Coder) { c.Rest(&bytes, 2) }),
		"rest of text":      read([]byte{3, 1, 2}, func(c *coder.Coder) { c.RestText(&text, 2) }),
		"list":              read([]byte{2, 0, 0, 0, 0, 0, 0, 0, 0}, func(c *coder.Coder) { coder.Slice(c, &list, 9, 8) }),
		"keys not in order": read([]byte{2, 1, 'b', 0, 1, 'a', 0}, func(c *coder.Coder) {
			coder.Map(c, &flags, c.Count(0, 9, 3), func(key *string, value *bool) { c.Text(key, 9); c.Flag(value) })
		}),
		"said by the user": read([]byte{1}, func(c *coder.Coder) { c.V16(&n16); c.Fail("no") }),
	} {
		if !errors.Is(err, coder.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
		if n16 > 1 || n32 > 0 || n64 > 0 || size > 0 || flag || bytes != nil || text != "" || list != nil {
			t.Errorf("%s left something", name)
		}
	}
}

// After a fault all reads return zero, and the first fault is the one that is reported.
func TestTheFirstFaultSticks(t *testing.T) {
	c := coder.Reader([]byte{9, 1, 2, 3, 4, 5, 6, 7, 8}, coder.Big)
	c.Same8("version", 1)
	n, root := uint32(5), [2]byte{1, 1}
	c.U32(&n)
	c.Fixed(root[:])
	c.Fail("later")
	if err := c.Finish(); n != 0 || root != [2]byte{} || c.OK() || c.Left() != 0 ||
		err.Error() != "malformed encoding: byte 1: version 9, want 1" {
		t.Error(n, root, err)
	}
}

// header is a message as the hot paths have it.
type header struct {
	kind, flags uint8
	epoch       uint32
	seq, size   uint64
}

func (h *header) code(c *coder.Coder) {
	mark := c.Mark()
	c.U8(&h.kind)
	c.U8(&h.flags)
	c.Zeros(2)
	c.U32(&h.epoch)
	c.U64(&h.seq)
	c.U64(&h.size)
	c.Sum(mark)
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	buf := make([]byte, 0, 64)
	h := header{1, 2, 3, 4, 5}
	if n := testing.AllocsPerRun(100, func() {
		w := coder.Writer(buf, coder.Little)
		h.code(&w)
		r := coder.Reader(w.Written(), coder.Little)
		var got header
		if got.code(&r); r.Finish() != nil || got != h {
			t.Error(got)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Fields are also written over bytes that are there: a header before a body, once its length is known.
func TestWriteOver(t *testing.T) {
	frame := append(make([]byte, 4), "body"...)
	w := coder.Writer(frame[:0:4], coder.Big)
	n := uint32(len(frame) - 4)
	w.U32(&n)
	if !bytes.Equal(frame, append([]byte{0, 0, 0, 4}, "body"...)) {
		t.Errorf("%x", frame)
	}
}

func BenchmarkHeader(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, 0, 64)
	h := header{1, 2, 3, 4, 5}
	for b.Loop() {
		w := coder.Writer(buf, coder.Little)
		h.code(&w)
		r := coder.Reader(w.Written(), coder.Little)
		var got header
		if got.code(&r); r.Finish() != nil {
			b.Fatal()
		}
	}
}
