package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/meta"
)

// What a node has that nobody else has: the last copies that the log knows of, and bytes that were never published,
// which only the node itself knows of.

// closedWait is how long a file may seem to be open after its close.
const closedWait = 2 * time.Second

// losses finds what is lost with a node.
type losses struct {
	self    meta.NodeID
	dataDir string
	db      *meta.DB
	store   *content.Store
	strays  *strayFiles
	paths   *paths
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

// of looks for what only a node has.
func (s *losses) of(ctx context.Context, id meta.NodeID) (l loss, err error) {
	if l.Depending, err = s.db.OnlyOn(id, 0, lossesListed); err != nil {
		return l, err
	}
	l.strays, l.unread = s.strays.of(ctx, id)
	return l, nil
}

// text names what is lost with a node: counts, and the first of each kind, on one line.
func (s *losses) text(name string, l loss) string {
	var b strings.Builder
	if l.Contents > 0 {
		fmt.Fprintf(&b, "no other node that is up has a copy of %d file versions (%d bytes) on %s: ", l.Contents, l.Bytes,
			name)
		for _, c := range l.List {
			fmt.Fprintf(&b, "%s, %d bytes%s; ", terminal.Escape(s.paths.ofContent(c)), c.Size, stateNote(c))
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

func stateNote(c meta.Content) string {
	if c.State == meta.ContentCurrent {
		return ""
	}
	return ", " + contentWords[c.State] + " version"
}

// ofEvicted is the end of a node that was evicted. It says what is in the data directory that the others may lack.
func (s *losses) ofEvicted() error {
	l := loss{}
	var err error
	l.Depending, err = s.db.NowhereElse(s.self, lossesListed, func(id meta.ContentID) bool {
		_, has := s.store.State(content.ID(id.Bytes()))
		return has
	})
	if err == nil {
		l.strays, err = s.strays.here()
	}
	name := "this node's data directory " + s.dataDir
	switch {
	case err != nil:
		return fmt.Errorf("node: %w; what is in its data directory is not known: %w", ErrEvicted, err)
	case l.nothing():
		return fmt.Errorf("node: %w: nothing is known to be in its data directory %s alone; remove it and join again with "+
			"a new token", ErrEvicted, s.dataDir)
	}
	return fmt.Errorf("node: %w, and it may have the last copies of files. Copy out of content/ what you need before "+
		"you remove anything "+
		"(docs/OPERATIONS.md, Nodes); then join again with an empty directory and a new token. %s", ErrEvicted,
		s.text(name, l))
}
