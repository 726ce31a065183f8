package strike

import (
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// history is the log of a fault run. The process that starts the members keeps it and sends them each entry, so that
// neither the fault nor the network reaches it: what is measured is the session, not an election.
type history struct {
	db   *meta.DB
	seq  map[meta.NodeID]uint64 // of the last proposal, in its incarnation
	last uint64                 // index
	tell func(entry order)
}

func newHistory(tell func(order)) *history {
	return &history{db: meta.OpenMemory(), seq: make(map[meta.NodeID]uint64), tell: tell}
}

// append puts an operation of a node into the log. call is the node's number for it; 0 is nobody's.
func (l *history) append(node meta.NodeID, op meta.Op, call uint64) (meta.Result, error) {
	l.last++
	entry := meta.Entry{Node: node, Incarnation: l.incarnation(node), Generation: l.db.Generation(), Op: op}
	l.seq[node]++
	entry.Seq, entry.Acked = l.seq[node], l.seq[node]-1
	now, data := time.Now().UnixNano(), meta.EncodeEntry(entry)
	result, _, err := l.db.Apply(l.last, now, data)
	if err != nil {
		return result, fmt.Errorf("strike: log: %T: %w", op, err)
	}
	if _, ok := op.(*meta.Boot); ok {
		l.seq[node] = 0
	}
	l.tell(order{Order: orderEntry, Index: l.last, Time: now, Entry: data, Rank: rankOf(node), Call: call})
	return result, nil
}

func (l *history) incarnation(node meta.NodeID) uint32 {
	n, err := l.db.Node(node)
	if err != nil {
		return 0 // it has not joined
	}
	return n.Incarnation
}

// propose appends what a member process has encoded.
func (l *history) propose(rank int, encoded []byte, call uint64) error {
	e, err := meta.DecodeEntry(encoded)
	if err == nil {
		_, err = l.append(nodeOf(rank), e.Op, call)
	}
	return err
}

// found makes a cluster with a number of nodes, all up.
func (l *history) found(members int) error {
	must := func(node meta.NodeID, op meta.Op) error {
		result, err := l.append(node, op, 0)
		if err == nil && result.Errno != 0 {
			err = fmt.Errorf("strike: log: %T: %w", op, result.Errno)
		}
		return err
	}
	var voters []meta.NodeID
	for rank := range members {
		id := nodeOf(rank)
		join := &meta.Join{Name: fmt.Sprint("rank", rank), Addr: fmt.Sprintf("rank%d:1", rank)}
		if rank > 0 {
			join.TokenHash = [32]byte{byte(rank)}
			if err := must(1, &meta.AddToken{Hash: join.TokenHash, Expires: 1 << 62}); err != nil {
				return err
			}
		}
		if err := must(1, join); err != nil {
			return err
		}
		if err := must(id, &meta.Boot{Node: id, Store: [16]byte{byte(id)}, Addr: join.Addr, Nonce: uint64(id)}); err != nil {
			return err
		}
		if rank < 3 {
			voters = append(voters, id)
		}
	}
	return must(1, &meta.SetVoters{Voters: voters})
}

// declareDown is what a leader does when a node has been silent for its lease.
func (l *history) declareDown(rank int) error {
	node := nodeOf(rank)
	by := nodeOf(0)
	if rank == 0 {
		by = nodeOf(1)
	}
	_, err := l.append(by, &meta.Down{Node: node, Incarnation: l.incarnation(node), Reason: "silent"}, 0)
	return err
}
