package content

import (
	"os"

	"golang.org/x/sys/unix"
)

// mark is what the file system says of a data file. The index keeps the mark that the file of a content had when all of
// it was received or checked. If the file has another one when the content is opened, somebody else has changed it, and
// it is checked again before it is read without the daemon. A mark is in memory only. The zero mark is of no file.
//
// Every change of a file changes its ctime, by the fine clock of the kernel (6.13 and later) if somebody has looked at
// it since the last one. On older kernels a change within a tick of the mark, some milliseconds, goes unseen. A disk
// that loses bytes by itself changes no mark: the scrub finds that.
type mark struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// markOf is the mark of an open file; zero if the file can't be looked at.
func markOf(f *os.File) mark {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return mark{}
	}
	return mark{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
}

// markAt is the mark of the file at a path; zero if it can't be looked at.
func markAt(path string) mark {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return mark{}
	}
	return mark{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
}

// look notes the mark of the data file that belongs to a plain content. opening is held.
func (b *body) look() {
	if b.head.base.IsZero() && b.streamFile != nil {
		b.swap.Lock()
		b.mark = markOf(b.streamFile)
		b.swap.Unlock()
	}
}

// looked is the mark that the data file had when the content was opened or was put in its place.
func (b *body) looked() mark {
	b.swap.RLock()
	defer b.swap.RUnlock()
	return b.mark
}

// compareMark looks at the data file of a content that is being opened, and unchecks the content if the file is not as
// it was when the content was checked.
func (op *opener) compareMark(b *body) {
	if b.files == nil {
		return // it has no data file of its own: all reads are checked
	}
	b.files.opening.RLock() // an exchange, and its mark, come before or after
	defer b.files.opening.RUnlock()
	b.look()
	if op.index.uncheckUnless(b.id, b.looked()) {
		op.index.log.Warn("data file was changed on the disk: it is checked again", "content", b.id.String())
	}
}

// renewMark notes the mark of an open data file after the store itself has changed it.
func (op *opener) renewMark(b *body) {
	b.files.opening.RLock()
	defer b.files.opening.RUnlock()
	b.look()
	op.index.setMark(b.id, b.looked())
}

// uncheckUnless forgets that a content was checked if it had another mark then.
func (ix *index) uncheckUnless(id ID, now mark) (changed bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id] // pinned by the caller
	changed = e != nil && e.checked && e.mark != now
	if changed {
		e.checked = false
	}
	return changed
}

// setMark notes the mark of a data file that has the bytes that were checked.
func (ix *index) setMark(id ID, m mark) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if e := ix.all[id]; e != nil {
		e.mark = m
	}
}

// hasMark reports whether all of a content was checked, and its data file has the mark of then.
func (ix *index) hasMark(id ID, m mark) bool {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	return e != nil && e.checked && !e.damaged && e.mark == m
}
