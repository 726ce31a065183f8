package core

import (
	"slices"
	"time"
)

// Limits of the cluster's clock.
const (
	// ClockAgree is how far two clocks may differ and still count as equal. A clock that differs more from the
	// cluster's is named.
	ClockAgree = 10 * time.Second
	// clockLeap is how far beyond the log's last time a clock may be and still be believed, if no other clock confirms
	// it.
	clockLeap = time.Hour
	// clockHold is how long a clock that no other clock confirms must keep to a new time until it is believed after
	// all. For a large jump it is a hundredth of the jump, but clockHoldMax at most: time enough to set a wrong clock
	// right.
	clockHold    = 10 * time.Minute
	clockHoldMax = 24 * time.Hour
	// ClockFresh is how long the reading of a peer's clock counts.
	ClockFresh = 20 * time.Second
	clockMax   = int64(1) << 62
)

// Clock is the time of the cluster as one node knows it: the median of the voters' wall clocks, carried on by this
// node's monotonic clock. It is a value without a clock of its own: each call says what the monotonic clock (mono)
// and the wall clock of this machine show, in nanoseconds. It is not safe for concurrent use.
//
// A wall clock that jumps, by years, or for one start only, does not move it while more than half of the voters
// agree. Where no majority agrees, the time goes on as it was. Where nothing is known yet, it begins at the last time
// of the log.
type Clock struct {
	self ID
	// The log's time was floor when the monotonic clock showed floorAt: the cluster's time is not before.
	floor, floorAt int64
	// ahead is the cluster's time less this node's monotonic clock. It counts if known; sure says that a majority of
	// two clocks or more confirmed it.
	ahead       int64
	known, sure bool
	// peers are the last readings.
	peers map[ID]clockReading
	// A lone clock shows another time since steppedAt (0: it does not), and is stepped ahead of the monotonic clock.
	stepped, steppedAt int64
	// synced says that a time service keeps this machine's clock.
	synced bool
}

// clockReading is a peer's wall clock less this node's monotonic clock, read at a time.
type clockReading struct{ ahead, at int64 }

// NewClock makes the clock of a node that knows nothing yet.
func NewClock(self ID) *Clock { return &Clock{self: self, peers: map[ID]clockReading{}} }

// SeeLog takes note of the time of the last entry.
func (c *Clock) SeeLog(mono, logTime int64) {
	if logTime = min(logTime, clockMax); logTime > c.lowest(mono) || c.floor == 0 {
		c.floor, c.floorAt = logTime, mono
	}
}

// lowest is the earliest time that it can be.
func (c *Clock) lowest(mono int64) int64 { return c.floor + mono - c.floorAt }

// Read takes note of what a peer's wall clock showed when the monotonic clock showed mono.
func (c *Clock) Read(peer ID, mono, wall int64) {
	if peer != c.self {
		c.peers[peer] = clockReading{ahead: min(max(wall, 0), clockMax) - mono, at: mono}
	}
}

// Follow takes over the cluster's time from a node that knows it; it showed when the monotonic clock showed mono.
func (c *Clock) Follow(mono, clusterTime int64, sure bool) {
	c.ahead, c.known, c.sure = min(max(clusterTime, 0), clockMax)-mono, true, sure
}

// Synced takes note of whether a time service keeps this machine's clock: that confirms a clock which no other node
// can.
func (c *Clock) Synced(yes bool) { c.synced = yes }

// Judge compares the clocks of the voters, this node being one of them. others says that the cluster has further
// nodes, whose clocks can be read sooner or later: with fewer than three voters they count like voters.
func (c *Clock) Judge(mono, wall int64, voters []ID, others bool) {
	for id, r := range c.peers {
		if mono-r.at > int64(ClockFresh) {
			delete(c.peers, id)
		}
	}
	own := min(max(wall, 0), clockMax) - mono
	var list []int64
	for _, id := range voters {
		if r, ok := c.peers[id]; ok {
			list = append(list, r.ahead)
		} else if id == c.self {
			list = append(list, own)
		}
	}
	if 2*len(list) <= len(voters) {
		return
	}
	if len(voters) < 3 {
		for id, r := range c.peers {
			if !slices.Contains(voters, id) {
				list = append(list, r.ahead)
			}
		}
	}
	if len(list) == 1 {
		c.judgeAlone(mono, own, others)
		return
	}
	c.steppedAt = 0
	c.judgeMany(mono, list)
}

// judgeMany takes the median of clocks of which more than half agree. Without such a majority, what was known stays:
// the clock next to it, if there is one, only carries it on. If nothing was, the earliest clock is taken that is not
// behind the log: a time too early does little harm, one too late poisons.
func (c *Clock) judgeMany(mono int64, list []int64) {
	slices.Sort(list)
	most := len(list)/2 + 1
	for i := 0; i+most <= len(list); i++ {
		if list[i+most-1]-list[i] <= int64(ClockAgree) {
			c.ahead, c.known, c.sure = list[(len(list)-1)/2], true, true
			return
		}
	}
	if c.known {
		for _, ahead := range list {
			if near(ahead, c.ahead) {
				c.ahead = ahead
				return
			}
		}
		return
	}
	c.ahead, c.known = list[len(list)-1], true
	for _, ahead := range list {
		if ahead+mono >= c.lowest(mono)-int64(ClockAgree) {
			c.ahead = ahead
			return
		}
	}
}

func near(a, b int64) bool { return a-b <= int64(ClockAgree) && b-a <= int64(ClockAgree) }

// judgeAlone takes the only clock there is. A clock that continues the log, or what was known, is believed at once. So
// is the clock of a node which has nobody to ask, if a time service keeps it. Any other clock has to hold for a while
// first: others may still answer, or it may be set right. Until then the time goes on from what was known, or from the
// log's last.
func (c *Clock) judgeAlone(mono, own int64, others bool) {
	believed := c.known && near(own, c.ahead) || c.synced && !others
	if !c.known {
		behind := own+mono < c.lowest(mono)-int64(ClockAgree)
		beyond := c.floor > 0 && own+mono > c.lowest(mono)+int64(clockLeap)
		believed = !behind && !beyond || believed
	}
	if !believed {
		if c.steppedAt == 0 || !near(own, c.stepped) {
			c.stepped, c.steppedAt = own, max(mono, 1)
		}
		if mono-c.steppedAt < int64(c.hold(mono)) {
			return
		}
		c.sure = false
	}
	c.ahead, c.known, c.steppedAt = own, true, 0
}

// jump is how far the lone clock's new time is ahead.
func (c *Clock) jump(mono int64) time.Duration {
	if c.known {
		return time.Duration(c.stepped - c.ahead)
	}
	return time.Duration(c.stepped + mono - c.lowest(mono))
}

// hold is how long the lone clock must stand at its new time.
func (c *Clock) hold(mono int64) time.Duration {
	return min(max(c.jump(mono).Abs()/100, clockHold), clockHoldMax)
}

// Unconfirmed is how far this machine's clock, the only one there is, is ahead of the time that counts, and for how
// long it must stay so until it is believed. Both are 0 if it is believed.
func (c *Clock) Unconfirmed(mono int64) (by, left time.Duration) {
	if c.steppedAt == 0 {
		return 0, 0
	}
	return c.jump(mono), max(c.hold(mono)-time.Duration(mono-c.steppedAt), 0)
}

// Now is the cluster's time. While it is not known it is this machine's if that continues the log, else the log's.
func (c *Clock) Now(mono, wall int64) int64 {
	if c.known {
		return c.ahead + mono
	}
	low := c.lowest(mono)
	if c.floor == 0 || wall >= low-int64(ClockAgree) && wall <= low+int64(clockLeap) {
		return wall
	}
	return low
}

// Has reports whether a peer's clock was read.
func (c *Clock) Has(peer ID) bool {
	_, ok := c.peers[peer]
	return ok || peer == c.self
}

// Known reports whether the cluster's time is known, and whether other clocks confirmed it.
func (c *Clock) Known() (known, sure bool) { return c.known, c.sure }

// Off lists the clocks that differ from the cluster's time, this machine's included, if that is sure.
func (c *Clock) Off(mono, wall int64) map[ID]time.Duration {
	off := map[ID]time.Duration{}
	if !c.sure {
		return off
	}
	c.each(mono, wall, func(id ID, ahead int64) {
		if !near(ahead, c.ahead) {
			off[id] = time.Duration(ahead - c.ahead)
		}
	})
	return off
}

// Apart returns by how much the clocks that can be read differ, and which of them are the first and the last: for when
// nobody can tell which is right.
func (c *Clock) Apart(mono, wall int64) (first, last ID, by time.Duration) {
	low, high := clockMax, -clockMax
	c.each(mono, wall, func(id ID, ahead int64) {
		if ahead < low || ahead == low && id < first {
			low, first = ahead, id
		}
		if ahead > high || ahead == high && id < last {
			high, last = ahead, id
		}
	})
	return first, last, time.Duration(high - low)
}

func (c *Clock) each(mono, wall int64, f func(id ID, ahead int64)) {
	f(c.self, min(max(wall, 0), clockMax)-mono)
	for id, r := range c.peers {
		f(id, r.ahead)
	}
}
