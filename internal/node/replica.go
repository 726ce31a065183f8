package node

import (
	"context"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// kindReplicate is the kind of all calls of package replicate; its own kind is the first byte of the payload.
const kindReplicate = 1

// replicaPeers carries the calls of package replicate.
type replicaPeers struct{ peers *control.Peers }

// Call implements replicate.Peers.
func (p replicaPeers) Call(ctx context.Context, node meta.NodeID, kind replicate.Kind, payload []byte) ([]byte, error) {
	return p.peers.Call(ctx, uint32(node), kindReplicate, framed(kind, payload))
}

// CallMoving implements replicate.MovingPeers.
func (p replicaPeers) CallMoving(
	ctx context.Context, node meta.NodeID, kind replicate.Kind, payload []byte, moved func(left int64),
) ([]byte, error) {
	return p.peers.CallMoving(ctx, uint32(node), kindReplicate, framed(kind, payload), moved)
}

var _ replicate.MovingPeers = replicaPeers{}

func framed(kind replicate.Kind, payload []byte) []byte {
	return append(append(make([]byte, 0, 1+len(payload)), byte(kind)), payload...)
}

func (n *node) handleReplicate(ctx context.Context, from control.Caller, payload []byte) ([]byte, error) {
	if len(payload) == 0 {
		return nil, fmt.Errorf("node: empty call: %w", control.ErrProtocol)
	}
	return n.repl.Handle(ctx, meta.NodeID(from.Node), replicate.Kind(payload[0]), payload[1:])
}

// replicaLog is the log as package replicate sees it.
type replicaLog struct {
	proposer *proposer
	raft     *lateRaft
}

// Propose implements replicate.Log.
func (l replicaLog) Propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	return l.proposer.order(ctx, op, forReplicate(op))
}

// forReplicate says how an operation of package replicate is proposed. A publish, whose barrier comes next, waits for a
// quorum. A publish that gives a file its first name comes from link(2), which holds the directory's lock: it is
// refused like other changes of names.
func forReplicate(op meta.Op) consensus.ProposeOptions {
	publish, ok := op.(*meta.Publish)
	return consensus.ProposeOptions{Announce: ok, Patient: ok && publish.LinkName == ""}
}

// Barrier implements replicate.Log.
func (l replicaLog) Barrier(ctx context.Context, index uint64) ([]meta.NodeID, error) {
	raft, err := l.raft.get()
	if err != nil {
		return nil, err
	}
	behind, err := raft.Barrier(ctx, index, consensus.ProposeOptions{Announced: true, Patient: true})
	return numbers(behind), err
}
