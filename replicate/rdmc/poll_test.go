package rdmc

import (
	"context"
	"slices"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// script is a completion queue that returns what it was set up to return, and records how it is asked.
type script struct {
	calls []string
	polls []int // what the next polls find
	ends  int   // calls after which the context is done
	stop  context.CancelFunc
}

func (s *script) note(call string) {
	s.calls = append(s.calls, call)
	if len(s.calls) == s.ends {
		s.stop()
	}
}

func (s *script) Poll([]rdma.Completion) int {
	s.note("poll")
	if len(s.polls) == 0 {
		return 0
	}
	n := s.polls[0]
	s.polls = s.polls[1:]
	return n
}

func (s *script) Wait(ctx context.Context) error {
	s.note("wait")
	return ctx.Err()
}

func (s *script) Close() error { return nil }

// TestCompletionsAreWaitedFor: as soon as nothing is there, the queue is waited for, and not polled.
func TestCompletionsAreWaitedFor(t *testing.T) {
	want := []string{"poll", "take", "take", "poll", "take", "poll", "wait", "poll", "wait"}
	s := &script{polls: []int{2, 1, 0, 0}, ends: len(want)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.stop = cancel
	takeAll(ctx, s, func(*rdma.Completion) { s.note("take") })
	if !slices.Equal(s.calls, want) {
		t.Errorf("calls %v, want %v", s.calls, want)
	}
}
