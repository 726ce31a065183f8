package core

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

var clockEpoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano()

// clockScene is one node's clock beside others whose offsets from the truth are chosen by a test.
type clockScene struct {
	clock *Clock
	mono  int64
	wrong map[ID]time.Duration // node 1 is the clock's own
}

func newScene(logAgo time.Duration, wrong map[ID]time.Duration) *clockScene {
	s := &clockScene{clock: NewClock(1), mono: int64(time.Second), wrong: wrong}
	if logAgo > 0 {
		s.clock.SeeLog(s.mono, s.truth()-int64(logAgo))
	}
	return s
}

func (s *clockScene) truth() int64 { return clockEpoch + s.mono }
func (s *clockScene) wall() int64  { return s.truth() + int64(s.wrong[1]) }

// round lets a second pass, reads the clocks of the peers that answer, and judges.
func (s *clockScene) round(voters, answer []ID, others bool) {
	s.mono += int64(time.Second)
	for _, id := range answer {
		s.clock.Read(id, s.mono, s.truth()+int64(s.wrong[id]))
	}
	s.clock.Judge(s.mono, s.wall(), voters, others)
}

// error is how far the clock is from the truth.
func (s *clockScene) error() time.Duration {
	return time.Duration(s.clock.Now(s.mono, s.wall()) - s.truth())
}

func ids(n int) (list []ID) {
	for i := range n {
		list = append(list, ID(i+1))
	}
	return list
}

// A minority of wrong clocks does not move the cluster's time, whatever they show and when they begin to; and only
// they are named.
func TestClockMinorityIsOutvoted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		voters := ids(rapid.SampledFrom([]int{3, 5, 7}).Draw(t, "voters"))
		jump := func() time.Duration {
			return time.Duration(rapid.SampledFrom([]int{-20, -1, 1, 20}).Draw(t, "sign")) * time.Duration(rapid.IntRange(1,
				365).Draw(t, "days")) * day
		}
		s := newScene(time.Duration(rapid.IntRange(0, 40).Draw(t, "log"))*day/4, map[ID]time.Duration{})
		for range rapid.IntRange(1, 4).Draw(t, "starts") {
			clear(s.wrong)
			for range len(voters) / 2 {
				s.wrong[rapid.SampledFrom(voters).Draw(t, "node")] = jump()
			}
			for range 3 {
				s.round(voters, voters[1:], true)
			}
			if e := s.error(); e.Abs() > ClockAgree {
				t.Fatalf("off by %v with %v", e, s.wrong)
			}
			off := s.clock.Off(s.mono, s.wall())
			for _, id := range voters {
				if (off[id].Abs() > ClockAgree) != (s.wrong[id] != 0) {
					t.Fatalf("clocks off: %v, wrong are %v", off, s.wrong)
				}
			}
		}
	})
}

// With two of three voters there is no majority when they differ: the log's time, and what was known before, decide.
func TestClockTwoThatDiffer(t *testing.T) {
	for name, wrong := range map[string]map[ID]time.Duration{
		"own ahead": {1: 10 * day}, "own behind": {1: -10 * day}, "other ahead": {2: 20 * year},
		"other behind": {2: -20 * year},
	} {
		for _, members := range [][]ID{ids(3), ids(1)} { // node 2 a voter, or an observer beside the only voter
			t.Run(name, func(t *testing.T) {
				s := newScene(time.Minute, wrong)
				if e := s.error(); e.Abs() > 2*time.Minute {
					t.Fatalf("before others answer it is off by %v", e)
				}
				s.round(members, ids(2)[1:], true)
				if e := s.error(); e.Abs() > ClockAgree {
					t.Fatalf("at the start it is off by %v", e)
				}
				if off := s.clock.Off(s.mono, s.wall()); len(off) > 0 {
					t.Fatalf("nobody can tell which of two clocks is wrong; named are %v", off)
				}
				s = newScene(time.Minute, map[ID]time.Duration{})
				s.round(members, ids(2)[1:], true)
				s.wrong = wrong // one steps while it runs
				s.round(members, ids(2)[1:], true)
				if e := s.error(); e.Abs() > ClockAgree {
					t.Fatalf("after the step it is off by %v", e)
				}
				off := s.clock.Off(s.mono, s.wall())
				for id := range wrong {
					if len(off) != 1 || off[id].Abs() < day {
						t.Fatalf("named are %v, wrong is %v", off, wrong)
					}
				}
			})
		}
	}
}

// A voter that no majority answers goes on by its monotonic clock, whatever its wall clock does.
func TestClockCutOff(t *testing.T) {
	s := newScene(time.Minute, map[ID]time.Duration{})
	s.round(ids(3), ids(3)[1:], true)
	s.wrong[1] = -30 * year
	for range 3000 {
		s.round(ids(3), nil, true)
	}
	if e := s.error(); e.Abs() > ClockAgree {
		t.Fatalf("off by %v", e)
	}
}

// The only node of a cluster is off for a weekend. Its clock is believed at once if a time service keeps it, else
// once it has stood for the hundredth part of that. A step while it runs has to stand for ten minutes.
func TestClockAlone(t *testing.T) {
	s := newScene(3*day, map[ID]time.Duration{})
	s.clock.Synced(true)
	s.round(ids(1), nil, false)
	if e := s.error(); e != 0 {
		t.Fatalf("after a weekend off, with a time service: %v", e)
	}
	s = newScene(3*day, map[ID]time.Duration{})
	for range 43 * 60 {
		s.round(ids(1), nil, false)
		if by, left := s.clock.Unconfirmed(s.mono); s.error() != -3*day || (by-3*day).Abs() > time.Second || left <= 0 {
			t.Fatalf("after a weekend off: %v, unconfirmed %v for %v", s.error(), by, left)
		}
	}
	for range 30 {
		s.round(ids(1), nil, false)
	}
	if by, _ := s.clock.Unconfirmed(s.mono); s.error() != 0 || by != 0 {
		t.Fatalf("a clock that has stood: %v, unconfirmed %v", s.error(), by)
	}
	s.wrong[1] = 10 * year
	for range 500 {
		s.round(ids(1), nil, false)
	}
	if e := s.error(); e.Abs() > ClockAgree {
		t.Fatalf("during a step: %v", e)
	}
	s.wrong[1] = 0
	s.round(ids(1), nil, false)
	s.wrong[1] = -time.Hour // this one is the truth of the machine from now on
	for range 601 {
		s.round(ids(1), nil, false)
	}
	if e := s.error(); e != -time.Hour {
		t.Fatalf("a step that stands: %v", e)
	}
}

// The only node of a cluster starts with a clock that is ten days ahead, and is set right an hour later: nothing of
// that gets into the log.
func TestLoneWrongClockAtAStart(t *testing.T) {
	for _, wrong := range []time.Duration{10 * day, 40 * day, 5 * year, -10 * day} {
		s := newScene(time.Minute, map[ID]time.Duration{1: wrong})
		check := func(when string, limit time.Duration) {
			t.Helper()
			if e := s.error(); e > ClockAgree || e < -limit {
				t.Fatalf("%v: %s it is off by %v", wrong, when, e)
			}
		}
		check("before the first look", 2*time.Minute)
		for range 3600 {
			s.round(ids(1), nil, false)
			check("while the clock is wrong", 2*time.Minute)
			s.clock.SeeLog(s.mono, s.clock.Now(s.mono, s.wall())) // entries carry it
		}
		s.wrong[1] = 0
		s.round(ids(1), nil, false)
		check("afterwards", 0)
		if by, _ := s.clock.Unconfirmed(s.mono); by != 0 {
			t.Fatalf("a right clock is %v off", by)
		}
	}
}

// A single voter whose clock is ahead waits for the clock of another node before it lets that into the log.
func TestClockSingleVoterAsksOthers(t *testing.T) {
	s := newScene(time.Minute, map[ID]time.Duration{1: 10 * day})
	for range 60 {
		s.round(ids(1), nil, true)
		if e := s.error(); e.Abs() > 2*time.Minute {
			t.Fatalf("off by %v before another answered", e)
		}
	}
	s.round(ids(1), []ID{9}, true)
	if e := s.error(); e.Abs() > ClockAgree {
		t.Fatalf("off by %v", e)
	}
}
