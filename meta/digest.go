package meta

import (
	"crypto/sha256"
	"math/bits"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// sum128 is a sum modulo 2^128 of hashes of (key, value) pairs. Adding what is written and subtracting what
// is replaced keeps the digest of the whole state without ever reading it again.
type sum128 struct{ hi, lo uint64 }

func (s *sum128) add(o sum128) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, o.lo, 0)
	s.hi, _ = bits.Add64(s.hi, o.hi, carry)
}

func (s *sum128) sub(o sum128) {
	var borrow uint64
	s.lo, borrow = bits.Sub64(s.lo, o.lo, 0)
	s.hi, _ = bits.Sub64(s.hi, o.hi, borrow)
}

// code lists the fields of a sum of 16 bytes.
func (s *sum128) code(c *coder.Coder) {
	c.U64(&s.hi)
	c.U64(&s.lo)
}

// hashPair is the hash of one key and its value.
func hashPair(key, value []byte) (s sum128) {
	var stack [512]byte
	c := coder.Writer(stack[:0], coder.Big)
	c.Bytes(&key, coder.Unbounded)
	c.Fixed(value)
	h := sha256.Sum256(c.Written())
	half := coder.Reader(h[:], coder.Big)
	s.code(&half)
	return s
}

// digest folds the counters of the head into the sum.
func (h *head) digest() (d [16]byte) {
	s := h.Sum
	folded := *h
	folded.Sum = sum128{}
	s.add(hashPair(headKey, encodeRecord(&folded)))
	c := coder.Writer(d[:0], coder.Big)
	s.code(&c)
	return d
}
