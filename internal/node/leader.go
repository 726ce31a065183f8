package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	// dutyInterval is how often the leader looks around.
	dutyInterval = 250 * time.Millisecond
	// leaseTime is how long a node may be silent before the leader declares it down.
	leaseTime = 3 * time.Second
	// stoppedAfter: a leader that did not begin to look around for this long after its last look was stopped itself, and
	// can't know which nodes were silent. A look that took as long as a lease counts as that, too.
	stoppedAfter = time.Second
	// dutyTimeout bounds one proposal of the leader's own.
	dutyTimeout = 10 * time.Second
	// expireInterval is how often kept versions whose time is over are retired.
	expireInterval = 10 * time.Minute
	// sweepsAtOnce and sweepTime bound how often, and for how long, the leader frees in one look what ended incarnations
	// had, or what has expired: the next look must be in time to find out who is silent.
	sweepsAtOnce = 16
	sweepTime    = 300 * time.Millisecond
)

// duties is what the leader does for the cluster: it declares silent nodes down, and retires what has expired. Any node
// may be leader; each runs the loop.
type duties struct {
	self    meta.NodeID
	status  func() consensus.Status
	changed func() <-chan struct{} // closed when the role has changed
	members *members
	propose func(context.Context, meta.Op) (meta.Result, error)
	now     func() time.Time
	freeing func() bool // whether ended incarnations have something left
	due     func() bool // whether the time of something that is kept is over
	log     *slog.Logger

	since      time.Time     // this node leads and listens since; zero when it does not lead
	looked     time.Time     // the end of the last look
	took       time.Duration // by the last look
	ups        map[meta.NodeID]upSince
	lastExpire time.Time
}

// upSince is when the leader first saw an incarnation up: what it heard of the node before says nothing about it.
type upSince struct {
	incarnation uint32
	at          time.Time
}

// run works until ctx ends.
func (d *duties) run(ctx context.Context) {
	for {
		changed := d.changed()
		if d.check(ctx) {
			if !pause(ctx, dutyInterval) {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// check does what is to be done now, and reports whether this node leads.
func (d *duties) check(ctx context.Context) (leads bool) {
	now := d.now()
	stopped := now.Sub(d.looked) > stoppedAfter || d.took > leaseTime
	defer func() {
		d.looked = d.now()
		d.took = d.looked.Sub(now)
	}()
	st := d.status()
	if st.Role != consensus.RoleLeader {
		d.since = time.Time{}
		return false
	}
	// if another leads by now, this one hears of that before it declares a node down; if another led since the last
	// look, nodes may have been heard there
	if d.since.IsZero() || stopped || st.LedSince.After(d.since) {
		d.since = now
	}
	d.declareDown(ctx, st, now)
	until := d.now().Add(sweepTime)
	d.sweep(ctx, until)
	d.expire(ctx, until)
	return true
}

// upFor is how long the leader has seen this incarnation of a node up.
func (d *duties) upFor(n meta.Node, now time.Time) time.Duration {
	up, ok := d.ups[n.ID]
	if !ok || up.incarnation != n.Incarnation {
		if d.ups == nil {
			d.ups = make(map[meta.NodeID]upSince)
		}
		up = upSince{incarnation: n.Incarnation, at: now}
		d.ups[n.ID] = up
	}
	return now.Sub(up.at)
}

// declareDown proposes Down for nodes that have been silent for the lease time, counted at the earliest from when this
// node began to lead, and from when they came up: their first sign of life may come after that.
func (d *duties) declareDown(ctx context.Context, st consensus.Status, now time.Time) {
	b := d.members.book()
	for node, n := range b.nodes {
		if node == d.self || n.State != meta.NodeUp || d.upFor(n, now) < leaseTime || now.Sub(d.since) < leaseTime {
			continue
		}
		seen := st.Progress[b.raft[node]].LastSeen
		if now.Sub(seen) < leaseTime {
			continue
		}
		reason := "not heard of since the leader took over"
		if !seen.IsZero() {
			reason = fmt.Sprintf("silent for %v", now.Sub(seen).Round(100*time.Millisecond))
		}
		if seen := d.status().Progress[b.raft[node]].LastSeen; d.now().Sub(seen) < leaseTime {
			continue // while others were declared down
		}
		d.do(ctx, &meta.Down{Node: node, Incarnation: n.Incarnation, Reason: reason})
	}
}

// sweep frees what ended incarnations had, until nothing is left: others wait for their locks.
func (d *duties) sweep(ctx context.Context, until time.Time) {
	for range sweepsAtOnce {
		if !d.freeing() || !d.now().Before(until) {
			return
		}
		if _, done := d.do(ctx, &meta.Expire{}); !done {
			return
		}
	}
}

func (d *duties) expire(ctx context.Context, until time.Time) {
	now := d.now()
	if now.Sub(d.lastExpire) < expireInterval {
		return
	}
	d.lastExpire = now
	for range sweepsAtOnce {
		res, done := d.do(ctx, &meta.Expire{})
		if !done || res.Retired == 0 || !d.due() {
			return
		}
		if !d.now().Before(until) {
			break
		}
	}
	d.lastExpire = time.Time{} // many files were removed at one time: the next look goes on
}

// do proposes and reports whether that took effect.
func (d *duties) do(ctx context.Context, op meta.Op) (meta.Result, bool) {
	ctx, cancel := context.WithTimeout(ctx, dutyTimeout)
	defer cancel()
	res, err := d.propose(ctx, op)
	switch {
	case errors.Is(err, context.Canceled):
	case err != nil:
		d.log.Warn("leader's duty", "op", fmt.Sprintf("%T", op), "err", err)
	case res.Errno != 0:
		d.log.Debug("leader's duty refused", "op", fmt.Sprintf("%T", op), "errno", res.Errno)
	}
	return res, err == nil && res.Errno == 0
}
