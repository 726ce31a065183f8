package ring

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// largeMost is the largest message of a side that is not copied.
const largeMost = 2048

// largeOf is large message number i of a side.
func largeOf(seed uint64, i int) []byte {
	r := rand.New(rand.NewPCG(seed, 1<<32+uint64(i)))
	b := make([]byte, 1+r.IntN(largeMost))
	for j := range b {
		b[j] = byte(r.Uint32())
	}
	return b
}

// tryOffer is SendFrom as far as the first wait.
func (s *side) tryOffer() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := &c.offered; o.state != offerNone || c.sendErrorLocked() != nil {
		return
	}
	o := &c.offered
	n := copy(s.mem.Bytes(), largeOf(s.seed, s.offers))
	binary.LittleEndian.PutUint64(o.sizeBytes[:], uint64(n))
	o.state, o.source, o.number = offerWaiting, rdma.SGE{Region: s.mem, Length: n}, c.out.number
	if !c.postNumberedLocked(kindOffer, o.sizeBytes[:]) {
		o.state = offerNone
		return
	}
	s.offers++
}

// tryEnd ends what is over of the large messages of both directions, and reports whether something was.
func (s *side) tryEnd(t *rapid.T, from *side) (ended bool) {
	t.Helper()
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.offered.state == offerWritten && c.offerOverLocked() && c.err == nil {
		c.offered.state, ended = offerNone, true
		clear(s.mem.Bytes()[:largeMost]) // the memory may be used again
	}
	if c.incoming.state != grantDone {
		return ended
	}
	want := largeOf(from.seed, s.larges)
	if err := c.endGrantLocked(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(s.mem.Bytes()[largeMost:largeMost+len(want)], want) {
		t.Fatalf("large message %d differs", s.larges)
	}
	s.larges++
	return true
}
