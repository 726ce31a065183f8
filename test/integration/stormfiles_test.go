package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// state is what a name may show: nothing, or a file.
type state struct {
	absent bool
	data   blob
	mode   os.FileMode
}

// name is one name of a writer's own directory. Only that writer changes it.
type name struct {
	path string
	// may are the states that the name may show. There are several after a change whose writer did not hear how it
	// ended; nobody changes the name any more then.
	may []state
	// or is the other name of a rename that may have happened or not: one of the two shows the file.
	or *name
}

func (n *name) known() bool { return len(n.may) == 1 }

func (n *name) exists() bool { return n.known() && !n.may[0].absent }

// attempt is a version that a writer wrote to a name that all of them write.
type attempt struct {
	data         blob
	began, ended time.Time
	acknowledged bool
}

// shared are the names that all writers write, with all that was ever written there.
type shared struct {
	mu       sync.Mutex
	attempts map[string][]attempt
}

func (s *shared) begin(path string, data blob) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts[path] = append(s.attempts[path], attempt{data: data, began: time.Now()})
	return len(s.attempts[path]) - 1
}

func (s *shared) end(path string, i int, acknowledged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts[path][i].ended, s.attempts[path][i].acknowledged = time.Now(), acknowledged
}

// made reports whether a write of a name was ever acknowledged.
func (s *shared) made(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.attempts[path], func(a attempt) bool { return a.acknowledged })
}

// states returns the states that a shared name may show in the end. A version is out if another was acknowledged that
// was begun after its end. A version whose end is not known may have come at any time.
func (s *shared) states(path string) (may []state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last time.Time // the latest beginning of what was acknowledged
	for _, a := range s.attempts[path] {
		if a.acknowledged && a.began.After(last) {
			last = a.began
		}
	}
	for _, a := range s.attempts[path] {
		if !a.acknowledged || !a.ended.Before(last) {
			may = append(may, state{data: a.data, mode: 0o644})
		}
	}
	if last.IsZero() {
		may = append(may, state{absent: true})
	}
	return may
}

// outcome is what a writer knows of a change after it.
type outcome struct {
	err error
	// wrote is how much of the data was written, -1 if no write failed. What was written before a failure may have
	// become a version.
	wrote int64
}

func (o outcome) errs(err error) outcome {
	o.err = errors.Join(o.err, err)
	return o
}

// after sets what a name may show after a change of it from one state to another.
func (n *name) after(to state, o outcome) {
	from := n.may[0]
	if o.err == nil {
		n.may = []state{to}
		return
	}
	n.may = []state{from, to}
	if o.wrote >= 0 {
		n.may = append(n.may, state{data: to.data.cut(0, o.wrote), mode: to.mode})
	}
	if from.absent || !from.data.same(to.data) {
		n.may = append(n.may, state{mode: to.mode}) // made or truncated, and closed in failure
	}
}

func (b blob) same(other blob) bool { return slices.Equal(b, other) }

// writeWhole opens a file and writes all of it, with a pause in the midst of it and a sync before the close if they
// are asked for.
func writeWhole(path string, flags int, mode os.FileMode, data blob, pause time.Duration, sync bool) outcome {
	f, err := os.OpenFile(path, flags|os.O_WRONLY, mode)
	if err != nil {
		return outcome{err: err, wrote: -1}
	}
	half := data.size() / 2
	o := put(f, 0, data.cut(0, half))
	if o.err == nil {
		wait(pause)
		o = put(f, half, data.cut(half, data.size()))
		if o.err != nil {
			o.wrote += half
		}
	}
	if o.err == nil && sync {
		o = o.errs(f.Sync())
	}
	return o.errs(f.Close())
}

// put writes at an offset.
func put(f *os.File, off int64, data blob) outcome {
	if wrote, err := data.writeTo(f, off); err != nil {
		return outcome{err: err, wrote: wrote}
	}
	return outcome{wrote: -1}
}

// patch opens a file and writes at an offset in it.
func patch(path string, off int64, data blob, sync bool) outcome {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return outcome{err: err, wrote: -1}
	}
	o := put(f, off, data)
	if o.err == nil && sync {
		o = o.errs(f.Sync())
	}
	return o.errs(f.Close())
}

func wait(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}

// stateShown says which of the states a name shows on a mount, as a number, or in words what is wrong. The second
// value describes all that is to be equal on all nodes.
func stateShown(mount, path string, may []state) (which int, all string, err error) {
	full := filepath.Join(mount, path)
	var st syscall.Stat_t
	switch err := syscall.Lstat(full, &st); {
	case errors.Is(err, syscall.ENOENT):
		for i, s := range may {
			if s.absent {
				return i, "absent", nil
			}
		}
		return 0, "absent", errors.New("it is not there")
	case err != nil:
		return 0, "", err
	}
	mode := os.FileMode(st.Mode & 0o7777)
	var wrong error
	for i, s := range may {
		if s.absent {
			continue
		}
		why := fmt.Sprintf("it has %d bytes, not %d", st.Size, s.data.size())
		if st.Size == s.data.size() {
			if why, err = s.data.differs(full); err != nil {
				return 0, "", err
			}
		}
		if why == "" && mode != s.mode {
			why = fmt.Sprintf("its mode is %o, not %o", mode, s.mode)
		}
		if why == "" {
			return i, fmt.Sprintf("%o %d:%d %d bytes, %d.%09d, version %d", mode, st.Uid, st.Gid, st.Size, st.Mtim.Sec,
				st.Mtim.Nsec, i), nil
		}
		wrong = errors.Join(wrong, errors.New(why))
	}
	if wrong == nil {
		wrong = fmt.Errorf("it has %d bytes, and was removed", st.Size)
	}
	return 0, "", wrong
}
