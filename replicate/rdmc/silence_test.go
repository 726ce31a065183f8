package rdmc

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// watcher is the root of a group of two, with a message under way to a member that says nothing.
func watcher(t *testing.T, now time.Time) *core {
	t.Helper()
	plan, err := schedule.NewPlan(schedule.BinomialPipeline, 2)
	if err != nil {
		t.Fatal(err)
	}
	c := newCore(plan, 0, 1000, 1, false, coreLimits{slots: 4, posted: 2, pins: 2, sends: 1, silence: 2 * time.Second, interval: time.Second})
	c.now = now
	c.connected(0)
	if err := c.announce(Announcement{Seq: 1, Size: 9000, Blocks: AllBlocks(9)}, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestStarvedWatcherAccusesNobody has a member run once in 0.9 s: what it did not watch is no silence. When it runs again as it should, it
// notices in time.
func TestStarvedWatcherAccusesNobody(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	c := watcher(t, now)
	for range 15 {
		now = now.Add(900 * time.Millisecond)
		if c.tick(now); c.failure != nil {
			t.Fatalf("accused %v after %v of starvation", c.failure.suspects, now.Sub(time.Unix(1_000_000, 0)))
		}
	}
	from := now
	for c.failure == nil && now.Sub(from) < 3*time.Second {
		now = now.Add(tickInterval)
		c.tick(now)
	}
	if c.failure == nil || c.failure.reason != ReasonSilent || now.Sub(from) > 2*time.Second {
		t.Fatalf("%+v after %v", c.failure, now.Sub(from))
	}
}

// TestSilenceIsNoticedInTime has the ticks come as they should, or a little late.
func TestSilenceIsNoticedInTime(t *testing.T) {
	for _, every := range []time.Duration{tickInterval, tickInterval + 30*time.Millisecond} {
		now := time.Unix(1_000_000, 0)
		c := watcher(t, now)
		for c.failure == nil && now.Sub(time.Unix(1_000_000, 0)) < 5*time.Second {
			now = now.Add(every)
			c.tick(now)
		}
		if took := now.Sub(time.Unix(1_000_000, 0)); c.failure == nil || took < 2*time.Second || took > 2*time.Second+2*every {
			t.Errorf("ticks every %v: %+v after %v", every, c.failure, took)
		}
	}
}
