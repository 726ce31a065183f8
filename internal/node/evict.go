package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/meta"
)

// evictPatience is how long an eviction waits until the others are a quorum without the node.
const evictPatience = 20 * time.Second

// evict removes a node for good.
func (n *node) evict(ctx context.Context, req admin.EvictRequest) error {
	if req.Node == uint32(n.id.Node) {
		return admin.Errorf(admin.CodeInvalid, "a node can't evict itself: run the command on another one")
	}
	if err := n.spareVoter(ctx, meta.NodeID(req.Node)); err != nil {
		return err
	}
	res, err := n.proposeAnonymous(ctx, &meta.Evict{Node: meta.NodeID(req.Node), Reason: req.Reason})
	switch {
	case err != nil:
		return adminError("evict", err)
	case res.Errno == syscall.ENOENT:
		return admin.Errorf(admin.CodeNotFound, "there is no node %d", req.Node)
	case res.Errno != 0:
		return fmt.Errorf("evict node %d: %w", req.Node, res.Errno)
	}
	n.port.Drop(req.Node)
	n.peers.Drop(req.Node)
	return nil
}

// spareVoter waits until the cluster can do without a node's vote: an evicted node ends at once, and voters that are no quorum then
// could never be changed again.
func (n *node) spareVoter(ctx context.Context, leaver meta.NodeID) error {
	ctx, cancel := context.WithTimeout(ctx, evictPatience)
	defer cancel()
	tick := time.NewTicker(dutyInterval)
	defer tick.Stop()
	for {
		st := n.raft.status()
		step := votersWithout(leaver, n.id.Node, numbers(st.Voters), n.members.book().nodes)
		if step.safe && !st.Joint || st.NoQuorum {
			return nil // without a quorum the log refuses the eviction itself
		}
		if !st.Joint && step.change {
			if err := n.handOver(ctx, step.add, leaver); err != nil && !errors.Is(err, consensus.ErrConfChange) {
				n.log.Info("voters change before an eviction", "node", leaver, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return admin.Errorf(admin.CodeUnavailable,
				"without node %d the voters that are up are no quorum: not evicted; see 'rdmcfs status', try again when all are up", leaver)
		case <-tick.C:
		}
	}
}

// leaveStep is what has to be done about the voters before one leaves.
type leaveStep struct {
	safe   bool          // nothing
	change bool          // the leaver gives up its vote, while it is there to agree
	add    []meta.NodeID // to those who take it over
}

// votersWithout judges the voters for the case that one leaves. While others of them are gone the policy's change comes first.
func votersWithout(leaver, self meta.NodeID, voters []meta.NodeID, nodes map[meta.NodeID]meta.Node) leaveStep {
	up := 0
	for _, v := range voters {
		if v != leaver && nodes[v].State == meta.NodeUp {
			up++
		}
	}
	switch {
	case !slices.Contains(voters, leaver) || up > len(voters)/2:
		return leaveStep{safe: true}
	case up < len(voters)-1:
		return leaveStep{}
	case up == 0:
		return leaveStep{change: true, add: []meta.NodeID{self}}
	}
	return leaveStep{change: true}
}

func (n *node) handOver(ctx context.Context, add []meta.NodeID, leaver meta.NodeID) error {
	raft, err := n.raft.get()
	if err != nil {
		return err
	}
	ids := n.members.book().raft
	var more []consensus.ID
	for _, id := range add {
		more = append(more, ids[id])
	}
	return raft.ChangeVoters(ctx, more, []consensus.ID{ids[leaver]})
}

// dialRaft makes a connection to a peer for the log. Who was evicted while it was away, or on its way from voter to follower, is told only
// by that it is refused: no entry of the log comes to it any more.
func (n *node) dialRaft(ctx context.Context, peer consensus.ID) (net.Conn, error) {
	conn, err := n.peers.DialRaft(ctx, uint32(nodeOf(peer)))
	if errors.Is(err, credentials.ErrEvicted) {
		n.putOut.Store(true)
	}
	return conn, err
}
