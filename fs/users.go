package fs

// users counts what keeps a live file: handles, publishes and looks at it. Protected by nodeTable.mu.
type users struct {
	handles int  // open handles, readers too
	writers int  // handles that may write
	closing int  // writers that had a descriptor closed: most often their RELEASE is on its way
	dups    bool // it was not on its way: such handles have other descriptors, and are not waited for
	busy    int  // publishes and watches under way: the bytes are still to be published
	holds   int  // looks at it under way: it must not be closed
	ended   bool // no longer to be joined; bytes are being kept or dropped
	read    bool // a handle could read the staged file
}

// newUsers returns users with the writer that begins a live file.
func newUsers() users { return users{handles: 1, writers: 1} }

// frozen reports whether nobody can change the staged bytes any more.
func (u *users) frozen() bool { return u.writers == 0 && u.busy == 0 }

// addWriter counts a handle that may write.
func (u *users) addWriter() {
	u.handles++
	u.writers++
}

// addReader counts a handle that only reads.
func (u *users) addReader() {
	u.handles++
	u.read = true
}

// takeReaders counts handles that have read a version until now.
func (u *users) takeReaders(handles int) {
	u.handles += handles
	u.read = true
}

// remove takes a handle off, and reports whether it was the last that may write.
func (u *users) remove(h *handle) (lastWriter bool) {
	u.handles--
	if !h.writer {
		return false
	}
	u.writers--
	if h.flushed {
		u.closing--
	}
	return u.writers == 0
}

// noteClosing counts a handle of which a descriptor was closed.
func (u *users) noteClosing(h *handle) {
	if !h.flushed {
		h.flushed = true
		u.closing++
	}
}

// others counts the writers besides a handle, which is nil or a writer. releasing says that they have all closed and
// are about to be released.
func (u *users) others(h *handle) (n int, releasing bool) {
	n = u.writers
	closing := u.closing
	if h != nil {
		n--
		if h.flushed {
			closing--
		}
	}
	return n, n > 0 && closing == n && !u.dups
}

// end reports whether nobody uses the file any more; it is ended then. It does so once.
func (u *users) end() bool {
	if u.ended || u.busy > 0 || u.holds > 0 || u.handles > 0 {
		return false
	}
	u.ended = true
	return true
}
