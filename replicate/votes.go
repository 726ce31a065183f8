package replicate

import (
	"errors"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// votes are the stored contents that the log has not decided on.
type votes struct {
	cfg *Config

	mu    sync.Mutex
	roots map[meta.ContentID][32]byte // of the votes of this process
}

func newVotes(cfg *Config) *votes { return &votes{cfg: cfg, roots: make(map[meta.ContentID][32]byte)} }

// voted notes the root of a content that was stored, to be held against the log's.
func (v *votes) voted(id meta.ContentID, root [32]byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.roots[id] = root
}

// rootOf is the root of a stored content. It takes the note away.
func (v *votes) rootOf(id meta.ContentID) ([32]byte, error) {
	v.mu.Lock()
	root, ok := v.roots[id]
	delete(v.roots, id)
	v.mu.Unlock()
	if ok {
		return root, nil
	}
	info, err := v.cfg.Store.Stat(storeID(id))
	return [32]byte(info.Root), err
}

// forget drops the note of a root.
func (v *votes) forget(id meta.ContentID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.roots, id)
}

// drop deletes what is stored of a session that was aborted.
func (v *votes) drop(id meta.ContentID) {
	v.forget(id)
	err := v.cfg.Store.Abort(storeID(id))
	if err != nil && !errors.Is(err, content.ErrNotFound) {
		v.cfg.Logger.Warn("drop of an aborted content", "content", id, "err", err)
	}
}
