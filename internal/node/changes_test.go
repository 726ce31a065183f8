package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

func named(index uint64, names ...string) (out []meta.Event) {
	for _, name := range names {
		out = append(out, meta.Event{Kind: meta.EventName, Index: index, Ino: meta.RootIno, Name: name})
	}
	return out
}

// Changes are read in order from any position that is known, all of an entry or none, also when the oldest are
// forgotten.
func TestChangesAreReadInOrder(t *testing.T) {
	var c changes
	c.reset(10)
	if p, known := c.read(9); known != 10 || p.list != nil {
		t.Errorf("before the start: %+v, known %d", p, known)
	}
	c.note(11, append(named(11, "a", "b"), meta.Event{Kind: meta.EventName, Name: "pending"}))
	c.note(12, []meta.Event{{Kind: meta.EventOwed, Index: 12}})
	for position, want := range map[uint64]int{10: 2, 11: 0, 12: 0} {
		if p, _ := c.read(position); len(p.list) != want || p.upto != 12 || p.more == nil {
			t.Errorf("after %d: %+v", position, p)
		}
	}
	if p, _ := c.read(99); len(p.list) > 0 || p.upto != 99 {
		t.Errorf("a position that other nodes have reached: %+v", p)
	}
	const entries, each = changesKept / 2, 3
	for i := range uint64(entries) {
		c.note(13+i, named(13+i, fmt.Sprint(i), "x", "y"))
	}
	_, position := c.read(0)
	last := 12 + uint64(entries)
	for next := position + 1; position < last; {
		p, known := c.read(position)
		if known > position || len(p.list) == 0 || p.more == nil != (p.upto < last) {
			t.Fatalf("after %d: %d changes, up to %d, known %d", position, len(p.list), p.upto, known)
		}
		for group := range slices.Chunk(p.list, each) {
			if len(group) != each || group[0].name != fmt.Sprint(next-13) || group[2].index != next {
				t.Fatalf("entry %d: %+v", next, group)
			}
			next++
		}
		position = p.upto
	}
	c.reset(last)
	if p, known := c.read(last - 1); known != last {
		t.Errorf("what led to another state: %+v, known %d", p, known)
	}
}

// A reader that waits is woken by each batch of entries, and by a state that is replaced.
func TestChangesWakeReaders(t *testing.T) {
	var c changes
	for i, step := range []func(){
		func() { c.note(1, nil) }, func() { c.note(2, named(2, "a")) }, func() { c.reset(7) },
	} {
		p, _ := c.read(c.last())
		select {
		case <-p.more:
			t.Errorf("step %d: woken before it", i)
		default:
		}
		step()
		<-p.more
	}
}

// changing is a cluster of two nodes of which the first is watched.
type changing struct {
	*metatest.Cluster
	t *testing.T
	changeReport
}

func newChanging(t *testing.T) *changing {
	db := meta.OpenMemory()
	t.Cleanup(func() { db.Close() })
	w := &changing{Cluster: metatest.Over(t, db, 2), t: t}
	w.changeReport = changeReport{ctx: t.Context(), changes: &changes{}, db: db,
		paths: &paths{names: db, lease: func() meta.Lease { return w.Lease(1) }}}
	w.Events()
	w.changes.reset(db.Index())
	return w
}

func (w *changing) create(dir meta.Ino, name string, kind meta.Kind) meta.Ino {
	return w.Do(2, &meta.Create{Parent: dir, Name: name, Kind: kind}).Ino
}

func (w *changing) publish(ino meta.Ino, size int64) {
	votes := meta.Votes{View: w.db.View()}
	p := &meta.Publish{Ino: ino, Session: w.Session(2), Size: size, Root: [32]byte{1}, Votes: votes}
	p.Votes.Add(1)
	p.Votes.Add(2)
	w.Do(2, p)
}

// lines is what a watch of a path prints after a position, and the position of its last line.
func (w *changing) lines(dir string, after uint64) (out []string, last uint64) {
	w.t.Helper()
	w.changes.note(w.db.Index(), w.Events())
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	end := w.changes.last()
	err := w.watch(ctx, admin.WatchRequest{Path: dir, After: &after}, func(ev admin.Event) error {
		if ev.Change != nil {
			c := ev.Change
			out = append(out, fmt.Sprintf("%s %s %d %d", c.What, c.Path, c.Version, c.SizeBytes))
		}
		if last = ev.Position; last >= end {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		w.t.Errorf("watch: %v", err)
	}
	return out, last
}

// A watch of changes says what is at each path that changed, no file that is not published, and goes on from each
// position.
func TestWatchOfChanges(t *testing.T) {
	w := newChanging(t)
	from := w.changes.last()
	dir := w.create(meta.RootIno, "d", meta.KindDir)
	file := w.create(dir, "f", meta.KindFile)
	want := func(dir string, lines ...string) {
		t.Helper()
		w.create(meta.RootIno, fmt.Sprint("end", w.db.Index()), meta.KindDir) // the last line of a watch of everything
		got, last := w.lines(dir, from)
		if dir == "" {
			got = got[:len(got)-1]
		}
		if !slices.Equal(got, lines) {
			t.Errorf("watch of %q:\n%q, want\n%q", dir, got, lines)
		}
		from = last
	}
	want("", "directory /d 0 0")
	w.publish(file, 5)
	want("", "file /d/f 1 5")
	w.publish(file, 6)
	w.publish(file, 7)
	w.Do(1, &meta.Rename{OldParent: dir, OldName: "f", NewParent: meta.RootIno, NewName: "g"})
	want("", "gone /d/f 0 0", "file /g 3 7")
	w.create(dir, "sub", meta.KindDir)
	w.Do(1, &meta.Rmdir{Parent: dir, Name: "sub"})
	w.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "g"})
	want("", "gone /d/sub 0 0", "gone /g 0 0")
	old := from - 1
	w.changes.reset(from)
	err := w.watch(t.Context(), admin.WatchRequest{After: &old}, func(admin.Event) error { return nil })
	if admin.CodeOf(err) != admin.CodeNotFound {
		t.Errorf("after a position that is not known: %v", err)
	}
}

// A watch of a path gets what lies there, and positions that pass over all else.
func TestWatchOfChangesOfAPath(t *testing.T) {
	w := newChanging(t)
	from := w.changes.last()
	a, b := w.create(meta.RootIno, "a", meta.KindDir), w.create(meta.RootIno, "b", meta.KindDir)
	w.create(b, "other", meta.KindDir)
	w.Do(1, &meta.Rename{OldParent: b, OldName: "other", NewParent: a, NewName: "mine"}) // one entry, two lines
	for dir, want := range map[string][]string{
		"a": {"directory /a 0 0", "directory /a/mine 0 0"}, "/b": {"directory /b 0 0", "gone /b/other 0 0"},
		"": {"directory /a 0 0", "directory /b 0 0", "gone /b/other 0 0", "directory /a/mine 0 0"},
	} {
		if got, _ := w.lines(dir, from); !slices.Equal(got, want) {
			t.Errorf("watch of %q: %q", dir, got)
		}
	}
	// Whoever stops between the two lines of the rename gets the second one again.
	stop := errors.New("stop")
	var at uint64
	err := w.watch(t.Context(), admin.WatchRequest{After: &from}, func(ev admin.Event) error {
		if at = ev.Position; ev.Change != nil && ev.Change.What == "gone" {
			return stop
		}
		return nil
	})
	got, _ := w.lines("", at)
	if !errors.Is(err, stop) || !slices.Contains(got, "directory /a/mine 0 0") {
		t.Errorf("%v, after %d: %q", err, at, got)
	}
}

// Of several lines of one entry only the last one has its position.
func TestPositionsOfOneEntry(t *testing.T) {
	w := newChanging(t)
	p := part{list: make([]change, 4), upto: 9}
	for i := range p.list {
		p.list[i] = change{index: 9, dir: meta.RootIno, name: fmt.Sprint(i)}
	}
	p.list[0].index = 8
	var got []uint64
	lines, err := w.changeReport.lines(p, "")
	for _, line := range lines {
		got = append(got, line.Position)
	}
	if want := []uint64{8, 8, 8, 9}; err != nil || !slices.Equal(got, want) {
		t.Errorf("positions %v, want %v; %v", got, want, err)
	}
}

// A watch of a path says how far it has come while only other paths change.
func TestWatchOfChangesSaysHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newChanging(t)
		from, began := w.changes.last(), time.Now()
		w.create(meta.RootIno, "other", meta.KindDir)
		w.changes.note(w.db.Index(), w.Events())
		stop := errors.New("stop")
		err := w.watch(t.Context(), admin.WatchRequest{Path: "mine", After: &from}, func(ev admin.Event) error {
			if ev.Position == w.changes.last() && ev.Change == nil {
				return stop
			}
			return nil
		})
		if took := time.Since(began); !errors.Is(err, stop) || took != positionEvery {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// G3: a line comes when the mounts of the node show what it says, also if the state has gone on since the change.
func TestG3WatchOfChangesWaitsForMounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newChanging(t)
		from := w.changes.last()
		file := w.create(meta.RootIno, "f", meta.KindFile)
		w.publish(file, 1)
		w.changes.note(w.db.Index(), w.Events())
		w.publish(file, 2) // applied, and shown by no mount yet
		got := make(chan admin.Change, 9)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.watch(ctx, admin.WatchRequest{After: &from}, func(ev admin.Event) error {
				if ev.Change != nil {
					got <- *ev.Change
				}
				return nil
			})
		}()
		synctest.Wait()
		if len(got) > 0 {
			t.Errorf("before mounts show it: %+v", <-got)
		}
		w.changes.note(w.db.Index(), w.Events())
		if c := <-got; c.Version != 2 || c.SizeBytes != 2 {
			t.Errorf("%+v", c)
		}
		cancel()
		<-ended
	})
}
