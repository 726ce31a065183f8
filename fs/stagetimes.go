package fs

import "time"

// sampled is what a staged file is now.
func (l *live) sampled() (now state, st StageStat, err error) {
	l.mu.Lock()
	dirty := l.dirty
	l.mu.Unlock()
	st, err = l.stage.Stat()
	if err != nil {
		return state{}, st, err
	}
	return sample(st, dirty), st, nil
}

// still reports whether nothing was certainly written to a staged file since a sample, but by mappings that were there
// before.
func (l *live) still(p state, st StageStat) bool {
	mediated := !l.backing.on()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !p.valid || p.size != st.Size || p.dirty != l.dirty:
		return false
	case mediated:
		return true // each write came by here and was counted
	}
	same := p.hasTimes(st) || l.parts.retimed.to.hasTimes(st) && l.parts.retimed.from == p.times()
	return same && l.tells(p)
}

// times are the times of a file.
type times struct{ mtime, ctime int64 }

func (s state) times() times { return times{s.mtime, s.ctime} }

func (s state) hasTimes(st StageStat) bool { return s.valid && s.times() == times{st.Mtime, st.Ctime} }

// retimed is the last time that a program has set the times of a staged file: its bytes are what they were before.
type retimed struct {
	from    times
	to      state
	changed int64 // ctime of the last change of the bytes
}

// retime sets times, and notes that this is no change of the bytes. The kernel lets nobody write meanwhile. Stores
// through mappings would not be seen: nothing is noted if there may be some.
func (l *live) retime(atime, mtime *int64) error {
	before, st, beforeErr := l.sampled()
	if err := l.stage.SetTimes(atime, mtime); err != nil {
		return err
	}
	after, _, err := l.sampled()
	if err != nil || beforeErr != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mayMap || !l.tells(before) || before.size != after.size {
		return nil
	}
	l.parts.retimed = retimed{from: before.times(), to: after, changed: l.changedLocked(st)}
	return nil
}

// changedLocked is the ctime of the last change of the bytes of a staged file. mu is held.
func (l *live) changedLocked(st StageStat) int64 {
	if l.parts.retimed.to.hasTimes(st) {
		return l.parts.retimed.changed
	}
	return st.Ctime
}

// clockStep is how much the clock of the times of files may have been set since a live file began, for these to be
// compared with other times.
const clockStep = 20 * time.Millisecond

// bootAt is when the host was booted, by the clock of the times of files, nanoseconds since 1970.
func bootAt() int64 { return time.Now().UnixNano() - int64(sinceBoot()) }

// isOlderThan reports whether a process has certainly begun after the last change of a staged file.
func (l *live) isOlderThan(process string, st StageStat) bool {
	start, known := began(process)
	booted := bootAt()
	if !known || (time.Duration(booted-l.bootAt)).Abs() > clockStep {
		return false
	}
	l.mu.Lock()
	changed := l.changedLocked(st)
	l.mu.Unlock()
	return int64(start) > changed-booted+int64(timesTick+clockStep)
}
