package replicate

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmcfs/rdmcfs/meta"
)

// errWire is wrapped by every decoding error.
var errWire = errors.New("replicate: malformed message")

// writer appends fields in the wire's form.
type writer struct{ b []byte }

func (w *writer) u8(v uint8)             { w.b = append(w.b, v) }
func (w *writer) u32(v uint32)           { w.b = binary.BigEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64)           { w.b = binary.BigEndian.AppendUint64(w.b, v) }
func (w *writer) varint(v uint64)        { w.b = binary.AppendUvarint(w.b, v) }
func (w *writer) fixed(v []byte)         { w.b = append(w.b, v...) }
func (w *writer) id(c meta.ContentID)    { b := c.Bytes(); w.b = append(w.b, b[:]...) }
func (w *writer) bytes(v []byte)         { w.varint(uint64(len(v))); w.b = append(w.b, v...) }
func (w *writer) str(v string)           { w.varint(uint64(len(v))); w.b = append(w.b, v...) }
func (w *writer) nodes(ns []meta.NodeID) { w.varint(uint64(len(ns))); w.nodeList(ns) }
func (w *writer) ids(c []meta.ContentID) { w.varint(uint64(len(c))); w.idList(c) }
func (w *writer) idList(cs []meta.ContentID) {
	for _, c := range cs {
		w.id(c)
	}
}

func (w *writer) nodeList(ns []meta.NodeID) {
	for _, n := range ns {
		w.u32(uint32(n))
	}
}

func (w *writer) flag(v bool) {
	if v {
		w.u8(1)
	} else {
		w.u8(0)
	}
}

// reader takes fields off a message. The first fault sticks; all later fields are zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+format, append([]any{errWire}, args...)...)
	}
}

func (r *reader) take(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > len(r.b) {
		r.fail("%d bytes wanted, %d left", n, len(r.b))
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) varint() uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("bad number")
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads a length and holds it to max and to what is left at each bytes an item.
func (r *reader) count(max, each int) int {
	n := r.varint()
	if n > uint64(max) || n*uint64(each) > uint64(len(r.b)) {
		r.fail("count %d, at most %d and %d bytes left", n, max, len(r.b))
		return 0
	}
	return int(n)
}

// size reads a number of bytes or an offset that fits into a file.
func (r *reader) size() int64 {
	v := r.varint()
	if v > maxFileBytes {
		r.fail("size %d", v)
		return 0
	}
	return int64(v)
}

func (r *reader) id() meta.ContentID {
	if b := r.take(16); b != nil {
		return meta.ContentIDFromBytes([16]byte(b))
	}
	return meta.ContentID{}
}

func (r *reader) root() (out [32]byte) { copy(out[:], r.take(32)); return out }

// bytes returns a slice of the message itself.
func (r *reader) bytes(max int) []byte {
	n := r.varint()
	if n > uint64(max) {
		r.fail("%d bytes, at most %d", n, max)
		return nil
	}
	return r.take(int(n))
}

func (r *reader) str(max int) string { return string(r.bytes(max)) }

func (r *reader) flag() bool {
	v := r.u8()
	if v > 1 {
		r.fail("flag %d", v)
	}
	return v == 1
}

func (r *reader) nodes(max int) []meta.NodeID {
	n := r.count(max, 4)
	if n == 0 {
		return nil
	}
	out := make([]meta.NodeID, n)
	for i := range out {
		out[i] = meta.NodeID(r.u32())
	}
	return out
}

func (r *reader) ids(max int) []meta.ContentID {
	n := r.count(max, 16)
	if n == 0 {
		return nil
	}
	out := make([]meta.ContentID, n)
	for i := range out {
		out[i] = r.id()
	}
	return out
}

// done is the decoding error, also for bytes left over.
func (r *reader) done() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	return r.err
}
