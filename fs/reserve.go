package fs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// errNameless says that a new file lost its reserved name before it was published, and that no program removed it:
// the cluster took this node for dead and freed what it had reserved.
var errNameless = errors.New("fs: the reserved name was freed by a fence")

// removalPoll is how often a removal by this mount is looked at until it has ended.
const removalPoll = 10 * time.Millisecond

// wasReserved reports whether a live file has a reserved name, or had one until a fence, and no version.
func (l *live) wasReserved() bool {
	if !l.isReady() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reserved && l.tmp == nil && l.name != ""
}

// fenced reports whether a fence has freed the reserved name of a file, if the name is gone: the lease that it was
// reserved under has ended, or this mount gave it back, and no program had removed it before.
func (f *fileSystem) fenced(l *live) bool {
	if !l.wasReserved() {
		return false
	}
	l.mu.Lock()
	lease, unlinked := l.lease, l.unlinked
	l.mu.Unlock()
	return !unlinked && (f.given.has(l.node.ino()) || f.leaseEnded(lease))
}

// givenMax bounds the inodes whose names were given back that are remembered.
const givenMax = 1024

// givenBack lists inodes whose reserved names this mount gives back, or has given back lately: an open may have come
// to one just before. Its file has lost its name as by a fence.
type givenBack struct {
	mu   sync.Mutex
	inos map[meta.Ino]struct{}
}

// add notes an inode before its name goes; room is made by forgetting any other.
func (g *givenBack) add(ino meta.Ino) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inos == nil {
		g.inos = map[meta.Ino]struct{}{}
	}
	for old := range g.inos {
		if len(g.inos) < givenMax {
			break
		}
		delete(g.inos, old)
	}
	g.inos[ino] = struct{}{}
}

func (g *givenBack) has(ino meta.Ino) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.inos[ino]
	return ok
}

// leaseEnded reports whether an incarnation of this node has ended.
func (f *fileSystem) leaseEnded(lease meta.Lease) bool {
	if f.cluster.Self() != lease {
		return true
	}
	rec, err := f.names().Node(lease.Node)
	return err != nil || rec.State != meta.NodeUp || rec.Incarnation != lease.Incarnation
}

// nameRemoved handles that the inode of a reserved name is gone. If a fence did it the name is reserved again at
// once. table.mu is held.
func (f *fileSystem) nameRemoved(l *live) {
	switch ino := l.node.ino(); {
	case l.ended || !l.wasReserved():
	case !f.fenced(l):
		l.mu.Lock()
		l.unlinked = true
		l.mu.Unlock()
	case !f.own.has(ownKey{ino: ino}):
		f.roundLocked(l, true)
	}
}

// reserveAgain sees to it that a file without a version has a name to be published under. It reserves the name again
// if a fence freed it. An error says that there is none, most often that somebody else has the name now: then both
// files are kept.
func (f *fileSystem) reserveAgain(ctx context.Context, l *live) error {
	if !l.wasReserved() {
		return nil
	}
	lost, err := f.lostName(ctx, l)
	if err != nil || !lost {
		return err
	}
	f.nodes.mu.Lock()
	last := l.node.last
	f.nodes.mu.Unlock()
	l.mu.Lock()
	op := &meta.Create{
		Parent: l.parent, Name: l.name, Kind: meta.KindFile, Mode: last.Mode, Cred: meta.Cred{UID: last.UID, GID: last.GID}, Excl: true,
	}
	l.mu.Unlock()
	defer f.reserving.begin(ownKey{ino: op.Parent, name: op.Name})()
	res, err := f.proposePatient(ctx, op)
	if err == nil && res.Errno != 0 {
		err = res.Errno
	}
	if err != nil {
		f.giveBackLate(err)
		return f.nameless(l, err)
	}
	f.nodes.rename(l.node, res.Inode)
	l.mu.Lock()
	l.linked, l.lease = res.Inode, res.Inode.Reserved
	l.mu.Unlock()
	f.removedMeanwhile(l)
	f.describeLinked(l)
	f.notifier.attr(l.node.id) // it has another number now
	f.log.Info("a fence freed a reserved name; it is reserved again", "inode", uint64(res.Ino), "name", op.Name)
	return nil
}

// removedMeanwhile handles that a file which has just got its node was removed before.
func (f *fileSystem) removedMeanwhile(l *live) {
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	here, gone := f.reserving.wasRemoved(l.node.ino())
	if !gone {
		return
	}
	l.node.gone, l.node.removed = true, l.node.removed || here
	l.node.last.Nlink = 0
	f.nameRemoved(l)
}

// reserving lists the names that are being reserved again. Who finds such a name waits until it leads to the node
// that has the file open.
type reserving struct {
	mu    sync.Mutex
	names map[ownKey]chan struct{} // closed at the end
	gone  map[meta.Ino]bool        // inodes that were removed meanwhile and that no node has; true: through this mount
}

// removed notes that an inode is gone which no node has: it may be one whose answer is on its way. table.mu is held.
func (r *reserving) removed(ino meta.Ino, here bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.names) == 0 {
		return
	}
	if r.gone == nil {
		r.gone = map[meta.Ino]bool{}
	}
	r.gone[ino] = r.gone[ino] || here
}

// wasRemoved reports what removed has noted.
func (r *reserving) wasRemoved(ino meta.Ino) (here, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	here, gone = r.gone[ino]
	return here, gone
}

// begin lists a name until the returned function is called.
func (r *reserving) begin(k ownKey) (end func()) {
	over := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names == nil {
		r.names = map[ownKey]chan struct{}{}
	}
	r.names[k] = over
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.names, k)
		if len(r.names) == 0 {
			r.gone = nil
		}
		close(over)
	}
}

// wait waits until a name is not listed, and reports whether it was.
func (r *reserving) wait(ctx context.Context, k ownKey) bool {
	r.mu.Lock()
	over := r.names[k]
	r.mu.Unlock()
	if over == nil {
		return false
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
	return true
}

// lostName reports whether the reserved name of a file is gone and no program removed it.
func (f *fileSystem) lostName(ctx context.Context, l *live) (bool, error) {
	ino := l.node.ino()
	rec, err := f.names().Inode(ino)
	switch {
	case err == nil && (rec.Reserved == meta.Lease{} || rec.Reserved == f.cluster.Self()):
		return false, nil
	case err != nil && !errors.Is(err, meta.ErrNotFound):
		return false, err
	}
	if !f.fenced(l) {
		return false, nil
	}
	if err := f.awaitRemoval(ctx, ino); err != nil {
		return false, err
	}
	return !f.isRemoved(l.node), nil
}

// awaitRemoval waits until no operation of this mount on an inode is under way: one that removed it is noted then.
func (f *fileSystem) awaitRemoval(ctx context.Context, ino meta.Ino) error {
	tick := time.NewTicker(removalPoll)
	defer tick.Stop()
	for f.own.has(ownKey{ino: ino}) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// nameless notes that the bytes of a file have no name to be published under: they are kept.
func (f *fileSystem) nameless(l *live, err error) error {
	why := fmt.Sprintf("the name was freed while this node was cut off or stood still, and can't be reserved again: %v", err)
	if errors.Is(err, syscall.EEXIST) {
		why = "the name was freed while this node was cut off or stood still, and was given to another file"
	}
	l.mu.Lock()
	l.kept = why
	name := l.name
	l.mu.Unlock()
	f.log.Warn("a new file has no name", "inode", uint64(l.node.ino()), "name", name, "err", err)
	return fmt.Errorf("fs: reserve %s again: %w", name, err)
}

// giveBack frees a reserved name that got no version. Another open of the file keeps it; last is the live file that
// does not count.
func (f *fileSystem) giveBack(parent meta.Ino, name string, ino meta.Ino, last *live) {
	f.nodes.mu.Lock()
	n := f.nodes.current[ino]
	used := n != nil && n.live != nil && n.live != last && !n.live.ended
	f.nodes.mu.Unlock()
	if used {
		return
	}
	f.given.add(ino)
	res, err := f.propose(f.late, &meta.Unlink{Parent: parent, Name: name, Ino: ino, GiveBack: true})
	f.outcome("give back "+name, ino, res, err)
}

// giveBackLate frees a name whose reservation turns out to have been made after its caller was told that this is
// unknown. giveBack keeps one that was opened meanwhile.
func (f *fileSystem) giveBackLate(err error) {
	var unknown *UnknownError
	if !errors.As(err, &unknown) {
		return
	}
	f.work.Go(func() {
		select {
		case res, ok := <-unknown.Outcome:
			if ok && res.Errno == 0 && !res.Fenced && !res.Existed {
				f.giveBack(res.Inode.Parent, res.Inode.Name, res.Ino, nil)
			}
		case <-f.ctx.Done():
		}
	})
}

// reserve proposes a new file. When the caller is killed meanwhile, the name is given back as soon as the log has it.
func (f *fileSystem) reserve(ctx context.Context, op meta.Op) (meta.Result, error) {
	type answer struct {
		res meta.Result
		err error
	}
	got := make(chan answer)
	f.work.Go(func() {
		res, err := f.propose(f.ctx, op)
		f.giveBackLate(err)
		select {
		case got <- answer{res, err}:
			return
		case <-ctx.Done():
		}
		if err == nil && res.Errno == 0 && !res.Existed {
			f.giveBack(res.Inode.Parent, res.Inode.Name, res.Ino, nil)
		}
	})
	select {
	case a := <-got:
		return a.res, a.err
	case <-ctx.Done():
		return meta.Result{}, fmt.Errorf("fs: the caller was killed: %w", ctx.Err())
	}
}
