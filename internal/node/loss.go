package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/meta"
)

// What a node has that nobody else has: the last copies that the log knows of, and bytes that were never published,
// which only the node itself knows of.

// kindUnpublished is the kind of the call that asks a node for its unpublished files. The payload is empty, the
// answer JSON.
const kindUnpublished = 3

const (
	// lossesListed bounds the files that an answer names.
	lossesListed = 20
	// strayTimeout bounds the question for unpublished files.
	strayTimeout = 10 * time.Second
	// closedWait is how long a file may seem to be open after its close.
	closedWait = 2 * time.Second
)

// strays are the files of a node that were written and are not published.
type strays struct {
	Count int                 `json:"count"`
	Open  int                 `json:"open,omitempty"` // how many of them a program has open for writing
	First []admin.Unpublished `json:"first"`
}

// strays lists what was never published here, and what is being written.
func (n *node) strays() (strays, error) {
	list, err := n.store.Stagings()
	if err != nil {
		return strays{}, err
	}
	var out strays
	for _, u := range list {
		if u.Size == 0 && u.Base.IsZero() || fs.Unnamed(u.Origin.Ino) {
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
			why = "it is open for writing"
		}
		out.First = append(out.First, admin.Unpublished{ID: unpublishedID(u), Path: n.pathOf(u), SizeBytes: u.Size,
			Modified: u.Modified, Reason: why})
	}
	return out, nil
}

func (n *node) handleUnpublished(context.Context, control.Caller, []byte) ([]byte, error) {
	s, err := n.strays()
	if err != nil {
		return nil, err
	}
	return admin.Marshal(s)
}

// straysOf asks a node for its unpublished files.
func (n *node) straysOf(ctx context.Context, id meta.NodeID) (s strays, err error) {
	if id == n.id.Node {
		return n.strays()
	}
	ctx, cancel := context.WithTimeout(ctx, strayTimeout)
	defer cancel()
	raw, err := whileUp(ctx, n.members, id, func(ctx context.Context) ([]byte, error) {
		return n.peers.Call(ctx, uint32(id), kindUnpublished, nil)
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

// loss is what is lost with a node.
type loss struct {
	meta.Depending
	strays strays
	unread error // why the node could not be asked for unpublished files
}

func (l loss) nothing() bool { return l.Contents == 0 && l.strays.Count == 0 }

// onlyOpen reports whether nothing is lost except files that are being written.
func (l loss) onlyOpen() bool {
	return l.Contents == 0 && l.strays.Count > 0 && l.strays.Open == l.strays.Count
}

// atRest looks for what only a node has. The kernel informs a daemon a moment after close that a file is not open any
// more: what was closed just now is looked at again.
func atRest(ctx context.Context, look func() (loss, error)) (l loss, err error) {
	deadline := time.Now().Add(closedWait)
	for {
		l, err = look()
		if err != nil || !l.onlyOpen() || time.Now().After(deadline) || !pause(ctx, dutyInterval) {
			return l, err
		}
	}
}

// lossOf looks for what only a node has.
func (n *node) lossOf(ctx context.Context, id meta.NodeID) (l loss, err error) {
	if l.Depending, err = n.db.OnlyOn(id, 0, lossesListed); err != nil {
		return l, err
	}
	l.strays, l.unread = n.straysOf(ctx, id)
	return l, nil
}

// lossText names what is lost with a node: counts, and the first of each kind, on one line.
func (n *node) lossText(name string, l loss) string {
	var b strings.Builder
	if l.Contents > 0 {
		fmt.Fprintf(&b, "no other node that is up has a copy of %d file versions (%d bytes) on %s: ", l.Contents, l.Bytes,
			name)
		for _, c := range l.List {
			fmt.Fprintf(&b, "%s, %d bytes%s; ", terminal.Escape(n.contentPath(c)), c.Size, stateNote(c))
		}
		more(&b, l.Contents-len(l.List))
	}
	if l.strays.Count > 0 {
		fmt.Fprintf(&b, "%s has %d unpublished files: ", name, l.strays.Count)
		for _, u := range l.strays.First {
			fmt.Fprintf(&b, "%s, %d bytes, id %s: %s; ", terminal.Escape(u.Path), u.SizeBytes, terminal.Escape(u.ID),
				terminal.Escape(u.Reason))
		}
		more(&b, l.strays.Count-len(l.strays.First))
	}
	if l.unread != nil {
		fmt.Fprintf(&b, "%s could not be asked for unpublished files (%s): its data directory may have some; ", name,
			terminal.Escape(l.unread.Error()))
	}
	return strings.TrimSuffix(b.String(), "; ")
}

func more(b *strings.Builder, count int) {
	if count > 0 {
		fmt.Fprintf(b, "and %d more; ", count)
	}
}

// contentPath is where a content belongs, or its id where its file is gone.
func (n *node) contentPath(c meta.Content) string {
	if p, err := n.inodePath(c.Ino); err == nil {
		return p
	}
	if c.State == meta.ContentRemoved {
		return strings.TrimPrefix(c.Reason, meta.RemovedFrom)
	}
	return "content " + c.ID.String()
}

func stateNote(c meta.Content) string {
	if c.State == meta.ContentCurrent {
		return ""
	}
	return ", " + contentWords[c.State] + " version"
}

// wasEvicted is the end of a node that was evicted. It says what is in the data directory that the others may lack.
func (n *node) wasEvicted() error {
	l := loss{}
	var err error
	l.Depending, err = n.db.NowhereElse(n.id.Node, lossesListed, func(id meta.ContentID) bool {
		_, has := n.store.State(content.ID(id.Bytes()))
		return has
	})
	if err == nil {
		l.strays, err = n.strays()
	}
	name := "this node's data directory " + n.cfg.DataDir
	switch {
	case err != nil:
		return fmt.Errorf("node: %w; what is in its data directory is not known: %w", ErrEvicted, err)
	case l.nothing():
		return fmt.Errorf("node: %w: nothing is known to be in its data directory %s alone; remove it and join again with "+
			"a new token", ErrEvicted, n.cfg.DataDir)
	}
	return fmt.Errorf("node: %w, and it may have the last copies of files. Copy out of content/ what you need before "+
		"you remove anything "+
		"(docs/OPERATIONS.md, Nodes); then join again with an empty directory and a new token. %s", ErrEvicted,
		n.lossText(name, l))
}
