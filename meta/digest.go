package meta

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
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

// hashPair is the hash of one key and its value.
func hashPair(key, value []byte) sum128 {
	var stack [256]byte
	b := binary.AppendUvarint(stack[:0], uint64(len(key)))
	b = append(b, key...)
	b = append(b, value...)
	h := sha256.Sum256(b)
	return sum128{binary.BigEndian.Uint64(h[0:]), binary.BigEndian.Uint64(h[8:])}
}

// digest folds the counters of the head into the sum.
func (h *head) digest() (d [16]byte) {
	s := h.Sum
	folded := *h
	folded.Sum = sum128{}
	s.add(hashPair(headKey, encodeRecord(&folded)))
	binary.BigEndian.PutUint64(d[0:], s.hi)
	binary.BigEndian.PutUint64(d[8:], s.lo)
	return d
}
