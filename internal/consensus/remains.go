package consensus

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// Remains is what the log of a stopped node holds.
type Remains struct {
	// Entries follow the index that was asked for. The last ones may never have been committed. Changes of the voters
	// are among them, with Conf and Data unset.
	Entries []Entry
	// Last and Term belong to the last entry, or to the point that the log begins after.
	Last, Term uint64
	// Member says that the log is a raft log, of a voter or of a node that is to be one: its terms count. An observer
	// has no such log.
	Member bool
	// Promised says that the node may have promised something: it has taken part in raft.
	Promised bool
}

// ReadRemains reads the log of a stopped node, after an index that its state has applied. Errors: as Open.
func ReadRemains(cfg Config, after uint64) (Remains, error) {
	disk, state, err := raftlog.Open(cfg.logOptions())
	if err != nil {
		return Remains{}, fmt.Errorf("consensus: read log: %w", err)
	}
	if base := state.Continued(after); base != nil {
		state.Base, state.Entries = *base, nil
	}
	out := Remains{Last: state.LastIndex(), Term: state.Base.Term,
		Member:   slices.Contains(core.MembersOf(state.Base.Conf), cfg.Identity.ID),
		Promised: state.Hard.GetTerm() > 0 || state.LastIndex() > 0}
	if after < state.Base.Index {
		return out, errors.Join(fmt.Errorf("%w: it has applied %d, the log begins after %d", ErrStateBehind, after,
			state.Base.Index), disk.Close())
	}
	for _, e := range state.Entries {
		out.Term = e.GetTerm()
		if e.GetIndex() <= after {
			continue
		}
		c := core.Committed{Index: e.GetIndex(), Term: e.GetTerm(), Type: e.GetType(), Raw: e.GetData()}
		entry, _, err := c.Entry()
		if err != nil {
			return out, errors.Join(fmt.Errorf("consensus: read log: entry %d: %w", e.GetIndex(), err), disk.Close())
		}
		out.Entries = append(out.Entries, entry)
	}
	return out, disk.Close()
}
