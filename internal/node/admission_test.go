package node

import (
	"context"
	"log/slog"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
)

// aheadLog is a log whose state is ahead of the node's.
type aheadLog struct {
	db     *meta.DB
	booted []meta.Boot
}

// Propose implements raftLog.
func (l *aheadLog) Propose(_ context.Context, data []byte, _ consensus.ProposeOptions) (consensus.Proposed, error) {
	e, err := meta.DecodeEntry(data)
	if err != nil {
		return consensus.Proposed{}, err
	}
	if op, is := e.Op.(*meta.Boot); is {
		l.booted = append(l.booted, *op)
	}
	index := l.db.Index() + 1
	res, _, err := l.db.Apply(index, int64(index), data)
	return consensus.Proposed{Index: index, Result: res}, err
}

// A node whose disk is an older copy, or that was away, does not know its last incarnation. It learns it by asking, and
// names it each time: its calls that come late end no later process.
func TestBootNamesTheIncarnationThatItAsksFor(t *testing.T) {
	log := &aheadLog{db: meta.OpenMemory()}
	defer log.db.Close()
	own := meta.OpenMemory()
	defer own.Close()
	anon := anonymous{node: 1, generation: meta.FirstGeneration, log: log}
	id := identity{Node: 1, Store: "01010101010101010101010101010101"}
	if _, err := anon.propose(t.Context(), &meta.Join{Name: "n1"}); err != nil {
		t.Fatal(err)
	}
	for nonce := uint64(1); nonce < 4; nonce++ {
		op := &meta.Boot{Node: 1, Store: id.store(), Nonce: nonce}
		if res, err := anon.propose(t.Context(), op); err != nil || res.Errno != 0 {
			t.Fatal(err, res.Errno)
		}
	}
	log.booted = nil
	a := &admission{id: id, db: own, anonymous: anon, proposer: newProposer(t.Context(), nil, 1, meta.FirstGeneration),
		formats: formats{known: format.Range{Oldest: format.First, Newest: format.First}}, log: slog.New(slog.DiscardHandler)}
	if err := a.boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	rec, err := log.db.Node(1)
	if err != nil || rec.Incarnation != 4 || a.proposer.lease().Incarnation != 4 {
		t.Fatalf("%+v, %v, lease %+v", rec, err, a.proposer.lease())
	}
	if len(log.booted) != 2 || log.booted[0].Next != 1 || log.booted[1].Next != 4 {
		t.Fatalf("%+v", log.booted)
	}
}
