package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// stream is one sender's group at one member, with memory for all messages of a round.
type stream struct {
	c        Case
	sender   int // rank of the process that sends
	rank     int // of this member in the group
	group    *rdmc.Group
	fail     context.CancelCauseFunc
	memory   rdma.Region
	data     []byte        // of memory
	messages []rdmc.Buffer // pieces of data, in the order of sending
	// at the sender: seconds until all members had a message; written by its callbacks or, if messages are small, by
	// the goroutine that sends them
	latency []float64
	now     atomic.Pointer[roundState]
}

// roundState is how far a round is.
type roundState struct {
	start time.Time
	begun atomic.Int64 // messages, by Incoming
	left  atomic.Int64 // messages that are missing here; at the sender: that some member lacks
	ended chan time.Duration
	sent  []time.Time // at the sender, by message; each written before its send
}

// latencyMax bounds the messages whose latency is kept.
const latencyMax = 1 << 20

func newStream(device rdma.Device, c Case, sender, process int, fail context.CancelCauseFunc) (*stream, error) {
	s := &stream{c: c, sender: sender, fail: fail, rank: (process - sender + c.Members) % c.Members}
	var err error
	if s.memory, err = device.AllocRegion(c.Batch*int(c.Size), 0); err != nil {
		return nil, fmt.Errorf("bench: memory of a group: %w", err)
	}
	s.data = s.memory.Bytes()
	for i := range c.Batch {
		at := i * int(c.Size)
		s.messages = append(s.messages, rdmc.Buffer{Data: s.data[at:][:c.Size], BlockSize: c.BlockSize, Region: s.memory,
			Offset: at})
	}
	return s, nil
}

// rewind makes the stream ready for the next round, while nothing is under way.
func (s *stream) rewind() {
	r := &roundState{start: time.Now(), ended: make(chan time.Duration, 1)}
	r.left.Store(int64(s.c.Batch))
	if s.rank == 0 {
		r.sent = make([]time.Time, s.c.Batch)
	}
	s.now.Store(r)
}

// send queues as many messages as may be under way at once; completed queues the others.
func (s *stream) send() error {
	for i := range s.c.Depth {
		if err := s.sendOne(i); err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) sendOne(i int) error {
	s.now.Load().sent[i] = time.Now()
	_, err := s.group.Send(rdmc.Outgoing{Size: s.c.Size, Source: s.messages[i]})
	return err
}

// incoming gives the memory of the round's next message.
func (s *stream) incoming(size uint64) (rdmc.Sink, error) {
	i := s.now.Load().begun.Add(1) - 1
	if size != s.c.Size || i >= int64(len(s.messages)) {
		return nil, fmt.Errorf("message %d of %d bytes, want %d of %d", i+1, size, len(s.messages), s.c.Size)
	}
	return s.messages[i], nil
}

// completed counts the messages that all members have, at their sender, and sends the next.
func (s *stream) completed(*rdmc.Transfer) {
	if s.rank != 0 {
		return
	}
	r := s.now.Load()
	i := s.c.Batch - int(r.left.Load())
	s.tookOf(r, i)
	if next := i + s.c.Depth; next < s.c.Batch {
		if err := s.sendOne(next); err != nil {
			s.fail(err)
			return
		}
	}
	s.count()
}

// delivered counts a small message that all members have, at its sender.
func (s *stream) delivered(r *roundState, i int) {
	s.tookOf(r, i)
	s.count()
}

// tookOf keeps the latency of a message that has just been delivered.
func (s *stream) tookOf(r *roundState, i int) {
	if len(s.latency) < latencyMax {
		s.latency = append(s.latency, time.Since(r.sent[i]).Seconds())
	}
}

// stored counts the messages that this member has.
func (s *stream) stored(*rdmc.Transfer) { s.count() }

// count notes one message less.
func (s *stream) count() {
	if r := s.now.Load(); r.left.Add(-1) == 0 {
		r.ended <- time.Since(r.start)
	}
}

// wait returns the time at which the round has ended on this stream, when it has.
func (s *stream) wait(ctx context.Context) (time.Time, error) {
	r := s.now.Load()
	select {
	case took := <-r.ended:
		return r.start.Add(took), nil
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}
