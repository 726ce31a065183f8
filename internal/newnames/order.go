package newnames

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// ErrHeld says that another node did not return the new names of a directory in time.
var ErrHeld = errors.New("newnames: another node gives the names of this directory, and does not return them")

// reach is what an operation concerns.
type reach struct {
	names []name     // that it may make or remove
	dirs  []meta.Ino // directories that it may remove
	inos  []meta.Ino // that it is about
}

// reachOf says what an operation concerns that the log is to decide.
func (h *Holder) reachOf(op meta.Op) (r reach) {
	switch op := op.(type) {
	case *meta.Create:
		r.names = []name{{op.Parent, op.Name}}
	case *meta.Link:
		r.names, r.inos = []name{{op.Parent, op.Name}}, []meta.Ino{op.Ino}
	case *meta.Unlink:
		r.names = []name{{op.Parent, op.Name}}
	case *meta.Rmdir:
		r.names = []name{{op.Parent, op.Name}}
		r.dirs = h.dirAt(r.dirs, op.Parent, op.Name)
	case *meta.Rename:
		r.names = []name{{op.OldParent, op.OldName}, {op.NewParent, op.NewName}}
		r.dirs = h.dirAt(r.dirs, op.NewParent, op.NewName)
	case *meta.Publish:
		if op.LinkName != "" {
			r.names = []name{{op.LinkParent, op.LinkName}}
		}
	case *meta.Restore:
		if op.Name != "" {
			r.names = []name{{op.Parent, op.Name}}
		}
	case *meta.Undelete:
		if !op.Drop {
			r.names = []name{{op.Parent, op.Name}}
		}
	case *meta.SetAttr:
		r.inos = []meta.Ino{op.Ino}
	case *meta.SetPolicy:
		r.inos = []meta.Ino{op.Dir}
	case *meta.LockFile:
		r.inos = []meta.Ino{op.Ino}
	}
	return r
}

// dirAt adds the directory that a name leads to.
func (h *Holder) dirAt(list []meta.Ino, dir meta.Ino, name string) []meta.Ino {
	rec, err := h.cfg.State.Lookup(dir, name, h.cfg.Self())
	if err != nil || rec.Kind != meta.KindDir {
		return list
	}
	return append(list, rec.Ino)
}

// order has the log decide. What is pending and concerned is reserved before, and no pending file is made in its way.
// If another node gives the names there, it is asked to return them.
func (h *Holder) order(ctx context.Context, op meta.Op, log Log) (meta.Result, error) {
	bound := recallFor
	switch op.(type) {
	case *meta.Publish, *meta.SetAttr:
		bound = recallForPublish
	}
	for began := time.Now(); ; {
		r := h.reachOf(op) // what a name leads to may change
		res, err := h.orderOnce(ctx, op, r, log, bound)
		if err != nil || res.Errno != syscall.EREMOTE {
			h.noteMade(op, res, err)
			return res, err
		}
		if time.Since(began) > bound {
			return res, ErrHeld
		}
		if err := h.awaitReturn(ctx, r, log); err != nil {
			return res, err
		}
	}
}

func (h *Holder) orderOnce(
	ctx context.Context, op meta.Op, r reach, log Log, bound time.Duration,
) (meta.Result, error) {
	defer h.enter(r)()
	if err := h.reserveAll(ctx, h.concerned(r), log, bound); err != nil {
		return meta.Result{}, err
	}
	return log(ctx, op)
}

// enter keeps pending files from being made in the way of an operation, until the returned function is called.
func (h *Holder) enter(r reach) (leave func()) {
	add := func(by int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, at := range r.names {
			if h.busy[at] += by; h.busy[at] == 0 {
				delete(h.busy, at)
			}
		}
		for _, dir := range r.dirs {
			if h.busyDirs[dir] += by; h.busyDirs[dir] == 0 {
				delete(h.busyDirs, dir)
			}
		}
	}
	add(1)
	return func() { add(-1) }
}

// concerned lists the pending files that an operation concerns.
func (h *Holder) concerned(r reach) (list []*pending) {
	if h.count.Load() == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range r.names {
		if p := h.byName[at.dir][at.name]; p != nil {
			list = append(list, p)
		}
	}
	for _, ino := range r.inos {
		if p := h.byIno[ino]; p != nil {
			list = append(list, p)
		}
	}
	for _, dir := range r.dirs {
		for _, p := range h.byName[dir] {
			list = append(list, p)
		}
	}
	return list
}

// reserveAll makes the log know pending files, several at a time.
func (h *Holder) reserveAll(ctx context.Context, list []*pending, log Log, bound time.Duration) (err error) {
	if len(list) == 1 {
		return h.reserve(ctx, list[0], log, bound)
	}
	errs := make(chan error)
	places := make(chan struct{}, reservesMax)
	for _, p := range list {
		go func() {
			places <- struct{}{}
			err := h.reserve(ctx, p, log, bound)
			<-places
			errs <- err
		}()
	}
	for range list {
		err = errors.Join(err, <-errs)
	}
	return err
}

// reserve makes the log know a pending file. If the log refuses, the file has lost its name. It waits for what is under
// way of the file as long as bound says: who changes a name has the directory locked, and its readers wait too.
func (h *Holder) reserve(ctx context.Context, p *pending, log Log, bound time.Duration) error {
	wait, stop := context.WithTimeout(ctx, bound)
	defer stop()
	if err := h.cfg.Settle(wait); err != nil { // a publish of it may have an outcome that is not known
		return aside{err}
	}
	for {
		h.mu.Lock()
		if h.byIno[p.rec.Ino] != p {
			h.mu.Unlock()
			return nil
		}
		if p.publishing == 0 && !p.reserving {
			p.reserving = true
			p.beginLocked()
			h.mu.Unlock()
			break
		}
		idle := p.idle
		h.mu.Unlock()
		select {
		case <-idle:
		case <-wait.Done():
			return aside{wait.Err()}
		}
	}
	res, err := log(ctx, &meta.Reserve{Incarnation: p.rec.Reserved.Incarnation, Parent: p.at.dir, Name: p.at.name,
		Ino: p.rec.Ino, Made: *p.made(), Btime: p.rec.Btime})
	h.mu.Lock()
	p.reserving = false
	p.endLocked()
	lost := err == nil && res.Errno != 0 && h.byIno[p.rec.Ino] == p
	if err == nil {
		h.dropLocked(p)
	}
	h.mu.Unlock()
	if lost {
		h.cfg.Logger.Warn("a new file lost its name", "inode", uint64(p.rec.Ino), "name", p.at.name, "err", res.Errno)
		h.cfg.Changed(p.gone(true))
	}
	if err != nil {
		return aside{fmt.Errorf("newnames: reserve %s: %w", p.at.name, err)}
	}
	return nil
}

// aside is why an operation was not proposed: another one that goes before it failed. It is what that error is
// (errors.Is), but leads to no outcome of it (errors.As).
type aside struct{ err error }

func (e aside) Error() string        { return e.err.Error() }
func (e aside) Is(target error) bool { return errors.Is(e.err, target) }

// awaitReturn asks the holder of a directory that an operation concerns to return it, and waits for a change of who
// holds what, or for a while.
func (h *Holder) awaitReturn(ctx context.Context, r reach, log Log) error {
	dirs := r.dirs
	for _, at := range r.names {
		dirs = append(dirs, at.dir)
	}
	h.mu.Lock()
	changed := h.changed
	h.mu.Unlock()
	dir, err := h.heldByOther(dirs)
	if err != nil {
		return err
	}
	wait := recallEvery
	if dir == 0 {
		wait = recallEvery / 50 // it has just been returned, or another directory has taken the name's place
	} else if h.mayRecall(dir) {
		if _, err := log(ctx, &meta.RecallNames{Dir: dir}); err != nil {
			return aside{err}
		}
	}
	pause := time.NewTimer(wait)
	defer pause.Stop()
	select {
	case <-changed:
	case <-pause.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// mayRecall reports whether a recall is due. Callers that wait for one directory share it.
func (h *Holder) mayRecall(dir meta.Ino) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.cfg.Now()
	if at, ok := h.asked[dir]; ok && now.Sub(at) < recallEvery {
		return false
	}
	remember(h.asked, dir, now)
	return true
}

// heldByOther is the first of the directories whose names another node gives; 0: none.
func (h *Holder) heldByOther(dirs []meta.Ino) (meta.Ino, error) {
	self := h.cfg.Self()
	for _, dir := range dirs {
		l, err := h.cfg.State.NamesHolder(dir)
		if err != nil {
			return 0, err
		}
		if l != (meta.Lease{}) && l != self {
			return dir, nil
		}
	}
	return 0, nil
}
