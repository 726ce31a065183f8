package rdmc

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// script is a completion queue that gives what it is told and writes down how it is asked. Each poll takes 10 ms of
// its clock.
type script struct {
	calls []string
	polls []int // what the next polls find
	clock time.Time
	ends  int // calls after which the context is done
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
	s.clock = s.clock.Add(10 * time.Millisecond)
	if len(s.polls) == 0 {
		return 0
	}
	n := s.polls[0]
	s.polls = s.polls[1:]
	return n
}

func (s *script) Wait(ctx context.Context) error {
	s.note("wait")
	s.clock = s.clock.Add(time.Hour)
	return ctx.Err()
}

func (s *script) Close() error { return nil }

func (s *script) run(mode CompletionMode) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.stop = cancel
	p := poller{mode: mode, queue: s, now: func() time.Time { return s.clock }, yield: func() { s.note("yield") },
		take: func(*rdma.Completion) { s.note("take") }}
	p.run(ctx)
}

// TestDSN_5_2_CompletionModes holds what each mode calls: events wait as soon as nothing is there, polling never
// waits, the hybrid polls for SpinTime after the last completion and then waits, and after a wait that brought
// nothing polls anew.
func TestDSN_5_2_CompletionModes(t *testing.T) {
	spin := []string{"poll", "yield", "poll", "yield", "poll", "yield", "poll", "yield", "poll", "yield"}
	for _, c := range []struct {
		mode  CompletionMode
		polls []int
		want  []string
	}{
		{CompletionEvents, []int{2, 1, 0, 0}, []string{"poll", "take", "take", "poll", "take", "poll", "wait", "poll", "wait"}},
		{CompletionPolling, []int{1, 0, 0}, []string{"poll", "take", "poll", "yield", "poll", "yield", "poll", "yield"}},
		{CompletionHybrid, []int{1, 0, 1}, slices.Concat([]string{"poll", "take", "poll", "yield", "poll", "take"}, spin, []string{"poll", "wait", "poll", "wait"})},
	} {
		s := &script{polls: c.polls, ends: len(c.want)}
		s.run(c.mode)
		if !slices.Equal(s.calls, c.want) {
			t.Errorf("%v: calls %v, want %v", c.mode, s.calls, c.want)
		}
	}
}

// TestDSN_5_2_CompletionModesDeliver multicasts in each mode, and closes engines that are idle.
func TestDSN_5_2_CompletionModesDeliver(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		for _, mode := range []CompletionMode{CompletionEvents, CompletionHybrid, CompletionPolling} {
			var groups []*Group
			for rank, d := range devices(2) {
				e, err := NewEngine(EngineConfig{Device: d, Completion: mode})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				g, err := e.NewGroup(GroupConfig{Members: make([]string, 2), Rank: rank, BlockSize: 1000})
				if err != nil {
					t.Fatal(err)
				}
				groups = append(groups, g)
			}
			connect(t, groups)
			transfers, sinks := multicast(t, groups, randomMemory(1, 20_000, 1000))
			verify(t, transfers, sinks)
			closeAll(t, groups)
		}
	})
}

func TestCompletionModeUnknown(t *testing.T) {
	if _, err := NewEngine(EngineConfig{Device: tcpDevices(t, 1)[0], Completion: 9}); !errors.Is(err, ErrInvalid) {
		t.Errorf("mode 9: %v", err)
	}
}
