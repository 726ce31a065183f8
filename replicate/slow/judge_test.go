package slow

import (
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/meta/id"
)

var start = time.Unix(1000, 0)

// TestPatience: node 2 may miss four steps of all, or two of its own, and not less than the least time. As long as
// nobody has made one, nothing is known. A member that has made none does not count.
func TestPatience(t *testing.T) {
	const least = 1500 * time.Millisecond
	of := func(node id.Node, steps int, last time.Duration) Member {
		return Member{Node: node, Ready: true, Steps: steps, Moved: start.Add(last)}
	}
	done := of(5, 1000, 20*time.Second)
	done.Ready = false
	for name, c := range map[string]struct {
		members []Member
		want    time.Duration
		known   bool
	}{
		"nobody has made a step": {[]Member{of(2, 0, 0), of(3, 0, 0)}, 0, false},
		"quick":                  {[]Member{of(2, 100, 10*time.Second), of(3, 90, 9*time.Second)}, least, true},
		"slow links": {[]Member{of(2, 2, 20*time.Second), of(3, 2, 22*time.Second), of(4, 3, 60*time.Second)},
			44 * time.Second, true},
		"one has made none": {[]Member{of(2, 2, 20*time.Second), of(3, 0, 0)}, 40 * time.Second, true},
		"one is done":       {[]Member{of(2, 2, 20*time.Second), done}, 40 * time.Second, true},
		"a quarter as fast": {[]Member{of(2, 1, 40*time.Second), of(3, 4, 40*time.Second), of(4, 4, 40*time.Second)},
			80 * time.Second, true},
	} {
		alone := Group{Members: []Member{of(9, 0, 0)}, Began: start} // standing still, in a group of its own
		if got, known := Patience([]Group{alone, {Members: c.members, Began: start}}, 2, least); got != c.want ||
			known != c.known {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, known, c.want, c.known)
		}
	}
}

// apart4 is a judge that has set node 4 apart of three, and the groups as they are then.
func apart4(t *testing.T, step int64) (*Judge, time.Time, []Group) {
	t.Helper()
	j := NewJudge(Limits{Over: 10 * time.Second, Trial: 3 * time.Second, Part: 8, Step: step}, 12e6)
	j.mode, j.suspects, j.together = apart, []id.Node{4}, 1e5
	groups := []Group{{Bytes: 1 << 30, Up: true, Flowing: true, Members: []Member{{Node: 4, Ready: true}}},
		{Bytes: 1 << 30, Up: true, Flowing: true, Members: []Member{{Node: 2, Ready: true}, {Node: 3, Ready: true}}}}
	j.Begin(start, groups)
	return j, start, groups
}

// TestStepOnItsWayCounts: a suspect that has reported no block may have nearly one. The comparison goes on until the
// others have moved enough for the rest of the verdict.
func TestStepOnItsWayCounts(t *testing.T) {
	const step = 1 << 20
	j, now, groups := apart4(t, step)
	for second := 1; second <= 60; second++ {
		now = now.Add(time.Second)
		for i := range groups[1].Members {
			groups[1].Members[i].Bytes += step / 2
		}
		v := j.Watch(now, groups, true)
		if moved := groups[1].Members[0].Bytes; v.Out != (moved > 8*step) || v.Regroup {
			t.Fatalf("the others have %d blocks: %+v", moved/step, v)
		}
		if v.Out {
			return
		}
	}
}

// TestCause: the evidence says what the root waited for.
func TestCause(t *testing.T) {
	for want, waits := range map[string][2]time.Duration{
		": its link is slow": {9 * time.Second, time.Second},
		": it makes room late, its disk or processor is slow": {time.Second, 9 * time.Second},
		"a second while the others had 9.54 MiB, over 10s":    {},
	} {
		j, now, groups := apart4(t, 0)
		groups[0].Members[0].Bytes, groups[0].Members[0].Sending, groups[0].Members[0].Waiting = 1e6, waits[0], waits[1]
		for i := range groups[1].Members {
			groups[1].Members[i].Bytes = 100e6
		}
		v := j.Watch(now.Add(10*time.Second), groups, true)
		if !v.Out || v.Node != 4 || !strings.HasSuffix(v.Text, want) || strings.Count(v.Text, "slow") > 1 {
			t.Errorf("%+v, want %q", v, want)
		}
	}
}

// TestMoreToGetIsNotSlower: the others lacked few blocks, and were done soon. A suspect that lacks many is not slow if
// it goes at their pace, and is if it takes much longer than they would.
func TestMoreToGetIsNotSlower(t *testing.T) {
	for part, out := range map[float64]bool{1: false, 0.05: true} {
		j, now, groups := apart4(t, 0)
		for i := range groups[1].Members {
			groups[1].Members[i].Bytes, groups[1].Members[i].Ready, groups[1].Members[i].Done = 6e6, false,
				now.Add(500*time.Millisecond)
		}
		groups[0].Members[0].Bytes = int64(part * 6e6)
		v := j.Watch(now.Add(500*time.Millisecond), groups, true)
		groups[0].Members[0].Bytes = int64(part * 36e6)
		if v.Out = v.Out || j.Watch(now.Add(3*time.Second), groups, true).Out; v.Out != out {
			t.Errorf("at %v of their pace: left out %v", part, v.Out)
		}
	}
}

// TestNeededMemberStays: without spare votes nobody is left out.
func TestNeededMemberStays(t *testing.T) {
	j, now, groups := apart4(t, 0)
	groups[1].Members[0].Bytes, groups[1].Members[1].Bytes = 100e6, 100e6
	if v := j.Watch(now.Add(10*time.Second), groups, false); v.Out || v.Regroup {
		t.Errorf("%+v", v)
	}
}

// TestUnwatchedTimeIsNotCompared: what passed while nobody looked is no part of a comparison.
func TestUnwatchedTimeIsNotCompared(t *testing.T) {
	j, now, groups := apart4(t, 0)
	groups[1].Members[0].Bytes, groups[1].Members[1].Bytes = 100e6, 100e6
	j.Unwatched(8 * time.Second)
	if v := j.Watch(now.Add(10*time.Second), groups, true); v.Out {
		t.Errorf("after 2 s that were watched: %+v", v)
	}
	if v := j.Watch(now.Add(18*time.Second), groups, true); !v.Out {
		t.Errorf("after 10 s that were watched: %+v", v)
	}
}
