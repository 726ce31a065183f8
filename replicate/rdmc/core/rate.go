package core

import (
	"math"
	"time"
)

// bucket caps what a member sends for a group: a token bucket by the core's clock. A send only needs that there is a
// token, and may leave a debt, so that blocks may be larger than the bucket; on average the rate is kept.
type bucket struct {
	rate   uint64 // bytes a second, 0 for no cap
	depth  int64  // most tokens, in bytes
	tokens int64
	at     time.Time // when tokens were last added
}

// bucketTime is the time in which an idle bucket fills: what may be sent at once after a pause.
const bucketTime = 10 * time.Millisecond

func newBucket(rate uint64) bucket {
	depth := max(int64(float64(rate)*bucketTime.Seconds()), 1)
	return bucket{rate: rate, depth: depth, tokens: depth}
}

// open reports whether something may be sent at the time.
func (b *bucket) open(now time.Time) bool {
	if b.rate == 0 {
		return true
	}
	if b.at.IsZero() {
		b.at = now
	}
	// Part of a token is left in the time: at moves on by what the added tokens took.
	missing := float64(b.depth - b.tokens)
	if passed := now.Sub(b.at).Seconds() * float64(b.rate); passed >= missing {
		b.tokens, b.at = b.depth, now
	} else if whole := int64(passed); whole > 0 {
		b.tokens += whole
		b.at = b.at.Add(b.time(whole))
	}
	return b.tokens > 0
}

// take books a send.
func (b *bucket) take(bytes int) {
	if b.rate > 0 {
		b.tokens -= int64(bytes)
	}
}

// opens is when something may be sent again.
func (b *bucket) opens() time.Time {
	return b.at.Add(b.time(1-b.tokens) + 1)
}

// time is how long so many tokens take, rounded up, so that rounding never adds to the rate.
func (b *bucket) time(tokens int64) time.Duration {
	return time.Duration(math.Ceil(float64(tokens) / float64(b.rate) * float64(time.Second)))
}

// Advance passes the time, when WakeAt has come.
func (c *Member) Advance(now time.Time) {
	c.turn.wakeAt = time.Time{}
	c.SetClock(now)
	c.Pump()
}
