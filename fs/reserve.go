package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// reservations are the names of files that have no version yet. They belong to this node until the first publish, or
// until a fence frees them: then they are reserved again.
type reservations struct {
	names *namespace
	nodes *nodeTable
	cache *kernelCache
	life  *lifetime
	log   *slog.Logger

	reserving reserving
	lost      lostNames
	siblings  *Siblings
	renew     func(*live) // begins to reserve a name again; called with nodeTable.mu
}

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
// reserved under has ended, or this node gave it back, and no program had removed it before.
func (rs *reservations) fenced(l *live) bool {
	if !l.wasReserved() {
		return false
	}
	l.mu.Lock()
	lease, unlinked := l.lease, l.unlinked
	l.mu.Unlock()
	return !unlinked && (rs.siblings.given.has(l.node.ino()) || rs.names.leaseEnded(lease))
}

// givenMax bounds the inodes whose names were given back that are remembered.
const givenMax = 1024

// givenBack lists inodes whose reserved names this node gives back, or has given back lately: an open may have reached
// one of them just before. Its file has lost its name as by a fence.
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

// nameRemoved handles that the inode of a reserved name is gone. If a fence did it the name is reserved again at
// once. nodeTable.mu is held.
func (rs *reservations) nameRemoved(l *live) {
	switch ino := l.node.ino(); {
	case l.users.ended || !l.wasReserved():
	case !rs.fenced(l):
		l.mu.Lock()
		l.unlinked = true
		l.mu.Unlock()
	case !rs.names.own.has(ownKey{ino: ino}):
		rs.lost.add(l)
		rs.renew(l)
	}
}

// lostWait is how long a lookup waits for a name that a fence has freed to be reserved again. Tests change it, before
// they mount.
var lostWait = 10 * time.Second

// lostNames are the names that a fence has freed, of files that are open here, until they are reserved again. A program
// that uses such a name meanwhile waits for it: its file has a name, as far as it can know.
type lostNames struct {
	mu    sync.Mutex
	names map[ownKey]*live
}

func (ln *lostNames) add(l *live) {
	l.mu.Lock()
	at := ownKey{ino: l.parent, name: l.name}
	l.mu.Unlock()
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.names == nil {
		ln.names = map[ownKey]*live{}
	}
	ln.names[at] = l
}

// at is the file that has lost a name; nil: none.
func (ln *lostNames) at(k ownKey) *live {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.names[k]
}

// forget is called when a file has a name again, or will have none.
func (ln *lostNames) forget(l *live) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	for k, of := range ln.names {
		if of == l {
			delete(ln.names, k)
		}
	}
}

// awaitLost waits until a name that a fence has freed is reserved again, for a bounded time. It reports whether there
// is such a name.
func (rs *reservations) awaitLost(k ownKey) bool {
	l := rs.lost.at(k)
	if l == nil {
		return false
	}
	l.mu.Lock()
	r := l.rounds.last()
	l.mu.Unlock()
	if r == nil {
		return true
	}
	end := time.NewTimer(lostWait)
	defer end.Stop()
	select {
	case <-r.done:
	case <-end.C:
	case <-rs.life.ctx.Done():
	}
	return true
}

// reserveAgain makes sure that a file without a version has a name to be published under. It reserves the name again if
// a fence freed it. An error says that there is none, most often that somebody else has the name now: then both files
// are kept.
func (rs *reservations) reserveAgain(ctx context.Context, l *live) error {
	if !l.wasReserved() {
		return nil
	}
	lost, err := rs.lostName(ctx, l)
	if err != nil || !lost {
		return err
	}
	rs.nodes.mu.Lock()
	last := l.node.last
	rs.nodes.mu.Unlock()
	l.mu.Lock()
	op := &meta.Create{
		Parent: l.parent, Name: l.name, Kind: meta.KindFile, Mode: last.Mode, Cred: meta.Cred{UID: last.UID, GID: last.GID},
		Excl: true, Btime: last.Btime,
	}
	l.mu.Unlock()
	defer rs.reserving.begin(ownKey{ino: op.Parent, name: op.Name})()
	res, err := rs.names.proposePatient(ctx, op)
	if err == nil && res.Errno != 0 {
		err = res.Errno
	}
	if err != nil {
		rs.giveBackLate(err)
		return rs.nameless(l, err)
	}
	defer rs.lost.forget(l)
	rs.nodes.rename(l.node, res.Inode)
	l.mu.Lock()
	l.linked, l.lease = res.Inode, res.Inode.Reserved
	l.mu.Unlock()
	rs.removedMeanwhile(l)
	rs.describeLinked(l)
	rs.cache.dropAttrSoon(l.node.id) // it has another number now
	rs.log.Info("a fence freed a reserved name; it is reserved again", "inode", uint64(res.Ino), "name", op.Name)
	return nil
}

// removedMeanwhile handles that a file which has just got its node was removed before.
func (rs *reservations) removedMeanwhile(l *live) {
	rs.nodes.mu.Lock()
	defer rs.nodes.mu.Unlock()
	here, gone := rs.reserving.wasRemoved(l.node.ino())
	if !gone {
		return
	}
	l.node.gone, l.node.removed = true, l.node.removed || here
	l.node.last.Nlink = 0
	rs.nameRemoved(l)
}

// reserving lists the names that are being reserved again. A lookup that finds such a name waits until it leads to the
// node that has the file open.
type reserving struct {
	mu    sync.Mutex
	names map[ownKey]chan struct{} // closed at the end
	gone  map[meta.Ino]bool        // inodes that were removed meanwhile and that no node has; true: through this mount
}

// removed notes that an inode is gone which no node has: it may be one whose answer is on its way. nodeTable.mu is
// held.
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
func (rs *reservations) lostName(ctx context.Context, l *live) (bool, error) {
	ino := l.node.ino()
	rec, err := rs.names.state().Inode(ino)
	switch {
	case err == nil && (rec.Reserved == meta.Lease{} || rec.Reserved == rs.names.cluster.Self()):
		return false, nil
	case err != nil && !errors.Is(err, meta.ErrNotFound):
		return false, err
	}
	if !rs.fenced(l) {
		return false, nil
	}
	if err := rs.awaitRemoval(ctx, ino); err != nil {
		return false, err
	}
	return !rs.nodes.isRemoved(l.node), nil
}

// awaitRemoval waits until no operation of this mount on an inode is under way: if one of them removed it, that is
// noted then.
func (rs *reservations) awaitRemoval(ctx context.Context, ino meta.Ino) error {
	tick := time.NewTicker(removalPoll)
	defer tick.Stop()
	for rs.names.own.has(ownKey{ino: ino}) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// nameless notes that the bytes of a file have no name to be published under: they are kept.
func (rs *reservations) nameless(l *live, err error) error {
	why := fmt.Sprintf("the name was freed while this node was cut off or stood still, and can't be reserved again: %v",
		err)
	if errors.Is(err, syscall.EEXIST) {
		why = "the name was freed while this node was cut off or stood still, and was given to another file"
	}
	l.mu.Lock()
	l.kept = why
	name := l.name
	l.mu.Unlock()
	if errors.Is(err, syscall.EEXIST) {
		rs.lost.forget(l)
	}
	rs.log.Warn("a new file has no name", "inode", uint64(l.node.ino()), "name", name, "err", err)
	return fmt.Errorf("fs: reserve %s again: %w", name, err)
}

// giveBack frees the reserved name of a file that got no version: the one that it has by then, since programs may
// rename it meanwhile. Another open of the file keeps it; last is the live file that does not count.
func (rs *reservations) giveBack(ino meta.Ino, last *live) {
	for tried := (meta.Inode{}); !rs.siblings.uses(ino, last); {
		rec, err := rs.names.state().Inode(ino)
		if err != nil || rec.Version != 0 || rec.Parent == tried.Parent && rec.Name == tried.Name {
			return
		}
		tried = rec
		rs.siblings.given.add(ino)
		res, err := rs.names.propose(rs.life.late, &meta.Unlink{Parent: rec.Parent, Name: rec.Name, Ino: ino, GiveBack: true})
		rs.names.outcome("give back "+rec.Name, ino, res, err)
		if err != nil {
			return
		}
	}
}

// giveBackLate frees a name whose reservation turns out to have been made after its caller got the answer that the
// outcome is unknown. giveBack keeps a name that was opened meanwhile.
func (rs *reservations) giveBackLate(err error) {
	var unknown *UnknownError
	if !errors.As(err, &unknown) {
		return
	}
	rs.life.work.Go(func() {
		select {
		case res, ok := <-unknown.Outcome:
			if ok && res.Errno == 0 && !res.Fenced && !res.Existed {
				rs.giveBack(res.Ino, nil)
			}
		case <-rs.life.ctx.Done():
		}
	})
}

// reserve proposes a new file. When the caller is killed meanwhile, the name is given back as soon as the log has it.
func (rs *reservations) reserve(ctx context.Context, op meta.Op) (meta.Result, error) {
	type answer struct {
		res meta.Result
		err error
	}
	got := make(chan answer)
	rs.life.work.Go(func() {
		res, err := rs.names.propose(rs.life.ctx, op)
		rs.giveBackLate(err)
		select {
		case got <- answer{res, err}:
			return
		case <-ctx.Done():
		}
		if err == nil && res.Errno == 0 && !res.Existed {
			rs.giveBack(res.Ino, nil)
		}
	})
	select {
	case a := <-got:
		return a.res, a.err
	case <-ctx.Done():
		return meta.Result{}, fmt.Errorf("fs: the caller was killed: %w", ctx.Err())
	}
}

// unreserve takes back the name of a file that got no version.
func (rs *reservations) unreserve(l *live) {
	if l.name == "" {
		return
	}
	ino := l.node.ino()
	if rec, err := rs.names.state().Inode(ino); err != nil || rec.Version != 0 {
		return
	}
	rs.life.work.Go(func() { rs.giveBack(ino, l) })
}

// unreserveLate is unreserve for a file whose last publish may still happen: its name goes when that was refused.
func (rs *reservations) unreserveLate(l *live) {
	l.mu.Lock()
	outcome := l.outcome
	l.mu.Unlock()
	if outcome == nil {
		return // nobody will know; the next fence frees it
	}
	rs.life.work.Go(func() {
		select {
		case res, ok := <-outcome:
			if ok && res.Errno != 0 {
				rs.unreserve(l)
			}
		case <-rs.life.ctx.Done():
		}
	})
}

func (rs *reservations) lookup(dir meta.Ino, name string) (meta.Inode, error) {
	if name == ".." {
		rec, err := rs.names.state().Inode(dir)
		if err != nil || rec.Parent == 0 {
			return rec, err
		}
		return rs.names.state().Inode(rec.Parent)
	}
	rec, err := rs.names.state().Lookup(dir, name, rs.names.cluster.Self())
	if err == nil && rec.Kind == meta.KindFile && rec.Version == 0 &&
		rs.reserving.wait(rs.life.ctx, ownKey{ino: dir, name: name}) {
		return rs.names.state().Lookup(dir, name, rs.names.cluster.Self())
	}
	if errors.Is(err, meta.ErrNotFound) && rs.awaitLost(ownKey{ino: dir, name: name}) {
		return rs.names.state().Lookup(dir, name, rs.names.cluster.Self())
	}
	return rec, err
}

// markRemoved notes that the last name of an inode was removed through this mount: what is staged of it is not
// published any more.
func (rs *reservations) markRemoved(ino meta.Ino) {
	if ino == 0 {
		return
	}
	rs.nodes.mu.Lock()
	defer rs.nodes.mu.Unlock()
	if n := rs.nodes.current[ino]; n != nil {
		n.removed = true
		n.last.Nlink = 0
	} else {
		rs.reserving.removed(ino, true)
	}
}
