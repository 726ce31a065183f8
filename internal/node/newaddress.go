package node

import (
	"context"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/meta"
)

// A data directory may be moved to another address. The others still dial the old one then, so the log can't be
// reached by the usual way: the node asks them to put its boot, which names the new address, into the log.

// kindBoot is the kind of the call that asks a member to propose the caller's boot. The payload is the entry.
const kindBoot = 2

// askTimeout bounds the question to one member.
const askTimeout = 3 * time.Second

// movedFrom is the address that the log knows of this node, where that is not its own any more.
func (n *node) movedFrom() (addr string, moved bool) {
	rec, known := n.members.book().nodes[n.id.Node]
	return rec.Addr, known && rec.Addr != "" && rec.Addr != n.id.Advertise
}

// askIn asks the other members, one after the other, until one has proposed.
func (n *node) askIn(ctx context.Context, op *meta.Boot) {
	entry := meta.EncodeEntry(meta.Entry{Node: n.id.Node, Generation: n.id.Generation, Op: op})
	for id, rec := range n.members.book().nodes {
		if id == n.id.Node || rec.State == meta.NodeEvicted || ctx.Err() != nil {
			continue
		}
		call, cancel := context.WithTimeout(ctx, askTimeout)
		_, err := n.peers.Call(call, uint32(id), kindBoot, entry)
		cancel()
		if err == nil {
			return
		}
		n.log.Debug("ask to be let in from a new address", "node", id, "err", err)
	}
}

// handleBoot proposes the boot of the member that calls, and of nobody else.
func (n *node) handleBoot(ctx context.Context, from control.Caller, payload []byte) ([]byte, error) {
	entry, err := meta.DecodeEntry(payload)
	if err != nil {
		return nil, fmt.Errorf("node: boot of node %d: %w: %w", from.Node, control.ErrProtocol, err)
	}
	op, ok := entry.Op.(*meta.Boot)
	if !ok || uint32(op.Node) != from.Node || uint32(entry.Node) != from.Node || entry.Generation != n.id.Generation ||
		entry.Incarnation != 0 {
		return nil, fmt.Errorf("node: boot of node %d: not its own: %w", from.Node, control.ErrProtocol)
	}
	_, err = n.raft.Propose(ctx, payload, consensus.ProposeOptions{})
	return nil, err
}
