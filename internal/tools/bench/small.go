package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// sendAllSmall sends the messages of a round by SendSmall, at most Depth of them on their way at once, and returns
// when all members have all.
func (s *stream) sendAllSmall(ctx context.Context) error {
	r := s.now.Load()
	var first uint64 // number of the round's first message; those after it follow
	for i := range s.c.Batch + s.c.Depth - 1 {
		if i < s.c.Batch {
			seq, err := s.sendSmall(ctx, r, i)
			if err != nil {
				return err
			}
			if i == 0 {
				first = seq
			}
		}
		if due := i - s.c.Depth + 1; due >= 0 {
			if err := s.group.WaitDelivered(ctx, first+uint64(due)); err != nil {
				return err
			}
			s.delivered(r, due)
		}
	}
	return nil
}

// sendSmall sends one message when there is room for it.
func (s *stream) sendSmall(ctx context.Context, r *roundState, i int) (uint64, error) {
	r.sent[i] = time.Now()
	for {
		seq, err := s.group.SendSmall(s.messages[i].Data)
		if !errors.Is(err, rdmc.ErrFull) {
			return seq, err
		}
		if err := s.group.WaitRoom(ctx); err != nil {
			return 0, err
		}
	}
}

// smallCame keeps a small message at a member.
func (s *stream) smallCame(_ uint64, data []byte) {
	i := s.now.Load().begun.Add(1) - 1
	if len(data) != int(s.c.Size) || i >= int64(len(s.messages)) {
		s.fail(fmt.Errorf("message %d of %d bytes, want %d of %d", i+1, len(data), len(s.messages), s.c.Size))
		return
	}
	copy(s.messages[i].Data, data)
	s.count()
}
