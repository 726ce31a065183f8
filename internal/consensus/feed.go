package consensus

import (
	"sort"
	"sync"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// confAt is a configuration, and the index of the entry that brought it.
type confAt struct {
	index uint64
	conf  *raftpb.ConfState
}

// feed is the tail of the committed log, in memory, for the nodes that follow this one.
type feed struct {
	mu      sync.Mutex   // protects all below
	base    raftlog.Base // before the first entry
	entries []core.Committed
	bytes   uint64
	confs   []confAt      // of changes in entries
	changed chan struct{} // closed and replaced when entries are added
	untold  bool          // there are entries that changed was not closed for
}

func newFeed(base raftlog.Base) *feed {
	return &feed{base: base, changed: make(chan struct{})}
}

// push adds entries that follow the last one; those already there are skipped. It returns false if there is a gap.
// Followers hear of the entries now, or by the next announce.
func (f *feed) push(list []core.Committed, now bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.base.Index + uint64(len(f.entries))
	for len(list) > 0 && list[0].Index <= last {
		list = list[1:]
	}
	if len(list) == 0 {
		return true
	}
	if list[0].Index != last+1 {
		return false
	}
	f.entries = append(f.entries, list...)
	for i := range list {
		f.bytes += list[i].Bytes()
		if list[i].Conf != nil {
			f.confs = append(f.confs, confAt{list[i].Index, list[i].Conf})
		}
	}
	f.untold = true
	if now {
		f.announceLocked()
	}
	return true
}

// announce wakes the followers for entries that were pushed without doing so.
func (f *feed) announce() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.announceLocked()
}

func (f *feed) announceLocked() {
	if f.untold {
		f.untold = false
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// quiet reports whether an announce is due.
func (f *feed) quiet() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.untold
}

// reset empties the feed: it goes on after base.
func (f *feed) reset(base raftlog.Base) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.base, f.entries, f.bytes, f.confs = base, nil, 0, nil
	f.untold = true
	f.announceLocked()
}

// after returns entries from index on, up to about limit bytes; ok is false if they are gone. If there are none yet,
// changed is closed when that may be different.
func (f *feed) after(index uint64, limit uint64) (list []core.Committed, changed <-chan struct{}, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if index <= f.base.Index {
		return nil, nil, false
	}
	from := index - f.base.Index - 1
	if from >= uint64(len(f.entries)) {
		return nil, f.changed, true
	}
	to, size := from, uint64(0)
	for to < uint64(len(f.entries)) && (to == from || size+f.entries[to].Bytes() <= limit) {
		size += f.entries[to].Bytes()
		to++
	}
	return f.entries[from:to:to], f.changed, true
}

// trim drops entries up to index, as long as more than the limits stay; it returns the index before the first that
// stays.
func (f *feed) trim(index, keepEntries, keepBytes uint64) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	drop := 0
	for drop < len(f.entries) && f.entries[drop].Index <= index &&
		(uint64(len(f.entries)-drop) > keepEntries || f.bytes > keepBytes) {
		e := &f.entries[drop]
		f.bytes -= e.Bytes()
		f.base.Index, f.base.Term = e.Index, e.Term
		if ent, _, err := e.Entry(); err == nil && ent.Time > 0 {
			f.base.Time = ent.Time
		}
		if e.Conf != nil {
			f.base.Conf = e.Conf
		}
		drop++
	}
	if drop > 0 {
		f.entries = append([]core.Committed(nil), f.entries[drop:]...)
		i := sort.Search(len(f.confs), func(i int) bool { return f.confs[i].index > f.base.Index })
		f.confs = append([]confAt(nil), f.confs[i:]...)
	}
	return f.base.Index
}

// at returns term, time and configuration at an index; ok is false if it is not in the feed.
func (f *feed) at(index uint64) (b raftlog.Base, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if index < f.base.Index || index > f.base.Index+uint64(len(f.entries)) {
		return b, false
	}
	b = f.base
	b.Index = index
	if n := index - f.base.Index; n > 0 {
		b.Term = f.entries[n-1].Term
		for i := n; i > 0; i-- { // the last stamp is at most a few entries back
			if e, _, err := f.entries[i-1].Entry(); err == nil && e.Time > 0 {
				b.Time = e.Time
				break
			}
		}
	}
	if i := sort.Search(len(f.confs), func(i int) bool { return f.confs[i].index > index }); i > 0 {
		b.Conf = f.confs[i-1].conf
	}
	return b, true
}

// next returns the index of the entry that is due.
func (f *feed) next() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.base.Index + uint64(len(f.entries)) + 1
}
