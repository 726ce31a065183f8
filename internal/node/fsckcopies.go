package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	// fsckPage is how many contents are looked at at once.
	fsckPage = 1024
	// fsckPaths is how many files a finding about several names.
	fsckPaths = 5
	// fsckGroups bounds the sets of nodes that are told apart. There may be as many as files.
	fsckGroups = 256
)

// several gathers contents of which the same is to be said.
type several struct {
	admin.FsckFinding
	contents []meta.Content // the first
}

func (s *several) add(c meta.Content) {
	s.Count++
	s.SizeBytes += c.Size
	if len(s.contents) < fsckPaths {
		s.contents = append(s.contents, c)
	}
}

// copyBook gathers what is owed to whom and why, and whose absence keeps contents from being read.
type copyBook struct {
	owed        map[owedTo]*several
	unreachable map[string]*several // by the names of the nodes that hold it
	single      several             // on one node that is up, though more are to hold it
	waits       bool                // one of them waits for nodes that are down
}

// owedTo is what is owed to a node for one reason.
type owedTo struct {
	node   meta.NodeID
	reason meta.OwedReason
}

// copies looks for contents that fewer nodes hold than should.
func (f *fsck) copies() error {
	book := &copyBook{owed: map[owedTo]*several{}, unreachable: map[string]*several{}}
	for after := (meta.ContentID{}); ; {
		if err := f.ctx.Err(); err != nil {
			return err
		}
		page, next, err := meta.Checks{DB: f.db}.Copies(after, fsckPage)
		if err != nil {
			return err
		}
		for _, c := range page {
			if in, err := f.scope.has(c.Content); err != nil || !in {
				if err != nil {
					return err
				}
				continue
			}
			f.result.Contents++
			f.result.SizeBytes += c.Size
			if err := f.copiesOf(book, c); err != nil {
				return err
			}
		}
		f.tell(admin.Progress{Step: "copies", Count: f.result.Contents})
		if after = next; next.IsZero() {
			return f.sayCopies(book)
		}
	}
}

// copiesOf notes where a content is lacking. What nobody holds is reported at once.
func (f *fsck) copiesOf(book *copyBook, c meta.Copies) error {
	nodes := f.members.book().nodes
	up, names := 0, []string(nil)
	for _, h := range c.Holders {
		if nodes[h].State == meta.NodeUp {
			up++
		}
		names = append(names, f.members.name(h))
	}
	switch {
	case len(c.Holders) == 0:
		what := f.ofContent(admin.FsckLost, c.Content)
		what.Text = "no node holds it any more: restore another version, or copy the file in again"
		return f.found(what)
	case up == 0:
		book.cutOff(strings.Join(names, ", ")).add(c.Content)
	case up == 1 && len(c.Lacking) > 0:
		book.single.add(c.Content)
		book.waits = book.waits || !slices.ContainsFunc(c.Lacking, func(l meta.Lacking) bool {
			return nodes[l.Node].State == meta.NodeUp
		})
	}
	for _, l := range c.Lacking {
		key := owedTo{l.Node, l.Reason}
		if book.owed[key] == nil {
			book.owed[key] = &several{}
		}
		book.owed[key].add(c.Content)
	}
	return nil
}

// cutOff are the contents that some nodes hold, all of which are down.
func (b *copyBook) cutOff(holders string) *several {
	if b.unreachable[holders] == nil {
		if len(b.unreachable) >= fsckGroups {
			holders = "the nodes that are down"
		}
		if b.unreachable[holders] == nil {
			b.unreachable[holders] = &several{}
		}
	}
	return b.unreachable[holders]
}

// sayCopies reports what was gathered.
func (f *fsck) sayCopies(book *copyBook) error {
	for _, holders := range slices.Sorted(maps.Keys(book.unreachable)) {
		s := book.unreachable[holders]
		s.Kind, s.Text = admin.FsckUnreachable, "what has them does not run: start "+holders
		if err := f.sayOf(s); err != nil {
			return err
		}
	}
	nodes := f.members.book().nodes
	if s := &book.single; s.Count > 0 {
		s.Kind, s.Heals = admin.FsckOwed, !book.waits
		s.Text = "one node that is up has them, and others are to have them too"
		if err := f.sayOf(s); err != nil {
			return err
		}
	}
	keys := slices.SortedFunc(maps.Keys(book.owed), func(a, b owedTo) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.reason, b.reason))
	})
	for _, key := range keys {
		s := book.owed[key]
		s.Kind, s.Node = admin.FsckOwed, uint32(key.node)
		s.Heals = nodes[key.node].State == meta.NodeUp && key.reason != meta.OwedFull
		s.Text = fmt.Sprintf("they are owed to it: %s", key.reason)
		if err := f.sayOf(s); err != nil {
			return err
		}
	}
	return nil
}

// sayOf reports what is to be said of several contents.
func (f *fsck) sayOf(s *several) error {
	for _, c := range s.contents {
		s.Paths = append(s.Paths, f.paths.ofContent(c))
	}
	return f.found(s.FsckFinding)
}
