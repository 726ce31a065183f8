package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/meta"
)

// A data directory may be moved to another address. The others still dial the old one then, so the log can't be reached
// in the usual way: the node asks them to put its boot, which names the new address, into the log. Without a quorum
// they can't do that. Then, if it is a voter, it tells them where it listens, for they may be a quorum with it.

// kindBoot is the kind of the call that asks a member to propose the caller's boot. The payload is the entry.
const kindBoot = 2

// kindAddress is the kind of the call that tells a member where the caller listens. The payload is its store and the
// address.
const kindAddress = 9

const (
	askTimeout   = 3 * time.Second // bounds the question to one member
	addressAgain = time.Second     // between two times that a voter tells its address
	addressMax   = 256
)

// movedFrom is the address that the log knows of this node, where that is not its own any more.
func (a *admission) movedFrom() (addr string, moved bool) {
	rec, known := a.members.book().nodes[a.id.Node]
	return rec.Addr, known && rec.Addr != "" && rec.Addr != a.id.Advertise
}

// askIn asks the other members, one after the other, until one has proposed.
func (a *admission) askIn(ctx context.Context, op *meta.Boot) {
	entry := meta.EncodeEntry(meta.Entry{Node: a.id.Node, Generation: a.id.Generation, Format: a.db.Format(), Op: op})
	for id, rec := range a.members.book().nodes {
		if id == a.id.Node || rec.State == meta.NodeEvicted || ctx.Err() != nil {
			continue
		}
		call, cancel := context.WithTimeout(ctx, askTimeout)
		_, err := a.peers.Call(call, uint32(id), kindBoot, entry)
		cancel()
		if err == nil {
			return
		}
		a.log.Debug("ask to be let in from a new address", "node", id, "err", err)
	}
}

// handleBoot proposes the boot of the member that calls, and of nobody else.
func (a *admission) handleBoot(ctx context.Context, from control.Caller, payload []byte) ([]byte, error) {
	entry, err := meta.DecodeEntry(payload)
	if err != nil {
		return nil, fmt.Errorf("node: boot of node %d: %w: %w", from.Node, control.ErrProtocol, err)
	}
	op, ok := entry.Op.(*meta.Boot)
	if !ok || uint32(op.Node) != from.Node || uint32(entry.Node) != from.Node || entry.Generation != a.id.Generation ||
		entry.Incarnation != 0 {
		return nil, fmt.Errorf("node: boot of node %d: not its own: %w", from.Node, control.ErrProtocol)
	}
	_, err = a.raft.Propose(ctx, payload, consensus.ProposeOptions{})
	return nil, err
}

// tellAddress tells the others where this node listens, if it votes and knows no quorum. It waits for no answer, and is
// called by one goroutine at a time.
func (a *admission) tellAddress() {
	st, self := a.raft.status(), raftID(a.id.Node, a.id.store())
	if !st.NoQuorum || !slices.Contains(st.Voters, self) || time.Since(a.addressTold) < addressAgain {
		return
	}
	a.addressTold = time.Now()
	store := a.id.store()
	payload := append(store[:], a.id.Advertise...)
	for id, rec := range a.members.book().nodes {
		if id == a.id.Node || rec.State == meta.NodeEvicted {
			continue
		}
		a.life.tasks.Go(func() {
			ctx, cancel := context.WithTimeout(a.life.ctx, askTimeout)
			defer cancel()
			if _, err := a.peers.Call(ctx, uint32(id), kindAddress, payload); err != nil {
				a.log.Debug("tell a node this one's address", "node", id, "err", err)
			}
		})
	}
}

// handleAddress takes the address of the member that calls.
func (m *members) handleAddress(_ context.Context, from control.Caller, payload []byte) ([]byte, error) {
	if len(payload) <= 16 || len(payload) > 16+addressMax {
		return nil, fmt.Errorf("node: address of node %d: %d bytes: %w", from.Node, len(payload), control.ErrProtocol)
	}
	m.noteAddress(meta.NodeID(from.Node), [16]byte(payload), string(payload[16:]))
	return nil, nil
}
