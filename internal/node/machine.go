package node

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

// machine is the state machine as the consensus sees it: the namespace, and the functions that hear what changed.
type machine struct {
	db meta.StateMachine
	// point is called at the labelled crash points.
	point func(string)
	// changed gets the events of applied entries, in order, from the applying goroutine; index is the last
	// entry's. All mounts show the entries when it returns.
	changed func(index uint64, events []meta.Event)

	// distrust is called when the state in use turns out to be damaged; may be nil.
	distrust func(error)
	marks    marks

	mu       sync.Mutex
	restored func() // called after a snapshot replaced the state
}

// Apply implements consensus.StateMachine.
func (m *machine) Apply(entries []consensus.Entry) ([]any, error) {
	results := make([]any, len(entries))
	var all []meta.Event
	for i, e := range entries {
		m.point("apply")
		res, events, err := m.apply(&e)
		if errors.Is(err, meta.ErrDamaged) {
			if m.distrust != nil {
				m.distrust(err)
			}
			return results[:i], fmt.Errorf("node: apply entry %d: %w: %w", e.Index, consensus.ErrStateWrong, err)
		}
		if err != nil {
			return results[:i], fmt.Errorf("node: apply entry %d: %w", e.Index, err)
		}
		_, digest := m.db.Digest()
		m.marks.record(e.Index, digest, entryName{e.Term, m.db.Time()})
		if e.Data != nil {
			results[i] = res
		}
		all = append(all, events...)
	}
	if len(entries) > 0 {
		m.changed(entries[len(entries)-1].Index, all)
	}
	return results, nil
}

// apply applies one entry. For a change of raft's voters the state gets an entry that names them.
func (m *machine) apply(e *consensus.Entry) (meta.Result, []meta.Event, error) {
	if !e.Conf {
		return m.db.Apply(e.Index, e.Time, e.Data)
	}
	voters, err := m.votes(e.Voters)
	if err != nil {
		return meta.Result{}, nil, err
	}
	outgoing, err := m.votes(e.Outgoing)
	if err != nil {
		return meta.Result{}, nil, err
	}
	op := &meta.SetVoters{Voters: voters, Outgoing: outgoing}
	return m.db.Apply(e.Index, e.Time, meta.EncodeEntry(meta.Entry{Generation: m.db.Generation(),
		Format: m.db.Format(), Op: op}))
}

// votes are the nodes that cast raft's votes, in order; 0 for a store that its node no longer has.
func (m *machine) votes(ids []consensus.ID) ([]meta.NodeID, error) {
	list := make([]meta.NodeID, len(ids))
	for i, id := range ids {
		rec, err := m.db.Node(nodeOf(id))
		if err != nil && !errors.Is(err, meta.ErrNotFound) {
			return nil, err
		}
		if err == nil && raftID(rec.ID, rec.Store) == id {
			list[i] = rec.ID
		}
	}
	slices.Sort(list)
	return list, nil
}

// Applied implements consensus.StateMachine.
func (m *machine) Applied() uint64 { return m.db.Index() }

// Synced implements consensus.StateMachine.
func (m *machine) Synced() uint64 { return m.db.Synced() }

// Sync implements consensus.StateMachine.
func (m *machine) Sync() error {
	_, err := m.db.Sync()
	return err
}

// Snapshot implements consensus.StateMachine.
func (m *machine) Snapshot() (io.ReadCloser, uint64, error) { return m.db.Snapshot() }

// Restore implements consensus.StateMachine.
func (m *machine) Restore(index, _ uint64, r io.Reader) error {
	m.marks.forget() // before: a goroutine that finds a mark of the old state knows it by the old state's number
	if err := m.db.Restore(r); err != nil {
		return fmt.Errorf("node: restore snapshot at %d: %w", index, err)
	}
	if got := m.db.Index(); got != index {
		return fmt.Errorf("node: restore snapshot: state is at %d, want %d", got, index)
	}
	m.mu.Lock()
	restored := m.restored
	m.mu.Unlock()
	if restored != nil {
		restored()
	}
	return nil
}

// digestAt is the digest of the state at an index that was applied not long ago.
func (m *machine) digestAt(index uint64) ([16]byte, bool) {
	if mark, ok := m.marks.at(index); ok {
		return mark.digest, true
	}
	at, digest := m.db.Digest()
	return digest, at == index
}
