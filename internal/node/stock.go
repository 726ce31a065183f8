package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	// kindStock is the kind of the call that has a member compare its contents with the log. Request and answer are
	// JSON.
	kindStock = 10
	// stockPage is how many records one call looks at, and stockBytes how much it reads from the disk at least.
	stockPage  = 4096
	stockBytes = 256 << 20
	// stockAtOnce is how many contents are looked at at the same time: they lie anywhere on the disk.
	stockAtOnce = 16
	// stockAgain is the pause before a second look at what may be about to change.
	stockAgain = time.Second
)

// stockRequest asks for the contents after one. First come those that the log believes to be here; then, with Unneeded,
// those that it does not name.
type stockRequest struct {
	After    meta.ContentID `json:"after"`
	Unneeded bool           `json:"unneeded,omitempty"`
	Path     string         `json:"path,omitempty"`     // only what is at it or below it
	Contents bool           `json:"contents,omitempty"` // read all bytes
}

// stockAnswer is what one call has found.
type stockAnswer struct {
	Next     meta.ContentID `json:"next"`               // where to go on; zero: there are no more
	Looked   int            `json:"looked"`             // contents, in the scope
	Bytes    int64          `json:"bytes"`              // of them
	Faults   []stockFault   `json:"faults,omitempty"`   // of contents that the log believes to be here
	Unneeded int            `json:"unneeded,omitempty"` // contents that the log does not name
	Idle     int64          `json:"idle,omitempty"`     // bytes of them
	Stuck    int            `json:"stuck,omitempty"`    // of them, that do not wait for their deletion
}

// stockFault is a content that is not here as the log says.
type stockFault struct {
	Content meta.ContentID `json:"content"`
	Absent  bool           `json:"absent,omitempty"` // there is nothing of it
	Blocks  int            `json:"blocks,omitempty"` // of 1 MiB that are damaged; 0: as a whole
	Why     string         `json:"why"`
}

// stock compares the contents of this node with what the log believes.
type stock struct {
	self     meta.NodeID
	db       *meta.DB
	store    *content.Store
	paths    *paths
	retiring func(meta.ContentID) bool
}

// handle answers a member. The caller's end ends the work.
func (st *stock) handle(ctx context.Context, _ control.Caller, payload []byte) ([]byte, error) {
	var req stockRequest
	if err := admin.Unmarshal(payload, &req); err != nil {
		return nil, errors.Join(control.ErrProtocol, err)
	}
	a, err := st.look(ctx, req)
	if err != nil {
		return nil, err
	}
	return admin.Marshal(a)
}

// look answers one call.
func (st *stock) look(ctx context.Context, req stockRequest) (stockAnswer, error) {
	if req.Unneeded {
		return st.unneeded(ctx, req.After)
	}
	in, err := scopeOf(st.db, st.paths, req.Path)
	if err != nil {
		return stockAnswer{}, err
	}
	page, next, err := st.db.Believed(st.self, req.After, stockPage)
	if err != nil {
		return stockAnswer{}, err
	}
	a := stockAnswer{Next: next}
	var list []meta.Content
	for i, c := range page {
		has, err := in.has(c)
		if err != nil {
			return a, err
		}
		if !has {
			continue
		}
		list = append(list, c)
		if a.Bytes += c.Size; req.Contents && a.Bytes >= stockBytes && i < len(page)-1 {
			a.Next = c.ID
			break
		}
	}
	a.Looked = len(list)
	a.Faults, err = st.faults(ctx, list, req.Contents)
	return a, err
}

// faults lists the contents that are not here as the log says. What is about to change is looked at again.
func (st *stock) faults(ctx context.Context, list []meta.Content, read bool) (out []stockFault, err error) {
	known := map[content.ID]bool{}
	for _, id := range st.store.Damaged() {
		known[id] = true
	}
	found := make([]*stockFault, len(list))
	errs := make([]error, len(list))
	checks, atOnce := st.store.Scrubber(0, nil), stockAtOnce
	if read {
		atOnce = 1 // in the order of the ids, which is about that of the disk
	}
	inParallel(ctx, len(list), atOnce, func(i int) {
		if found[i] = st.fault(list[i], known); found[i] == nil && read {
			found[i], errs[i] = st.damage(ctx, checks, list[i])
		}
	})
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return nil, err
	}
	again := false
	for i, f := range found {
		if f == nil {
			continue
		}
		if f.Absent && !again {
			again = true
			if !pause(ctx, stockAgain) {
				return nil, ctx.Err()
			}
		}
		if f, err = st.still(list[i], f); err != nil {
			return nil, err
		}
		if f != nil {
			out = append(out, *f)
		}
	}
	return out, nil
}

// fault says what is wrong with a content as far as can be seen without reading it; nil if nothing is.
func (st *stock) fault(c meta.Content, known map[content.ID]bool) *stockFault {
	id := content.ID(c.ID.Bytes())
	state, ok := st.store.State(id)
	switch {
	case !ok || state == content.Partial:
		return &stockFault{Content: c.ID, Absent: true, Why: "there is nothing of it in the store"}
	case known[id]:
		return &stockFault{Content: c.ID, Why: "it has failed its checks before"}
	case !st.store.Look(id, c.Size):
		return &stockFault{Content: c.ID, Why: "its files are gone, or have another length"}
	}
	return nil
}

// damage reads a content and says what is damaged; nil if nothing is.
func (st *stock) damage(ctx context.Context, checks *content.Scrubber, c meta.Content) (*stockFault, error) {
	d, err := checks.Check(ctx, c.ID.Bytes())
	if d == nil || err != nil {
		return nil, err
	}
	why := "it is damaged as a whole"
	if n := len(d.Blocks); n > 0 {
		why = fmt.Sprintf("damaged blocks of 1 MiB: %d, the first is block %d", n, d.Blocks[0])
	}
	return &stockFault{Content: c.ID, Blocks: len(d.Blocks), Why: why}, nil
}

// still looks again at what was found: nothing is wrong with a content that the log does not believe to be here any
// more, and one that has come meanwhile is no longer absent.
func (st *stock) still(c meta.Content, f *stockFault) (*stockFault, error) {
	holds, err := st.db.Holds(st.self, c.ID)
	switch {
	case errors.Is(err, meta.ErrNotFound):
		return nil, nil
	case err != nil || !holds:
		return nil, err
	case f.Absent:
		return st.fault(c, nil), nil
	}
	return f, nil
}

// inParallel calls a function with each number below n, on several at the same time, until ctx ends.
func inParallel(ctx context.Context, n, atOnce int, do func(i int)) {
	var taken atomic.Int64
	var work sync.WaitGroup
	for range min(atOnce, n) {
		work.Go(func() {
			for i := taken.Add(1) - 1; i < int64(n) && ctx.Err() == nil; i = taken.Add(1) - 1 {
				do(int(i))
			}
		})
	}
	work.Wait()
}

// unneeded counts contents of the store that the log does not name.
func (st *stock) unneeded(ctx context.Context, after meta.ContentID) (a stockAnswer, err error) {
	list := st.store.List(content.Committed)
	from := content.ID(after.Bytes())
	list = slices.DeleteFunc(list, func(id content.ID) bool { return bytes.Compare(id[:], from[:]) <= 0 })
	slices.SortFunc(list, func(x, y content.ID) int { return bytes.Compare(x[:], y[:]) })
	if len(list) > unneededPage {
		list = list[:unneededPage]
		a.Next = meta.ContentIDFromBytes(list[unneededPage-1])
	}
	var odd []meta.ContentID
	for _, id := range list {
		if ctx.Err() != nil {
			return a, ctx.Err()
		}
		c := meta.ContentIDFromBytes(id)
		named, err := st.named(c)
		if err != nil {
			return a, err
		}
		if named {
			continue
		}
		if !st.retiring(c) {
			odd = append(odd, c)
			continue
		}
		a.count(st.store, id)
	}
	return a, st.countOdd(ctx, odd, &a)
}

// unneededPage is how many contents of the store are looked for in the state at once: the whole list is sorted for it.
const unneededPage = 1 << 16

// named reports whether the log names a content.
func (st *stock) named(id meta.ContentID) (bool, error) {
	_, err := st.db.Content(id)
	if errors.Is(err, meta.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// countOdd looks again, after a while, at contents that the log does not name and that did not wait for their deletion:
// the log may have dropped them just then.
func (st *stock) countOdd(ctx context.Context, odd []meta.ContentID, a *stockAnswer) error {
	if len(odd) == 0 {
		return nil
	}
	if !pause(ctx, stockAgain) {
		return ctx.Err()
	}
	for _, c := range odd {
		id := content.ID(c.Bytes())
		named, err := st.named(c)
		if err != nil {
			return err
		}
		if state, here := st.store.State(id); named || !here || state != content.Committed {
			continue
		}
		if a.count(st.store, id); !st.retiring(c) {
			a.Stuck++
		}
	}
	return nil
}

// count counts a content that nothing needs.
func (a *stockAnswer) count(store *content.Store, id content.ID) {
	a.Unneeded++
	if info, err := store.Stat(id); err == nil {
		a.Idle += info.Size
	}
}
