package rdmc

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// Receives posted ahead: the technical report's variant of the interface (post_receive_buffer in its figure 1). A
// member of an unannounced group says where the next messages go before they come, instead of being asked by
// Incoming. A message for which nothing is posted yet stays in the block buffers, and the root waits for credit.

// posted is where a message goes.
type posted struct {
	sink  Sink
	limit uint64 // of the message's size
}

// PostReceive says where the next message goes for which nothing is posted yet, at a member of a group with
// GroupConfig.PostedReceives. Messages take what is posted in the order of sending. A message larger than limit bytes
// fails the group, as there is no other way to let its sender know. PostReceive does not wait; with very many posted it
// returns ErrFull.
func (g *Group) PostReceive(sink Sink, limit uint64) error {
	g.mu.Lock()
	defer g.unlock()
	switch err := g.refused(); {
	case !g.cfg.PostedReceives || g.cfg.Rank == 0 || sink == nil:
		return fmt.Errorf("%w: receive posted by rank %d", ErrInvalid, g.cfg.Rank)
	case err != nil:
		return err
	case len(g.posted) >= core.MaxQueued:
		return ErrFull
	}
	g.posted = append(g.posted, posted{sink: sink, limit: limit})
	g.match()
	g.drain()
	return nil
}

// match brings messages and posted receives together, in order. The lock is held.
func (g *Group) match() {
	for len(g.unmatched) > 0 && len(g.posted) > 0 && !g.core.Ended() {
		t, p := g.unmatched[0], g.posted[0]
		g.unmatched, g.posted = g.unmatched[1:], g.posted[1:]
		if size := t.announcement.Size; size > p.limit {
			err := fmt.Errorf("%w: message of %d bytes for a posted receive of %d", ErrInvalid, size, p.limit)
			g.core.Fail(ReasonSink, g.cfg.Rank, []int{g.cfg.Rank}, err)
			g.engine.attend(g)
			return
		}
		t.goesTo(p.sink)
	}
}

// Buffer is a message in memory, as a Source or a Sink.
type Buffer struct {
	// Data is the message, or has room for it. It is the library's until the transfer has ended.
	Data []byte
	// BlockSize is the block size of the group.
	BlockSize int
	// Region, if not nil, is registered memory of the engine's device that has Data at Offset: then blocks move
	// without a copy.
	Region rdma.Region
	Offset int
}

// Place is where a block lies in the region. A block that is not within Data has no place: WriteBlock reports that.
func (b Buffer) Place(i uint64, length int) rdma.SGE {
	if !b.holds(i, length) {
		return rdma.SGE{}
	}
	return rdma.SGE{Region: b.Region, Offset: b.Offset + int(i)*b.BlockSize, Length: length}
}

// ReadBlock copies block i to buf.
func (b Buffer) ReadBlock(i uint64, buf []byte) error { return b.copy(i, buf, false) }

// WriteBlock copies buf to block i.
func (b Buffer) WriteBlock(i uint64, buf []byte) error { return b.copy(i, buf, true) }

// holds reports whether Data has room for block i of length bytes.
func (b Buffer) holds(i uint64, length int) bool {
	size := uint64(len(b.Data))
	return b.BlockSize > 0 && i <= size/uint64(b.BlockSize) && uint64(length) <= size-i*uint64(b.BlockSize)
}

func (b Buffer) copy(i uint64, buf []byte, in bool) error {
	if !b.holds(i, len(buf)) {
		return fmt.Errorf("%w: block %d of %d bytes in a buffer of %d", ErrInvalid, i, len(buf), len(b.Data))
	}
	if at := b.Data[i*uint64(b.BlockSize):]; in {
		copy(at, buf)
	} else {
		copy(buf, at)
	}
	return nil
}
