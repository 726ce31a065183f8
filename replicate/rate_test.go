package replicate

import (
	"math"
	"testing"
	"time"
)

// G10: a rate is that of the last seconds, not the mean since the beginning.
func TestRateIsOfThePresent(t *testing.T) {
	var r recentRate
	now, bytes := time.Unix(0, 0), int64(0)
	run := func(d time.Duration, perSec int64) (rate float64) {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(200 * time.Millisecond)
			bytes += perSec / 5
			rate = r.perSec(now, bytes)
		}
		return rate
	}
	for _, c := range []struct {
		d            time.Duration
		perSec, want int64
	}{{20 * time.Second, 100e6, 100e6}, {4 * time.Second, 0, 0}, {4 * time.Second, 1e6, 1e6}} {
		if got := run(c.d, c.perSec); math.Abs(got-float64(c.want)) > 0.1*float64(c.want) {
			t.Errorf("after %v at %d bytes a second it says %.0f", c.d, c.perSec, got)
		}
	}
	if len(r.marks) > int(rateWindow/rateStep)+2 {
		t.Errorf("%d marks are kept", len(r.marks))
	}
}

// G10: what a member shows never falls, and what it had before an epoch is no progress of the epoch.
func TestProgressNeverFalls(t *testing.T) {
	var m memberTrack
	now := time.Unix(0, 0)
	step := func(epoch uint32, asked bool, bytes int64) (int64, float64) {
		now = now.Add(time.Second)
		return m.look(now, epoch, asked, bytes)
	}
	for _, c := range []struct {
		epoch       uint32
		asked       bool
		bytes, most int64
		rate        float64
	}{
		{0, true, 0, 0, 0},
		{0, false, 50, 50, 0}, // it had that
		{0, false, 60, 60, 10},
		{1, true, 60, 60, 0},
		{1, false, 10, 60, 0}, // blocks that were not whole are sent again
		{1, false, 40, 60, 30},
		{1, false, 80, 80, 35},
	} {
		most, rate := step(c.epoch, c.asked, c.bytes)
		if most != c.most || rate != c.rate {
			t.Errorf("epoch %d, %d bytes: shown %d at %v, want %d at %v", c.epoch, c.bytes, most, rate, c.most, c.rate)
		}
	}
}
