package content

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// entry is what is known of a content without reading its sidecar. Guarded by index.mu.
type entry struct {
	base    ID
	state   State
	dead    bool          // to be removed once nothing needs it
	damaged bool          // a read or scrub found it so, or its sidecar is unreadable
	checked bool          // all of it was checked since the store was opened
	mark    mark          // of its data file then; see compareMark
	looked  bool          // its files were found there, with their lengths, since then
	rot     uint32        // how often it was found damaged since then
	busy    bool          // a Receiving, a decision or a removal owns its files
	folding bool          // another form of it is being written
	idle    chan struct{} // closed when a claim, which is short, ends; nil if there is none
	pins    int32
	deps    int32 // contents that have it as base
}

// index is what is stored, and who needs it: entries are pinned by readers, claimed by decisions, needed by deltas and
// by staged bytes over them. A dead entry goes, with its files, when nobody needs it. The index also counts the users
// of the store.
type index struct {
	files *storeFiles
	log   *slog.Logger

	mu      sync.Mutex
	all     map[ID]*entry
	bases   map[uint64]ID // of staged overlays, open or not, by their tokens
	closed  bool
	open    int           // receivings, readers, stagings and running operations
	drained chan struct{} // closed when open gets 0 after close
	found   chan struct{} // has one value if a content was found damaged since it was read
}

func newIndex(files *storeFiles, log *slog.Logger) *index {
	return &index{
		files: files, log: log, all: make(map[ID]*entry), bases: make(map[uint64]ID), drained: make(chan struct{}),
		found: make(chan struct{}, 1),
	}
}

// entry is the entry of a content, which something keeps, or nil.
func (ix *index) entry(id ID) *entry {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return ix.all[id]
}

// form is how the content of an entry lies on the disk now.
func (ix *index) form(e *entry) form {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return form{e.state, e.base}
}

// list gives the ids of the live contents that are wanted, in no order.
func (ix *index) list(wanted func(*entry) bool) []ID {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	var ids []ID
	for id, e := range ix.all {
		if !e.dead && wanted(e) {
			ids = append(ids, id)
		}
	}
	return ids
}

// state returns how far a live content is.
func (ix *index) state(id ID) (state State, ok bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	if e == nil || e.dead {
		return 0, false
	}
	return e.state, true
}

// info is what is known of a live content without its sidecar.
func (ix *index) info(id ID) (info Info, ok bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	if e == nil || e.dead {
		return Info{}, false
	}
	return Info{ID: id, State: e.state, Base: e.base, Damaged: e.damaged, Checked: e.checked, Depth: ix.depthLocked(id)},
		true
}

// stored finds a content that is whole as far as is known, including dead ones if asked to. looked says that its files
// were found there.
func (ix *index) stored(id ID, orDead bool) (f form, looked, ok bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	if e == nil || e.state == Partial || e.damaged || e.dead && !orDead {
		return form{}, false, false
	}
	return form{e.state, e.base}, e.checked || e.looked, true
}

// findIdleLocked finds a live content in one of the states once no claim is on it; it gives the lock up while
// it waits. A claim lasts as long as some file operations.
func (ix *index) findIdleLocked(id ID, states ...State) (*entry, error) {
	for {
		e, err := ix.findLocked(id, states...)
		if !errors.Is(err, ErrBusy) {
			return e, err
		}
		idle := ix.all[id].idle
		if idle == nil {
			return nil, err // a Receiving has it: that may take long
		}
		ix.mu.Unlock()
		<-idle
		ix.mu.Lock()
	}
}

// findLocked finds a live content in one of the states.
func (ix *index) findLocked(id ID, states ...State) (*entry, error) {
	e := ix.all[id]
	if e == nil {
		return nil, fmt.Errorf("content: %s: %w", id, ErrNotFound)
	}
	for _, state := range states {
		if e.state == state && !e.dead {
			if e.busy {
				return nil, fmt.Errorf("content: %s: %w", id, ErrBusy)
			}
			return e, nil
		}
	}
	return nil, fmt.Errorf("content: %s is %s: %w", id, e.stateName(), ErrNotFound)
}

func (e *entry) stateName() string {
	if e.dead {
		return "being removed"
	}
	return e.state.String()
}

// enter counts a user of the store in; each success is followed by one leave.
func (ix *index) enter() error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return ix.enterLocked()
}

func (ix *index) enterLocked() error {
	if ix.closed {
		return fmt.Errorf("content: store: %w", ErrClosed)
	}
	ix.open++
	return nil
}

// leave counts a user out and returns how many are left.
func (ix *index) leave() int {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.leaveLocked()
	return ix.open
}

// close keeps new users out, and counts one in for the end of the store; false if it was closed already.
func (ix *index) close() bool {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.closed {
		return false
	}
	ix.closed = true
	ix.open++
	return true
}

func (ix *index) leaveLocked() {
	ix.open--
	if ix.closed && ix.open == 0 {
		ix.releaseLocked()
	}
}

// releaseLocked releases the directory.
func (ix *index) releaseLocked() {
	ix.files.close()
	close(ix.drained)
}

// changed reports whether a content no longer has a given form, or is about to be removed. A decision that is being
// carried out counts, and is waited for.
func (ix *index) changed(id ID, f form) bool {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.settledLocked(id)
	return e == nil || e.dead || e.state != f.state || e.base != f.base
}

// moved is changed for a content that may have been deleted, and is kept for what builds on it.
func (ix *index) moved(id ID, f form) bool {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.settledLocked(id)
	return e == nil || e.state != f.state || e.base != f.base
}

// settledLocked waits for the decision on a content that is being carried out, and returns its entry.
func (ix *index) settledLocked(id ID) *entry {
	e := ix.all[id]
	if e != nil && e.idle != nil {
		idle := e.idle
		ix.mu.Unlock()
		<-idle
		ix.mu.Lock()
		e = ix.all[id]
	}
	return e
}

// depthLocked counts the deltas from id down to a plain content.
func (ix *index) depthLocked(id ID) int {
	depth := 0
	for e := ix.all[id]; e != nil && !e.base.IsZero() && depth <= DepthMax; e = ix.all[e.base] {
		depth++
	}
	return depth
}

// markDamaged notes that a content failed a check.
func (ix *index) markDamaged(id ID, why error) {
	ix.mu.Lock()
	e := ix.all[id]
	fresh := e != nil && !e.damaged
	if fresh {
		e.damaged, e.checked = true, false
		e.rot++
	}
	ix.mu.Unlock()
	if fresh {
		ix.noteFound()
		ix.log.Error("content is damaged", "content", id.String(), "error", why)
	}
}

// noteFound wakes the reader of found; it does not wait.
func (ix *index) noteFound() {
	select {
	case ix.found <- struct{}{}:
	default:
	}
}

// rotOf returns how often a content was found damaged since the store was opened.
func (ix *index) rotOf(id ID) (uint32, bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	if e == nil {
		return 0, false
	}
	return e.rot, true
}

// baseOf is what a content is a delta over; zero for a plain one, and for one that is not here.
func (ix *index) baseOf(id ID) ID {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if e := ix.all[id]; e != nil {
		return e.base
	}
	return ID{}
}

// isOverDead reports whether a content is a delta over one that was deleted: nobody but the delta has that checked.
func (ix *index) isOverDead(id ID) bool {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for e := ix.all[id]; e != nil && !e.base.IsZero(); {
		if e = ix.all[e.base]; e != nil && e.dead {
			return true
		}
	}
	return false
}

// isChecked reports whether all of a content was checked since the store was opened, and no damage was met.
func (ix *index) isChecked(id ID) bool {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	return e != nil && e.checked && !e.damaged
}

// markWhole notes that all of a content, which the caller has pinned, was checked. Its data file had the mark m before.
func (ix *index) markWhole(id ID, m mark) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	e.damaged, e.checked, e.mark = false, true, m
}

// markLooked notes that the files of a content are there.
func (ix *index) markLooked(id ID) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if e := ix.all[id]; e != nil {
		e.looked = true
	}
}

// idleDeltas lists the deltas that FoldIdle should fold.
func (ix *index) idleDeltas() []ID {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	var list []ID
	for id, e := range ix.all {
		if e.base.IsZero() || e.state != Committed || e.dead || e.busy || e.folding || e.damaged || e.pins > 0 || e.deps > 0 {
			continue
		}
		if b := ix.all[e.base]; b != nil && b.dead && b.pins == 0 && b.deps == 1 {
			list = append(list, id)
		}
	}
	return list
}

// linkBases counts the dependencies; a delta without its base is damaged, and a partial one useless.
func (ix *index) linkBases() {
	for id, e := range ix.all {
		if e.base.IsZero() {
			continue
		}
		base := ix.all[e.base]
		if base == nil {
			e.damaged = true
			ix.log.Error("base of a content is missing", "content", id.String(), "base", e.base.String())
			continue
		}
		base.deps++
	}
}
