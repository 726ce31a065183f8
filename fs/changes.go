package fs

import (
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

const (
	// timesTick is the coarsest step of file times. A change this soon after a sample may leave ctime as it was.
	timesTick = 20 * time.Millisecond
	// deltaBytesMin is the size from which only the changed leaves of a staged file are published.
	deltaBytesMin = 4 << 20
)

// change is what a live file holds that was not published.
type change struct {
	any   bool
	mtime int64 // that the log had just before stat
	stat  StageStat
	state state
	snap  Snapshot           // zero when nothing changed for certain
	dirty []replicate.Extent // nil: everywhere

	read *stageRead // until end; nil when nothing was read
}

// end reports to the staged file what became of a snapshot.
func (c *change) end(published meta.ContentID, ok bool) {
	if c.read != nil {
		c.read.end()
	}
	if c.snap.Done != nil {
		c.snap.Done(published, ok)
	}
}

// worthDelta reports whether only what changed should be moved.
func (c *change) worthDelta() bool {
	return c.dirty != nil && c.snap.Size >= deltaBytesMin && extentBytes(c.dirty) < c.snap.Size/2
}

// rewritten notes the times of a live file that was written and still holds the bytes that it had: its times have
// changed all the same. Times that were set since it was looked at stay.
func (pub *publisher) rewritten(l *live, c change) {
	pub.nodes.mu.Lock()
	defer pub.nodes.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.stat.Mtime == l.published.mtime || c.mtime != l.published.mtime || l.superseded || l.node.gone {
		return
	}
	l.published.mtime = c.stat.Mtime
	l.attrs.add(meta.AttrPatch{Mask: meta.AttrMtime, Mtime: c.stat.Mtime})
}

// unchanged reports whether a live file certainly holds what was published, without reading it.
func (l *live) unchanged(st StageStat) bool {
	mediated := !l.backing.on()
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.published
	switch {
	case !p.valid || p.size != st.Size || p.dirty != l.dirty:
		return false
	case mediated:
		return true // each write came by here and was counted
	}
	return !l.mayMap && p.ctime == st.Ctime && l.tells(p)
}

// tells reports whether a change since a sample would show in ctime.
func (l *live) tells(p state) bool { return l.fineTimes || p.at-p.ctime > int64(timesTick) }

// isPublished reports whether a live file certainly holds what is in the log, attributes too.
func (l *live) isPublished(st StageStat) bool { return l.unchanged(st) && !l.pendingAttr() }

// changes compares a live file with what was published.
func (l *live) changes() (change, error) {
	l.mu.Lock()
	c := change{state: state{dirty: l.dirty}, mtime: l.published.mtime}
	published, sums := l.published, l.sums
	l.mu.Unlock()
	var err error
	if c.stat, err = l.stage.Stat(); err != nil {
		return c, err
	}
	c.state = sample(c.stat, c.state.dirty) // before anything is read: what is written from now on is another change
	if l.unchanged(c.stat) {
		return c, nil
	}
	c.read = l.stageReads.begin()
	if c.snap, err = l.stage.Snapshot(); err != nil {
		return c, err
	}
	c.snap.Source = unlessCut{c.snap.Source, c.read}
	c.snap.Data = replicate.AlignExtents(c.snap.Data, largeLeafBytes, c.snap.Size)
	size := c.snap.Size
	if c.snap.Exact {
		c.dirty = c.snap.Dirty
		c.any = !published.valid || c.snap.Changed || published.size != size
		return c, nil
	}
	if sums == nil && published.valid {
		sums, err = l.baseSums()
	}
	if err != nil || sums == nil {
		c.any = !published.valid || size != 0 || published.size != 0
		return c, err
	}
	c.dirty, err = sums.diff(c.snap.Source, size, c.snap.Data)
	c.any = !published.valid || len(c.dirty) > 0 || sums.size != size
	if !c.any && err == nil {
		l.mu.Lock()
		c.state.mtime = l.published.mtime // until the log has the other one
		l.published = c.state
		l.mu.Unlock()
	}
	return c, err
}

// clone is a staged file that may share the bytes of what it was made from. Sound fails if those bytes were found
// damaged: then bytes that differ from their sums need not be bytes that a program wrote.
type clone interface{ Sound() error }

// baseSums reads what the staged file was made from, as long as nothing newer was published. nil means unknown.
func (l *live) baseSums() (*leafSums, error) {
	if l.base == nil {
		return nil, nil
	}
	sums, err := sumsOf(l.base, l.base.Size())
	if s, ok := l.stage.(clone); ok && err == nil {
		err = s.Sound()
	}
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sums == nil {
		l.sums = sums
	}
	return l.sums, nil
}
