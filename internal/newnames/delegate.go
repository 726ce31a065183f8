package newnames

import (
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

// askLocked asks for the names of a directory, and for inode numbers if they are low. One question is under way at a
// time.
func (h *Holder) askLocked(dir meta.Ino) {
	if h.asking || h.ctx.Err() != nil {
		return
	}
	h.asking = true
	low := h.numbers.low()
	h.work.Go(func() {
		res, err := h.cfg.Log(h.ctx, &meta.DelegateNames{Dir: dir, Numbers: low})
		h.mu.Lock()
		defer h.mu.Unlock()
		h.asking = false
		if err == nil && res.Errno == 0 && low {
			h.numbers.more = res.Ino
		}
	})
}

// trustedLocked reports whether it is certain that an incarnation has not been fenced. A node that stood still is not
// trusted: another one may have made any name meanwhile.
func (h *Holder) trustedLocked(lease meta.Lease) bool {
	now, awake := h.cfg.Now(), h.cfg.Awake()
	age := max(now.Sub(h.trust.began), awake-h.trust.awake)
	trusted := h.trust.lease == lease && age < freshFor
	if trusted && age < confirmAfter || h.trust.under || h.ctx.Err() != nil {
		return trusted
	}
	h.trust.under = true
	h.work.Go(func() {
		err := h.cfg.Confirm(h.ctx, lease)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.trust.under = false
		if err == nil {
			h.trust = trust{lease: lease, began: now, awake: awake}
		}
	})
	return trusted
}

// Applied takes the effects of applied entries, in their order. It returns what they mean for pending files.
func (h *Holder) Applied(events []meta.Event) (more []meta.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range events {
		switch e := &events[i]; e.Kind {
		case meta.EventName:
			h.nameAppliedLocked(name{e.Ino, e.Name})
		case meta.EventPublished:
			h.knownLocked(e.Ino)
		case meta.EventRemoved:
			h.knownLocked(e.Ino) // made and removed by entries that were applied together
			more = append(more, h.lostLocked(e.Ino)...)
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

// knownLocked forgets a pending file of which the log has heard.
func (h *Holder) knownLocked(ino meta.Ino) {
	if p := h.byIno[ino]; p != nil {
		h.dropLocked(p)
	}
}

// lostLocked forgets what is pending in a directory that is gone: it has lost its name.
func (h *Holder) lostLocked(dir meta.Ino) (more []meta.Event) {
	for _, p := range h.byName[dir] {
		h.dropLocked(p)
		more = append(more, p.gone(true)...)
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
			more = append(more, p.gone(true)...)
		}
	}
	return more
}

// Restored is called when a snapshot has replaced the state. What it has, or had in between, is not pending.
func (h *Holder) Restored() {
	h.mu.Lock()
	var lost []meta.Event
	for ino, p := range h.byIno {
		if _, err := h.cfg.State.Inode(ino); err == nil {
			h.dropLocked(p)
			continue
		}
		decided := false
		if !p.session.IsZero() {
			decided, _ = h.cfg.State.Decided(p.session)
		}
		l, err := h.cfg.State.NamesHolder(p.at.dir)
		switch {
		case decided && err == nil && l == p.rec.Reserved: // published and removed, or an attempt that was given up
			h.dropLocked(p)
			lost = append(lost, p.gone(false)...)
		case err != nil || l != p.rec.Reserved:
			h.dropLocked(p)
			lost = append(lost, p.gone(true)...)
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

// giveBack makes the log know what is pending in a directory, and returns its names. Directories in which this node
// has made nothing for a while go with it: the node that asks may be about to work through the tree. It reports whether
// that has ended: otherwise it is to be tried again.
func (h *Holder) giveBack(dir meta.Ino, lease meta.Lease) (over bool) {
	if h.cfg.Self() != lease {
		return true
	}
	err := h.reserveAll(h.ctx, h.concerned(reach{dirs: []meta.Ino{dir}}), h.cfg.Log, recallForPublish)
	if err != nil {
		return false
	}
	idle, free := h.idle(lease, dir)
	defer free()
	_, err = h.cfg.Log(h.ctx, &meta.ReturnNames{Dirs: append([]meta.Ino{dir}, idle...)})
	return err == nil
}

// idle lists directories of this node in which nothing is pending and nothing was made for a while. No pending file is
// made there until free is called.
func (h *Holder) idle(lease meta.Lease, but meta.Ino) (list []meta.Ino, free func()) {
	held, err := h.cfg.State.NamesHeld(lease, 0, meta.ReturnMax-1)
	if err != nil {
		return nil, func() {}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.cfg.Now()
	for _, dir := range held {
		at, made := h.made[dir]
		if dir == but || h.returning[dir] || len(h.byName[dir]) > 0 || made && now.Sub(at) < heldIdle {
			continue
		}
		h.returning[dir] = true
		list = append(list, dir)
	}
	return list, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, dir := range list {
			delete(h.returning, dir)
		}
	}
}
