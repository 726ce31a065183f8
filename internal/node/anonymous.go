package node

import (
	"context"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

// anonymous proposes what is not of one incarnation of this node.
type anonymous struct {
	node       meta.NodeID
	generation uint32
	log        raftLog
	format     func() uint64 // of the cluster; nil: the first
}

// propose orders an operation that is harmless to repeat and needs no incarnation.
func (a anonymous) propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	data := meta.EncodeEntry(meta.Entry{Node: a.node, Generation: a.generation, Format: numberOf(a.format), Op: op})
	out, err := a.log.Propose(ctx, data, consensus.ProposeOptions{})
	if err != nil {
		return meta.Result{}, err
	}
	res, ok := out.Result.(meta.Result)
	if !ok {
		return res, fmt.Errorf("node: %T: no result: %w", op, consensus.ErrUnknown)
	}
	return res, nil
}
