package node

import (
	"context"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	// goodbyeTimeout bounds the proposal of a node that ends as planned. Without an answer the leader finds out by
	// itself.
	goodbyeTimeout = 2 * time.Second
	// stoppedReason is what status of the others says about a node that ended as planned.
	stoppedReason = "stopped"
)

// goodbye is what a node that ends as planned proposes: it declares its own incarnation down. A node that was never
// let in, or that ends because of a failure, proposes nothing.
func goodbye(lease meta.Lease, failed bool) *meta.Down {
	if lease.Incarnation == 0 || failed {
		return nil
	}
	return &meta.Down{Node: lease.Node, Incarnation: lease.Incarnation, Reason: stoppedReason}
}

// sayGoodbye tells the cluster that this node ends as planned, so that nobody waits for it. All mounts have ended and
// no task runs: nothing boots this node again.
func (n *node) sayGoodbye() {
	op := goodbye(n.proposer.lease(), n.life.err() != nil)
	if op == nil || n.raft.status().NoQuorum {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	if res, err := n.anonymous.propose(ctx, op); err != nil || res.Errno != 0 {
		n.log.Info("the others were not told that this node stops", "errno", res.Errno, "err", err)
	}
}
