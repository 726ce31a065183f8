package core

import (
	"bytes"
	"sort"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/logstate"
)

// memLog is the part of the log that is on stable storage, held in memory for raft. It belongs to its Core.
type memLog struct {
	hard    *raftpb.HardState
	base    logstate.Base
	entries []*raftpb.Entry // base.Index+1 ...
	// confs are the configurations since the base, by index; the first is the base's.
	confs []confAt
	// applied is where a snapshot would be taken.
	applied uint64
}

type confAt struct {
	index uint64
	conf  *raftpb.ConfState
}

var _ raft.Storage = (*memLog)(nil)

func newMemLog(s *logstate.State) *memLog {
	l := &memLog{hard: s.Hard, base: s.Base, entries: s.Entries, applied: s.Base.Index}
	if l.hard == nil {
		l.hard = &raftpb.HardState{}
	}
	if l.base.Conf == nil {
		l.base.Conf = &raftpb.ConfState{}
	}
	l.confs = []confAt{{l.base.Index, l.base.Conf}}
	return l
}

// InitialState implements raft.Storage.
func (l *memLog) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	return l.hard, l.base.Conf, nil
}

// Entries implements raft.Storage.
func (l *memLog) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	if lo <= l.base.Index {
		return nil, raft.ErrCompacted
	}
	if hi > l.last()+1 || lo >= hi {
		return nil, raft.ErrUnavailable
	}
	list := l.entries[lo-l.base.Index-1 : hi-l.base.Index-1]
	var size uint64
	for i, e := range list {
		size += entryBytes(e)
		if i > 0 && size > maxSize {
			list = list[:i]
			break
		}
	}
	return list[:len(list):len(list)], nil
}

func entryBytes(e *raftpb.Entry) uint64 { return uint64(len(e.GetData())) + 24 }

// Term implements raft.Storage.
func (l *memLog) Term(i uint64) (uint64, error) {
	switch {
	case i < l.base.Index:
		return 0, raft.ErrCompacted
	case i == l.base.Index:
		return l.base.Term, nil
	case i > l.last():
		return 0, raft.ErrUnavailable
	}
	return l.entries[i-l.base.Index-1].GetTerm(), nil
}

func (l *memLog) last() uint64 { return l.base.Index + uint64(len(l.entries)) }

// LastIndex implements raft.Storage.
func (l *memLog) LastIndex() (uint64, error) { return l.last(), nil }

// FirstIndex implements raft.Storage.
func (l *memLog) FirstIndex() (uint64, error) { return l.base.Index + 1, nil }

// Snapshot implements raft.Storage: it holds no data, the receiver fetches those on a connection of their own.
func (l *memLog) Snapshot() (*raftpb.Snapshot, error) {
	if l.applied == 0 {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	term, err := l.Term(l.applied)
	if err != nil {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		Index: new(l.applied), Term: new(term), ConfState: l.confAt(l.applied),
	}}, nil
}

// append adds entries that are on stable storage now, replacing those from the first one's index on.
func (l *memLog) append(list []*raftpb.Entry) {
	if len(list) == 0 {
		return
	}
	keep := list[0].GetIndex() - l.base.Index - 1
	l.entries = append(l.entries[:keep:keep], list...)
}

// reset makes the log begin, empty, after base.
func (l *memLog) reset(base logstate.Base) {
	l.base, l.entries = base, nil
	l.applied = base.Index
	l.confs = []confAt{{base.Index, base.Conf}}
}

// compact moves the base forward to index, which must be applied.
func (l *memLog) compact(index uint64) logstate.Base {
	term, _ := l.Term(index)
	base := logstate.Base{Index: index, Term: term, Time: l.base.Time, Conf: l.confAt(index)}
	for _, e := range l.entries[:index-l.base.Index] {
		base.Time = max(base.Time, TimeOf(e))
	}
	l.entries = append([]*raftpb.Entry(nil), l.entries[index-l.base.Index:]...)
	l.base = base
	i := sort.Search(len(l.confs), func(i int) bool { return l.confs[i].index > index })
	l.confs = append([]confAt{{index, base.Conf}}, l.confs[i:]...)
	return base
}

func (l *memLog) confAt(index uint64) *raftpb.ConfState {
	i := sort.Search(len(l.confs), func(i int) bool { return l.confs[i].index > index })
	return l.confs[max(i, 1)-1].conf
}

// same reports whether the log has nothing else than an entry at its index, where it has one of its term.
func (l *memLog) same(e *raftpb.Entry) bool {
	if e.GetIndex() <= l.base.Index || e.GetIndex() > l.last() {
		return true
	}
	own := l.entries[e.GetIndex()-l.base.Index-1]
	return own.GetType() == e.GetType() && bytes.Equal(own.GetData(), e.GetData())
}

// timeAt is the time of the last proposal up to index, 0 before the first one; ok is false if it is not known.
func (l *memLog) timeAt(index uint64) (timeNanos int64, ok bool) {
	if index < l.base.Index || index > l.last() {
		return 0, false
	}
	for ; index > l.base.Index; index-- {
		if at := TimeOf(l.entries[index-l.base.Index-1]); at > 0 {
			return at, true
		}
	}
	return l.base.Time, l.base.Time > 0 || l.base.Index == 0
}

func (l *memLog) lastTime() int64 {
	at := l.base.Time
	for _, e := range l.entries {
		at = max(at, TimeOf(e))
	}
	return at
}
