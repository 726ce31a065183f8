package sim

import (
	"cmp"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// feed is the tail of the committed log in memory, as consensus.Node keeps it.
type feed struct {
	base    raftlog.Base
	entries []consensus.Committed
}

func (f *feed) last() uint64 { return f.base.Index + uint64(len(f.entries)) }

// push adds entries behind the last one; it reports a gap.
func (f *feed) push(list []consensus.Committed) bool {
	for len(list) > 0 && list[0].Index <= f.last() {
		list = list[1:]
	}
	if len(list) == 0 {
		return true
	}
	if list[0].Index != f.last()+1 {
		return false
	}
	f.entries = append(f.entries, list...)
	return true
}

func (f *feed) reset(base raftlog.Base) { *f = feed{base: base} }

// after returns entries from index on; ok is false if they are gone.
func (f *feed) after(index uint64, limit int) (list []consensus.Committed, ok bool) {
	if index <= f.base.Index {
		return nil, false
	}
	from := int(index - f.base.Index - 1)
	if from >= len(f.entries) {
		return nil, true
	}
	to := min(len(f.entries), from+limit)
	return f.entries[from:to:to], true
}

// trim drops entries up to index but for the newest keep.
func (f *feed) trim(index, keep uint64) uint64 {
	drop := 0
	for drop < len(f.entries) && f.entries[drop].Index <= index && uint64(len(f.entries)-drop) > keep {
		e := &f.entries[drop]
		f.base.Index, f.base.Term = e.Index, e.Term
		if at := e.Time(); at > 0 {
			f.base.Time = at
		}
		if e.Conf != nil {
			f.base.Conf = e.Conf
		}
		drop++
	}
	f.entries = slices.Clone(f.entries[drop:])
	return f.base.Index
}

// at returns term, time and configuration at an index.
func (f *feed) at(index uint64) (raftlog.Base, bool) {
	if index < f.base.Index || index > f.last() {
		return raftlog.Base{}, false
	}
	b := f.base
	for i := range f.entries {
		e := &f.entries[i]
		if e.Index > index {
			break
		}
		b.Index, b.Term = e.Index, e.Term
		if at := e.Time(); at > 0 {
			b.Time = at
		}
		if e.Conf != nil {
			b.Conf = e.Conf
		}
	}
	return b, true
}

func sortSlice[T cmp.Ordered](s []T) { slices.Sort(s) }
