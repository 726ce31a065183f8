package node

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
)

// lateRaft is the consensus for parts that are made before it. It is set once, before anyone proposes.
type lateRaft struct {
	node atomic.Pointer[consensus.Node]
}

func (l *lateRaft) get() (*consensus.Node, error) {
	if n := l.node.Load(); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("node: still starting: %w", consensus.ErrNoQuorum)
}

// Propose implements raftLog.
func (l *lateRaft) Propose(
	ctx context.Context, data []byte, opts consensus.ProposeOptions,
) (consensus.Proposed, error) {
	n, err := l.get()
	if err != nil {
		return consensus.Proposed{}, err
	}
	return n.Propose(ctx, data, opts)
}

// isLeader reports whether this node leads.
func (l *lateRaft) isLeader() bool { return l.status().Role == consensus.RoleLeader }

// changed is closed when this node may lead, or lead no more, since the call: see [consensus.Changed].
func (l *lateRaft) changed() <-chan struct{} {
	if n := l.node.Load(); n != nil {
		return consensus.Changed(n)
	}
	return nil
}

// lineUp says that a line of this machine is up again.
func (l *lateRaft) lineUp() {
	if n := l.node.Load(); n != nil {
		consensus.LineUp(n)
	}
}

func (l *lateRaft) status() consensus.Status {
	if n := l.node.Load(); n != nil {
		return n.Status()
	}
	return consensus.Status{NoQuorum: true}
}
