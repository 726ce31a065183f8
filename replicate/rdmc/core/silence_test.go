package core

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// watcher is the root of a group of two, with a message under way to a member that says nothing.
func watcher(t *testing.T, now time.Time) *Member {
	t.Helper()
	plan, err := schedule.NewPlan(schedule.BinomialPipeline, 2)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{Plan: plan, Rank: 0, BlockSize: 1000, Epoch: 1,
		Limits: Limits{Slots: 4, Posted: 2, Pins: 2, Sends: 1, Silence: 2 * time.Second,
			Interval: time.Second}})
	c.now = now
	c.Connected(0)
	if err := c.Announce(Announcement{Seq: 1, Size: 9000, Blocks: AllBlocks(9)}, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestStarvedWatcherAccusesNobody: a member runs once in 0.9 s. Time that it did not watch does not count as silence.
// When it runs again as it should, it notices silence in time.
func TestStarvedWatcherAccusesNobody(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	c := watcher(t, now)
	for range 15 {
		now = now.Add(900 * time.Millisecond)
		if c.Tick(now); c.failure != nil {
			t.Fatalf("accused %v after %v of starvation", c.failure.Suspects, now.Sub(time.Unix(1_000_000, 0)))
		}
	}
	from := now
	for c.failure == nil && now.Sub(from) < 3*time.Second {
		now = now.Add(share.TickInterval)
		c.Tick(now)
	}
	if c.failure == nil || c.failure.Reason != ReasonSilent || now.Sub(from) > 2*time.Second {
		t.Fatalf("%+v after %v", c.failure, now.Sub(from))
	}
}

// TestSilenceIsNoticedInTime: the ticks come as they should, or a little late.
func TestSilenceIsNoticedInTime(t *testing.T) {
	for _, every := range []time.Duration{share.TickInterval, share.TickInterval + 30*time.Millisecond} {
		now := time.Unix(1_000_000, 0)
		c := watcher(t, now)
		for c.failure == nil && now.Sub(time.Unix(1_000_000, 0)) < 5*time.Second {
			now = now.Add(every)
			c.Tick(now)
		}
		if took := now.Sub(time.Unix(1_000_000, 0)); c.failure == nil || took < 2*time.Second ||
			took > 2*time.Second+2*every {
			t.Errorf("ticks every %v: %+v after %v", every, c.failure, took)
		}
	}
}
