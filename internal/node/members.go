package node

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/zeebo/blake3"
)

// raftID names a node with its store to raft: a node on a new disk is another member, because it does not remember what
// it promised. The upper half is the node's number.
func raftID(node meta.NodeID, store [16]byte) consensus.ID {
	sum := blake3.Sum256(store[:])
	var lower uint32
	c := coder.Reader(sum[:4], coder.Big)
	c.U32(&lower)
	return consensus.ID(node)<<32 | consensus.ID(lower)
}

// nodeOf is the node's number in a raft id.
func nodeOf(id consensus.ID) meta.NodeID { return meta.NodeID(id >> 32) }

// book is an immutable view of the node records, remade when one changes. Readers on hot paths take it without a lock.
type book struct {
	view  uint64
	nodes map[meta.NodeID]meta.Node
	raft  map[meta.NodeID]consensus.ID // of nodes that have booted
}

// members keeps the current book and since when each node is down, by this machine's clock.
type members struct {
	names    meta.Reader
	self     meta.NodeID
	store    [16]byte                 // this node's
	initial  map[meta.NodeID]peerAddr // from the join, until this node was let in: what is applied before is older
	now      func() time.Time
	current  atomic.Pointer[book]
	reported sync.Map // by NodeID: reportedAddr
	down     atomic.Pointer[map[meta.NodeID]time.Time]
}

func newMembers(names meta.Reader, id identity, now func() time.Time) (*members, error) {
	m := &members{names: names, self: id.Node, store: decodeID(id.Store), initial: id.Peers, now: now}
	m.down.Store(&map[meta.NodeID]time.Time{})
	return m, m.refresh()
}

// refresh rereads the records. It is called by one goroutine: the applying one, or at start.
func (m *members) refresh() error {
	nodes, err := m.names.Nodes()
	if err != nil {
		return err
	}
	b := &book{view: m.names.View(), nodes: map[meta.NodeID]meta.Node{}, raft: map[meta.NodeID]consensus.ID{}}
	down := map[meta.NodeID]time.Time{}
	was := *m.down.Load()
	for id, peer := range m.initial {
		if m.evicted(uint32(id)) {
			continue // for good
		}
		b.add(meta.Node{ID: id, Addr: peer.Addr, Store: decodeID(peer.Store)})
	}
	letIn := slices.ContainsFunc(nodes, func(n meta.Node) bool { return n.ID == m.self && n.Store == m.store })
	for _, n := range nodes {
		if peer := m.initial[n.ID]; !letIn && decodeID(peer.Store) != ([16]byte{}) {
			n.Addr, n.Store = peer.Addr, decodeID(peer.Store)
		}
		b.add(n)
		if n.State == meta.NodeUp {
			continue
		}
		since, known := was[n.ID]
		if !known {
			since = m.now()
		}
		down[n.ID] = since
	}
	m.down.Store(&down)
	m.current.Store(b)
	m.reported.Range(func(node, said any) bool {
		if !said.(reportedAddr).counts(b.nodes[node.(meta.NodeID)]) {
			m.reported.Delete(node) // for good: the log may name the earlier address again
		}
		return true
	})
	return nil
}

func (b *book) add(n meta.Node) {
	b.nodes[n.ID] = n
	if n.Store != ([16]byte{}) {
		b.raft[n.ID] = raftID(n.ID, n.Store)
	} else {
		delete(b.raft, n.ID) // it was replaced since this node joined, and has not booted
	}
}

func (m *members) book() *book { return m.current.Load() }

// has reports whether a node of that name is there, up or down. An evicted one may be replaced too.
func (b *book) has(name string) bool {
	_, known := b.named(name)
	return known
}

// named finds a node by its name.
func (b *book) named(name string) (rec meta.Node, known bool) {
	for _, rec := range b.nodes {
		if rec.Name == name {
			return rec, true
		}
	}
	return rec, false
}

// reportedAddr is where a node itself has said that it listens. It counts while the log still names the address and the
// store that it named then.
type reportedAddr struct {
	addr, instead string
	store         [16]byte
}

func (r reportedAddr) counts(n meta.Node) bool { return r.instead == n.Addr && r.store == n.Store }

// noteAddress takes an address from the node that listens there, if the log knows its store.
func (m *members) noteAddress(node meta.NodeID, store [16]byte, addr string) {
	if n, ok := m.book().nodes[node]; ok && n.Store == store {
		m.reported.Store(node, reportedAddr{addr: addr, instead: n.Addr, store: store})
	}
}

// address is where a node listens.
func (m *members) address(node uint32) (string, bool) {
	n, ok := m.book().nodes[meta.NodeID(node)]
	addr := n.Addr
	if said, was := m.reported.Load(n.ID); was && said.(reportedAddr).counts(n) {
		addr = said.(reportedAddr).addr
	}
	return addr, ok && addr != "" && n.State != meta.NodeEvicted
}

// inRaft reports whether a node is a member of raft, as far as this one, which may not have opened the log yet, has
// heard.
func (m *members) inRaft(node uint32, log *consensus.Node) bool {
	id, known := m.book().raft[meta.NodeID(node)]
	return known && log != nil && log.MayBeInRaft(id)
}

// evicted reports whether the log has evicted a node.
func (m *members) evicted(node uint32) bool {
	rec, err := m.names.Node(meta.NodeID(node))
	return err == nil && rec.State == meta.NodeEvicted
}

// consensusMembers is what the voter policy chooses from.
func (m *members) consensusMembers() []consensus.Member {
	b, down := m.book(), *m.down.Load()
	out := make([]consensus.Member, 0, len(b.raft))
	for node, id := range b.raft {
		n := b.nodes[node]
		if n.State != meta.NodeUp && n.State != meta.NodeDown {
			continue
		}
		mem := consensus.Member{ID: id, Up: n.State == meta.NodeUp}
		if since, ok := down[node]; ok && !mem.Up {
			mem.DownFor = m.now().Sub(since)
		}
		out = append(out, mem)
	}
	return out
}

// known lists all nodes that could be asked for the log.
func (m *members) known(self meta.NodeID) []consensus.ID {
	b := m.book()
	out := make([]consensus.ID, 0, len(b.raft))
	for node, id := range b.raft {
		if node != self {
			out = append(out, id)
		}
	}
	return out
}

// numbers turns raft ids into node numbers.
func numbers(ids []consensus.ID) []meta.NodeID {
	out := make([]meta.NodeID, len(ids))
	for i, id := range ids {
		out[i] = nodeOf(id)
	}
	return out
}

// authentic reports whether a peer that proved its number may speak under a raft id: with the store that the log knows,
// with any store while the log knows none, or as a member of raft. A member of raft may have been replaced further on
// in the log than this node has come, and may lead: then nothing else brings the log here.
func (m *members) authentic(node meta.NodeID, id consensus.ID, inRaft func(consensus.ID) bool) bool {
	known, ok := m.book().raft[node]
	return nodeOf(id) == node && (!ok || known == id || inRaft(id))
}

// name is a node's name, or its number.
func (m *members) name(id meta.NodeID) string {
	if rec, err := m.names.Node(id); err == nil && rec.Name != "" {
		return rec.Name
	}
	return fmt.Sprintf("node %d", id)
}

// isMember reports whether a node is in the cluster and was not evicted.
func (m *members) isMember(id meta.NodeID) bool {
	rec, ok := m.book().nodes[id]
	return ok && rec.State != meta.NodeEvicted
}

// addresses lists the other members, voters first.
func (m *members) addresses() []string {
	var voters, others []string
	for node, rec := range m.book().nodes {
		switch {
		case node == m.self || rec.Addr == "":
		case rec.Voter:
			voters = append(voters, rec.Addr)
		default:
			others = append(others, rec.Addr)
		}
	}
	return append(voters, others...)
}
