package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// kindUnpublished is the kind of the call that asks a node for its unpublished files. The payload is empty, the
// answer JSON.
const kindUnpublished = 3

const (
	// lossesListed bounds the files that an answer names.
	lossesListed = 20
	// strayTimeout bounds the question for unpublished files.
	strayTimeout = 10 * time.Second
)

// openForWriting is the reason of what a program is still writing.
const openForWriting = "it is open for writing"

// strays are the files of a node that were written and are not published.
type strays struct {
	Count int                 `json:"count"`
	Open  int                 `json:"open,omitempty"` // how many of them a program has open for writing
	First []admin.Unpublished `json:"first"`
}

// strayFiles finds the files of nodes that were written and are not published: only the node itself knows of them.
type strayFiles struct {
	self    meta.NodeID
	store   *content.Store
	paths   *paths
	members *members
	peers   *control.Peers
}

// here lists what was never published here, and what is being written.
func (f *strayFiles) here() (strays, error) {
	list, err := f.store.Stagings()
	if err != nil {
		return strays{}, err
	}
	var out strays
	for _, u := range list {
		if u.IsVersion || u.Size == 0 && u.Base.IsZero() || fs.Unnamed(u.Origin.Ino) {
			continue
		}
		if out.Count++; u.Open {
			out.Open++
		}
		if len(out.First) == lossesListed {
			continue
		}
		why := orDefault(u.Reason, "the daemon ended while the file was being written")
		if u.Open {
			why = openForWriting
		}
		out.First = append(out.First, admin.Unpublished{ID: unpublishedID(u), Path: f.paths.ofStaged(u), SizeBytes: u.Size,
			Modified: u.Modified, Reason: why})
	}
	return out, nil
}

func (f *strayFiles) handle(context.Context, control.Caller, []byte) ([]byte, error) {
	s, err := f.here()
	if err != nil {
		return nil, err
	}
	return admin.Marshal(s)
}

// of asks a node for its unpublished files.
func (f *strayFiles) of(ctx context.Context, id meta.NodeID) (s strays, err error) {
	if id == f.self {
		return f.here()
	}
	ctx, cancel := context.WithTimeout(ctx, strayTimeout)
	defer cancel()
	raw, err := whileUp(ctx, f.members, id, func(ctx context.Context) ([]byte, error) {
		return f.peers.Call(ctx, uint32(id), kindUnpublished, nil)
	})
	if err != nil {
		return s, err
	}
	if err := admin.Unmarshal(raw, &s); err != nil || s.Count < max(s.Open, len(s.First)) || len(s.First) > lossesListed {
		return strays{}, fmt.Errorf("node: unpublished files of node %d: %w", id, control.ErrProtocol)
	}
	return s, nil
}

var errNotUp = errors.New("it does not run")

// whileUp makes a call to a node, for as long as the log says that it is up: a node that stands still answers nothing,
// and its connection may live for long.
func whileUp(ctx context.Context, m *members, id meta.NodeID,
	call func(context.Context) ([]byte, error)) ([]byte, error) {
	if m.book().nodes[id].State != meta.NodeUp {
		return nil, errNotUp
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		for range ticks(ctx, dutyInterval) {
			if m.book().nodes[id].State != meta.NodeUp {
				cancel(errNotUp)
			}
		}
	})
	answer, err := call(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errNotUp) {
		err = errNotUp
	}
	return answer, err
}
