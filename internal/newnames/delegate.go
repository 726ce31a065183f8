package newnames

import (
	"errors"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// noteMade notes that the log has made a name for this node, and asks for the directory if more are to be expected.
func (h *Holder) noteMade(op meta.Op, res meta.Result, err error) {
	create, ok := op.(*meta.Create)
	if !ok || err != nil || res.Errno != 0 || res.Existed {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now, dir := h.cfg.Now(), create.Parent
	last, before := h.made[dir]
	remember(h.made, dir, now)
	if !before || now.Sub(last) > askWithin {
		return
	}
	if at, recalled := h.recalled[dir]; recalled && now.Sub(at) < h.askAgain {
		return
	}
	h.askLocked(dir)
}

// remember notes a time of a directory. Any other is forgotten if there are too many.
func remember(m map[meta.Ino]time.Time, dir meta.Ino, at time.Time) {
	if len(m) >= rememberedMax {
		for old := range m {
			delete(m, old)
			break
		}
	}
	m[dir] = at
}

// askNumbersLocked asks for more inode numbers.
func (h *Holder) askNumbersLocked() { h.askLocked(0) }

// askLocked asks for the names of a directory, and for inode numbers. One question is under way at a time.
func (h *Holder) askLocked(dir meta.Ino) {
	if h.asking || h.ctx.Err() != nil {
		return
	}
	h.asking = true
	h.work.Go(func() {
		res, err := h.cfg.Log(h.ctx, &meta.DelegateNames{Dir: dir})
		h.mu.Lock()
		defer h.mu.Unlock()
		h.asking = false
		if err == nil && res.Errno == 0 {
			h.next, h.end = res.Ino, res.Ino+meta.NamesBlock
		}
	})
}

// isFreshLocked reports whether it is certain that an incarnation has not been fenced. A node that stood still is not
// fresh: another one may have made any name meanwhile.
func (h *Holder) isFreshLocked(lease meta.Lease) bool {
	age := h.cfg.Now().Sub(h.confirmed)
	if fresh := h.under == lease && age < freshFor; fresh && age < confirmAfter || h.inConfirm || h.ctx.Err() != nil {
		return fresh
	}
	h.inConfirm = true
	h.work.Go(func() {
		began := h.cfg.Now()
		err := h.cfg.Confirm(h.ctx, lease)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.inConfirm = false
		if err == nil {
			h.confirmed, h.under = began, lease
		}
	})
	return h.under == lease && age < freshFor
}

// Applied takes the effects of applied entries, in their order. It returns what they mean for pending files.
func (h *Holder) Applied(events []meta.Event) (more []meta.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range events {
		switch e := &events[i]; e.Kind {
		case meta.EventName:
			h.nameAppliedLocked(name{e.Ino, e.Name})
		case meta.EventNamesRecalled:
			remember(h.recalled, e.Ino, h.cfg.Now())
			if (meta.Lease{Node: e.Node, Incarnation: e.Incarnation}) == h.cfg.Self() {
				h.giveBackLocked(e.Ino)
			}
		case meta.EventFenced:
			more = append(more, h.fencedLocked(e.Node, e.Incarnation)...)
			h.tellLocked()
		case meta.EventNamesReturned:
			h.tellLocked()
		}
	}
	return more
}

// tellLocked wakes those who wait for a change of who holds what.
func (h *Holder) tellLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// nameAppliedLocked forgets a pending file that the log knows by now.
func (h *Holder) nameAppliedLocked(at name) {
	p := h.byName[at.dir][at.name]
	if p == nil {
		return
	}
	if _, err := h.cfg.State.Inode(p.rec.Ino); err == nil {
		h.dropLocked(p)
	}
}

// fencedLocked forgets what ended incarnations of this node have made: it has lost its name.
func (h *Holder) fencedLocked(node meta.NodeID, incarnation uint32) (more []meta.Event) {
	for _, p := range h.byIno {
		if l := p.rec.Reserved; l.Node == node && l.Incarnation <= incarnation {
			h.dropLocked(p)
			more = append(more, goneEvents(p)...)
		}
	}
	return more
}

// Restored is called when a snapshot has replaced the state.
func (h *Holder) Restored() {
	h.mu.Lock()
	var lost []meta.Event
	for ino, p := range h.byIno {
		if _, err := h.cfg.State.Inode(ino); err == nil {
			h.dropLocked(p)
			continue
		}
		if l, err := h.cfg.State.NamesHolder(p.at.dir); !errors.Is(err, nil) || l != p.rec.Reserved {
			h.dropLocked(p)
			lost = append(lost, goneEvents(p)...)
		}
	}
	h.tellLocked()
	h.mu.Unlock()
	if len(lost) > 0 {
		h.cfg.Changed(lost)
	}
}

// giveBackLocked returns the new names of a directory, in the background.
func (h *Holder) giveBackLocked(dir meta.Ino) {
	if h.returning[dir] || h.ctx.Err() != nil {
		return
	}
	h.returning[dir] = true
	lease := h.cfg.Self()
	h.work.Go(func() {
		for !h.giveBack(dir, lease) {
			pause := time.NewTimer(retryEvery)
			select {
			case <-pause.C:
			case <-h.ctx.Done():
				pause.Stop()
				return
			}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.returning, dir)
	})
}

// giveBack makes the log know what is pending in a directory, and returns its names. It reports whether that has ended:
// otherwise it is to be tried again.
func (h *Holder) giveBack(dir meta.Ino, lease meta.Lease) (over bool) {
	if h.cfg.Self() != lease {
		return true
	}
	if err := h.reserveAll(h.ctx, h.concerned(reach{dirs: []meta.Ino{dir}}), h.cfg.Log); err != nil {
		return false
	}
	_, err := h.cfg.Log(h.ctx, &meta.ReturnNames{Dir: dir})
	return err == nil
}
