package replicate

import (
	"errors"
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
)

// absentReader is a content that was not in the local store when it was opened. It reads from other holders until the
// store has it, and there from then on. It never has a descriptor: programs that have it open already go by the daemon,
// and the kernel does not let some of a file's programs go by it and others past it.
type absentReader struct {
	*remoteReader
	m  *Member
	id meta.ContentID

	mu     sync.Mutex
	local  *localReader // nil until the store has it
	closed bool
}

// ReadAt implements io.ReaderAt.
func (r *absentReader) ReadAt(p []byte, off int64) (int, error) {
	if local := r.here(); local != nil {
		return local.ReadAt(p, off)
	}
	return r.remoteReader.ReadAt(p, off)
}

// here is the content in the store, nil if it is not there or can't be opened: then others have it.
func (r *absentReader) here() *localReader {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.local != nil || r.closed {
		return r.local
	}
	if _, there := r.m.cfg.Store.State(storeID(r.id)); !there {
		return nil
	}
	local, err := r.m.cfg.Store.OpenUndecided(storeID(r.id))
	if err != nil {
		return nil
	}
	r.local = newLocalReader(r.m, r.id, local)
	return r.local
}

// Close ends reads that are under way, and lets go of the content.
func (r *absentReader) Close() error {
	r.mu.Lock()
	r.closed = true
	local := r.local
	r.mu.Unlock()
	err := r.remoteReader.Close()
	if local != nil {
		err = errors.Join(err, local.Close())
	}
	return err
}
