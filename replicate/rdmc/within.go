package rdmc

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
)

// within knows the goroutines that call a group's callbacks, Sources and Sinks. One of them that waits for the end of
// the group waits for itself, so they are told from all others.
type within struct {
	mu  sync.Mutex
	ids []uint64 // a few
}

// run has f run by this goroutine as one of the group.
func (w *within) run(f func()) {
	id := goroutineID()
	w.mu.Lock()
	w.ids = append(w.ids, id)
	w.mu.Unlock()
	f() // the group ends with it
}

// has reports whether a goroutine is one of the group.
func (w *within) has(id uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.ids {
		if id == other && id != 0 {
			return true
		}
	}
	return false
}

// goroutineID is the number of the calling goroutine, which no other ever gets; 0 if the runtime does not tell. It
// takes a microsecond.
func goroutineID() uint64 {
	var trace [40]byte // goroutine 18 [running]:...
	words := bytes.Fields(trace[:runtime.Stack(trace[:], false)])
	if len(words) < 2 {
		return 0
	}
	id, err := strconv.ParseUint(string(words[1]), 10, 64)
	if err != nil {
		return 0
	}
	return id
}
