package soft

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// WordBytes is the size of the unit that remote writes make visible in one piece.
const WordBytes = 8

// TailBytes is how many bytes at the end of a remote write to dst must be stored by StoreTail, after all
// others: the last aligned word, or nothing if the write does not end with one.
func TailBytes(dst []byte) int {
	n := len(dst)
	if n < WordBytes || uintptr(unsafe.Pointer(&dst[n-WordBytes]))%WordBytes != 0 {
		return 0
	}
	return WordBytes
}

// StoreTail stores tail, of TailBytes(dst) bytes, as the end of dst, atomically.
func StoreTail(dst, tail []byte) {
	if len(tail) != WordBytes {
		return
	}
	p := (*uint64)(unsafe.Pointer(&dst[len(dst)-WordBytes]))
	atomic.StoreUint64(p, binary.NativeEndian.Uint64(tail))
}

// Cursor walks over the memory of a request, piece by piece.
type Cursor struct {
	pieces []Piece
	mem    []byte // what is left of the piece (or inline bytes) before pieces
	left   int
}

// CursorOfSend starts at the first byte of a send slot.
func CursorOfSend(s *SendSlot) Cursor {
	return Cursor{pieces: s.Pieces, mem: s.Inline, left: s.Length}
}

// CursorOfRecv starts at the first byte of a receive and ends after n bytes.
func CursorOfRecv(s *RecvSlot, n int) Cursor {
	return Cursor{pieces: s.Pieces, left: min(n, s.Length)}
}

// Left is the number of bytes not walked over.
func (c *Cursor) Left() int { return c.left }

// Head is the next run of memory, without moving; empty at the end.
func (c *Cursor) Head() []byte {
	mem := c.piece()
	return mem[:min(len(mem), c.left)]
}

// piece is what is left of the current piece, the next one if nothing is.
func (c *Cursor) piece() []byte {
	for len(c.mem) == 0 && len(c.pieces) > 0 {
		c.mem, c.pieces = c.pieces[0].Mem, c.pieces[1:]
	}
	return c.mem
}

// Advance moves over n bytes, at most Left.
func (c *Cursor) Advance(n int) {
	c.left -= n
	for n > 0 {
		k := min(n, len(c.piece()))
		c.mem = c.mem[k:]
		n -= k
	}
}

// Append appends the runs not walked over to out, at most cap(out)-len(out) of them.
func (c *Cursor) Append(out [][]byte) [][]byte {
	left := c.left
	for mem, rest := c.mem, c.pieces; left > 0 && len(out) < cap(out); {
		if k := min(len(mem), left); k > 0 {
			out = append(out, mem[:k])
			left -= k
		}
		if len(rest) == 0 {
			break
		}
		mem, rest = rest[0].Mem, rest[1:]
	}
	return out
}

// Fill copies from src into the memory walked over, and returns how many bytes fitted.
func (c *Cursor) Fill(src []byte) int {
	n := 0
	for n < len(src) && c.left > 0 {
		k := copy(c.Head(), src[n:])
		c.Advance(k)
		n += k
	}
	return n
}

// CursorThen walks over mem and then over pieces.
func CursorThen(mem []byte, pieces []Piece) Cursor {
	n := len(mem)
	for i := range pieces {
		n += len(pieces[i].Mem)
	}
	return Cursor{pieces: pieces, mem: mem, left: n}
}
