package rdmc

import (
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// Groups that yield. A group that is kept for the next message keeps its part of the registered memory too. When there
// is none for a new group, idle groups with GroupConfig.Yields end, the one that is idle for longest first, as many as
// it takes: all their members hear of it as of a failure, with ReasonYielded and no suspects. So the new group is
// refused, with ErrMemory, and finds room once the owners of the idle groups have ended them.

const (
	// yieldAfter is how long nothing must have been under way in a group before it yields.
	yieldAfter = time.Second
	// yieldUnused is the same for one that has carried nothing yet: its other members may still be connecting.
	yieldUnused = 10 * time.Second
)

// yield ends idle groups until so many bytes are free, or will be once the groups that have ended are closed. It waits
// for nothing.
func (e *Engine) yield(need int64) {
	if need > e.memory.Bound() {
		return // there never is room
	}
	now, coming := time.Now(), int64(0)
	e.mu.Lock()
	groups := make([]*Group, 0, len(e.groups))
	for g := range e.groups {
		groups = append(groups, g)
	}
	e.mu.Unlock()
	for _, g := range groups {
		coming += g.leaving()
	}
	for e.memory.Free()+coming < need {
		oldest := longestIdle(groups, now)
		if oldest == nil {
			return
		}
		coming += oldest.giveUp(now)
	}
}

// longestIdle is the group that may yield and is idle for longest, or nil.
func longestIdle(groups []*Group, now time.Time) (oldest *Group) {
	var first time.Time
	for _, g := range groups {
		if since, ok := g.yields(now); ok && (oldest == nil || since.Before(first)) {
			oldest, first = g, since
		}
	}
	return oldest
}

// yields reports whether the group may yield, and since when it is idle.
func (g *Group) yields(now time.Time) (since time.Time, ok bool) {
	if !g.cfg.Yields {
		return time.Time{}, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	since, ok = idleFrom(g.core)
	return since, ok && now.Sub(since) >= yieldAfter
}

// idleFrom is since when the group is idle. One that has carried nothing yet counts as younger than it is. The
// group's lock is held.
func idleFrom(c *core.Member) (since time.Time, idle bool) {
	since, used, idle := c.IdleSince()
	if !used {
		since = since.Add(yieldUnused - yieldAfter)
	}
	return since, idle
}

// leaving is how many bytes become free when the group's owner has closed it: 0 if it has not ended.
func (g *Group) leaving() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.core.Ended() {
		return 0
	}
	return int64(g.registeredMax())
}

// giveUp ends the group if it still may yield, and returns how many bytes that will free.
func (g *Group) giveUp(now time.Time) int64 {
	g.mu.Lock()
	defer g.unlock()
	since, ok := idleFrom(g.core)
	if !ok || now.Sub(since) < yieldAfter {
		return 0
	}
	g.log.Info("idle group yields its registered memory", "bytes", g.registeredMax(), "idle",
		now.Sub(since).Round(time.Millisecond))
	g.look()
	g.core.Fail(ReasonYielded, g.cfg.Rank, nil, nil)
	g.engine.attend(g)
	g.drain()
	return int64(g.registeredMax())
}
