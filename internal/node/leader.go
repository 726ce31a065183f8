package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	// dutyInterval is how often the leader looks around.
	dutyInterval = 250 * time.Millisecond
	// leaseTime is how long a node may be silent before the leader declares it down.
	leaseTime = 3 * time.Second
	// dutyTimeout bounds one proposal of the leader's own.
	dutyTimeout = 10 * time.Second
	// expireInterval is how often kept versions whose time is over are retired.
	expireInterval = 10 * time.Minute
)

// duties is what the leader does for the cluster: it declares silent nodes down, records the voters, and
// retires what has expired. Any node may be leader; each runs the loop.
type duties struct {
	self    meta.NodeID
	status  func() consensus.Status
	members *members
	propose func(context.Context, meta.Op) (meta.Result, error)
	now     func() time.Time
	log     *slog.Logger

	since      time.Time // this node leads since; zero when it does not
	lastExpire time.Time
}

// run works until ctx ends.
func (d *duties) run(ctx context.Context) {
	tick := time.NewTicker(dutyInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		st := d.status()
		if st.Role != consensus.RoleLeader {
			d.since = time.Time{}
			continue
		}
		if d.since.IsZero() {
			d.since = d.now()
		}
		d.declareDown(ctx, st)
		d.recordVoters(ctx, st)
		d.expire(ctx)
	}
}

// declareDown proposes Down for nodes that have been silent for the lease time, counted at the earliest from when this
// node began to lead.
func (d *duties) declareDown(ctx context.Context, st consensus.Status) {
	now := d.now()
	if now.Sub(d.since) < leaseTime {
		return
	}
	b := d.members.book()
	for node, n := range b.nodes {
		if node == d.self || n.State != meta.NodeUp {
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
		d.do(ctx, &meta.Down{Node: node, Incarnation: n.Incarnation, Reason: reason})
	}
}

func (d *duties) recordVoters(ctx context.Context, st consensus.Status) {
	if st.Joint {
		return
	}
	want := numbers(st.Voters)
	var have []meta.NodeID
	for node, n := range d.members.book().nodes {
		if n.Voter {
			have = append(have, node)
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(want, have) {
		d.do(ctx, &meta.SetVoters{Voters: want})
	}
}

func (d *duties) expire(ctx context.Context) {
	if now := d.now(); now.Sub(d.lastExpire) >= expireInterval {
		d.lastExpire = now
		d.do(ctx, &meta.Expire{})
	}
}

func (d *duties) do(ctx context.Context, op meta.Op) {
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
}
