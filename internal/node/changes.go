package node

import (
	"context"
	"errors"
	"path"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	// changesKept is how many changes of names and versions a node remembers: 100 to 150 bytes each.
	changesKept = 1 << 15
	// changesPart is how many of them are read at once.
	changesPart = 256
	// positionEvery is how often a watch of changes says how far it has come while nothing changes at its path.
	positionEvery = 10 * time.Second
)

// changes remembers the last changes of names and versions in the order of the log. Programs wait for them, and go on
// from where they were.
type changes struct {
	mu    sync.Mutex
	ring  []change      // the oldest at first, once it is full
	first int           // index in ring of the oldest
	after uint64        // all changes after this index of the log are remembered
	upto  uint64        // up to this one; all mounts here show it
	grown chan struct{} // closed and replaced when upto grows; nil: nobody waits
}

// change is a name of a directory that appeared, vanished or leads elsewhere; or, without a directory, a file that has
// a new version.
type change struct {
	index uint64
	dir   meta.Ino
	name  string
	file  meta.Ino
}

// reset forgets all: the state is that of an index, and what led to it is not known.
func (c *changes) reset(index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring, c.first, c.after = nil, 0, index
	c.reachedLocked(index)
}

// note takes the events of the entries up to an index. Events that are not from the log have no index.
func (c *changes) note(index uint64, events []meta.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ev := range events {
		switch {
		case ev.Index == 0:
		case ev.Kind == meta.EventName:
			c.addLocked(change{index: ev.Index, dir: ev.Ino, name: ev.Name})
		case ev.Kind == meta.EventPublished:
			c.addLocked(change{index: ev.Index, file: ev.Ino})
		}
	}
	c.reachedLocked(index)
}

func (c *changes) addLocked(ch change) {
	if len(c.ring) < changesKept {
		c.ring = append(c.ring, ch)
		return
	}
	c.after = c.ring[c.first].index
	c.ring[c.first] = ch
	c.first = (c.first + 1) % changesKept
}

func (c *changes) reachedLocked(index uint64) {
	c.upto = index
	if c.grown != nil {
		close(c.grown)
		c.grown = nil
	}
}

// part is the next changes after a position.
type part struct {
	list []change
	upto uint64          // the position after them
	more <-chan struct{} // closed when there may be more; nil: there is more now
}

// read returns the next changes after a position, all of an entry or none. They are not known if the position is before
// known, which is the oldest one that is.
func (c *changes) read(position uint64) (p part, known uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if position < c.after {
		return p, c.after
	}
	at := func(i int) change { return c.ring[(c.first+i)%len(c.ring)] }
	for i := sort.Search(len(c.ring), func(i int) bool { return at(i).index > position }); i < len(c.ring); i++ {
		if n := len(p.list); n >= changesPart && at(i).index != p.list[n-1].index {
			p.upto = p.list[n-1].index
			return p, c.after
		}
		p.list = append(p.list, at(i))
	}
	if c.grown == nil {
		c.grown = make(chan struct{})
	}
	p.upto, p.more = max(position, c.upto), c.grown
	return p, c.after
}

// last is the position of what mounts show here now.
func (c *changes) last() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.upto
}

// shown is closed when mounts may show more than they do now; it is nil if they show all up to an index.
func (c *changes) shown(index uint64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.upto >= index {
		return nil
	}
	if c.grown == nil {
		c.grown = make(chan struct{})
	}
	return c.grown
}

// changeReport answers the clients that watch changes.
type changeReport struct {
	ctx     context.Context // ends with the node
	changes *changes
	db      *meta.DB
	paths   *paths
}

// watch reports what is at each path whose name or version changes, and positions to go on from, until the client goes.
func (r *changeReport) watch(ctx context.Context, req admin.WatchRequest, each func(admin.Event) error) error {
	position := r.changes.last()
	if req.After != nil {
		position = *req.After
	}
	said := position
	if err := each(positionEvent(said)); err != nil {
		return err
	}
	tick := time.NewTicker(positionEvery)
	defer tick.Stop()
	for {
		p, known := r.changes.read(position)
		if position < known {
			return admin.Errorf(admin.CodeNotFound, "changes after position %d are not all known at this node any more, "+
				"only those after %d: begin a watch without --after, then look at the directory again", position, known)
		}
		lines, err := r.lines(p, req.Path)
		if err == nil {
			err = r.awaitShown(ctx)
		}
		if err != nil || r.ctx.Err() != nil {
			return err
		}
		sent := false
		for _, line := range lines {
			if err := each(line); err != nil {
				return err
			}
			sent = line.Position == p.upto
		}
		if position = p.upto; sent {
			said = position
		}
		if p.more == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ctx.Done():
			return nil
		case <-p.more:
		case <-tick.C:
			if said != position {
				said = position
				if err := each(positionEvent(said)); err != nil {
					return err
				}
			}
		}
	}
}

func positionEvent(at uint64) admin.Event {
	return admin.Event{Time: time.Now(), Kind: "position", Position: at}
}

// awaitShown waits until mounts here show the state as it is now: it may be ahead of them for a moment.
func (r *changeReport) awaitShown(ctx context.Context) error {
	index := r.db.Index()
	for {
		more := r.changes.shown(index)
		if more == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ctx.Done():
			return nil
		case <-more:
		}
	}
}

// lines says what is now at the paths of changes at dir and below it, each path once, in order.
func (r *changeReport) lines(p part, dir string) (list []admin.Event, err error) {
	later := uint64(0) // the entry of the line that follows
	seen := map[string]bool{}
	for _, ch := range slices.Backward(p.list) {
		out, err := r.describe(ch)
		if err != nil {
			return nil, err
		}
		if out.Path == "" || seen[out.Path] || !below(out.Path, dir) {
			continue
		}
		seen[out.Path] = true
		at := ch.index
		if at == later { // another line of the same entry follows
			at--
		}
		later = ch.index
		list = append(list, admin.Event{Time: time.Now(), Kind: "change", Position: at, Change: &out})
	}
	slices.Reverse(list)
	return list, nil
}

var kindWords = map[meta.Kind]string{meta.KindFile: "file", meta.KindDir: "directory", meta.KindSymlink: "symlink"}

// describe says what is now at the path of a change. There is no path if others do not see the name yet, or if its
// directory is gone.
func (r *changeReport) describe(ch change) (out admin.Change, err error) {
	var rec meta.Inode
	if ch.dir == 0 {
		if rec, err = r.db.Inode(ch.file); err == nil {
			out.Path, err = r.paths.of(ch.file)
		}
	} else if out.Path, err = r.paths.of(ch.dir); err == nil {
		out.Path = path.Join(out.Path, ch.name)
		rec, err = r.db.Lookup(ch.dir, ch.name, meta.Lease{})
		if errors.Is(err, meta.ErrNotFound) {
			taken, err := r.db.NameTaken(ch.dir, ch.name)
			if taken || err != nil {
				return admin.Change{}, err
			}
			out.What = "gone"
			return out, nil
		}
	}
	if errors.Is(err, meta.ErrNotFound) {
		return admin.Change{}, nil
	}
	out.What, out.Inode, out.Version, out.SizeBytes = kindWords[rec.Kind], uint64(rec.Ino), rec.Version, rec.Size
	if out.What == "" {
		out.What = "special"
	}
	return out, err
}
