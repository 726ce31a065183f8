package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// stocks has each node that is up compare its contents with the log.
func (f *fsck) stocks() error {
	nodes := f.members.book().nodes
	for i := range f.result.Nodes {
		line := &f.result.Nodes[i]
		id := meta.NodeID(line.Node)
		if nodes[id].State != meta.NodeUp {
			continue // it was reported
		}
		err := f.stockOf(id, line)
		if err == nil {
			err = f.strayOf(id)
		}
		var asked *notAsked
		if line.Checked = err == nil; errors.As(err, &asked) && f.ctx.Err() == nil {
			err = f.found(admin.FsckFinding{Kind: admin.FsckUnchecked, Node: line.Node, Count: 1,
				Text: fmt.Sprintf("it was not checked as a whole: %v", asked.why)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// notAsked is the error of a call to a node.
type notAsked struct{ why error }

func (e *notAsked) Error() string { return e.why.Error() }

// stockOf asks a node page by page.
func (f *fsck) stockOf(id meta.NodeID, line *admin.FsckNode) error {
	req := stockRequest{Path: f.scope.path, Contents: f.req.Contents}
	stuck := 0
	for {
		a, err := f.askStock(id, req)
		if err != nil {
			return &notAsked{err}
		}
		line.Contents += a.Looked
		line.SizeBytes += a.Bytes
		line.UnneededCount += a.Unneeded
		line.UnneededBytes += a.Idle
		stuck += a.Stuck
		for _, fault := range a.Faults {
			if err := f.stockFault(id, fault); err != nil {
				return err
			}
		}
		f.tell(admin.Progress{Step: f.members.name(id), Count: uint64(line.Contents), Of: f.result.Contents})
		if req.After = a.Next; !a.Next.IsZero() {
			continue
		}
		if req.Unneeded || !f.scope.everything() {
			return f.sayUnneeded(line, stuck)
		}
		req.Unneeded = true
	}
}

// askStock asks a node for one page, for as long as it runs.
func (f *fsck) askStock(id meta.NodeID, req stockRequest) (a stockAnswer, err error) {
	if id == f.self {
		return f.stock.look(f.ctx, req)
	}
	payload, err := admin.Marshal(req)
	if err != nil {
		return a, err
	}
	raw, err := whileUp(f.ctx, f.members, id, func(ctx context.Context) ([]byte, error) {
		return f.peers.Call(ctx, uint32(id), kindStock, payload)
	})
	if err != nil {
		return a, err
	}
	if err := admin.Unmarshal(raw, &a); err != nil || !a.goesOn(req) {
		return a, fmt.Errorf("node: contents of node %d: %w", id, control.ErrProtocol)
	}
	return a, nil
}

// goesOn reports whether an answer makes sense after a request: the next page comes behind it.
func (a *stockAnswer) goesOn(req stockRequest) bool {
	next, after := a.Next.Bytes(), req.After.Bytes()
	return a.Next.IsZero() || slices.Compare(next[:], after[:]) > 0
}

// stockFault reports a content that a node does not have as the log says.
func (f *fsck) stockFault(id meta.NodeID, fault stockFault) error {
	c, err := f.db.Content(fault.Content)
	if errors.Is(err, meta.ErrNotFound) {
		return nil // nothing needs it any more
	}
	if err != nil {
		return err
	}
	what := f.ofContent(admin.FsckDamaged, c)
	what.Node = uint32(id)
	source, err := f.elsewhere(c.ID, id)
	if err != nil {
		return err
	}
	if fault.Absent {
		what.Kind = admin.FsckMissing
	}
	switch {
	case !source:
		what.Text = fault.Why + "; no other node that is up holds it"
	case fault.Absent:
		what.Text = fault.Why + ", and the log says that it is there: start the node again, and it is fetched"
	default:
		what.Text, what.Heals = fault.Why+"; it is mended from another node", true
	}
	return f.found(what)
}

// elsewhere reports whether a node that is up, other than one, holds a content.
func (f *fsck) elsewhere(id meta.ContentID, but meta.NodeID) (bool, error) {
	holders, err := f.db.Holders(id)
	if errors.Is(err, meta.ErrNotFound) {
		return false, nil
	}
	nodes := f.members.book().nodes
	return slices.ContainsFunc(holders, func(h meta.NodeID) bool {
		return h != but && nodes[h].State == meta.NodeUp
	}), err
}

// sayUnneeded reports contents that nothing needs and that are not about to be deleted.
func (f *fsck) sayUnneeded(line *admin.FsckNode, stuck int) error {
	if stuck == 0 {
		return nil
	}
	return f.found(admin.FsckFinding{Kind: admin.FsckUnneeded, Node: line.Node, Count: stuck,
		Text: "nothing needs them, and they are not about to be deleted: start the node again, and it deletes them"})
}

// strayOf reports what a node has not published. What a program is still writing is left out.
func (f *fsck) strayOf(id meta.NodeID) error {
	s, err := f.strays.of(f.ctx, id)
	if err != nil {
		return &notAsked{err}
	}
	if !f.scope.everything() {
		s.First = slices.DeleteFunc(s.First, func(u admin.Unpublished) bool { return !below(u.Path, f.scope.path) })
	}
	listed := 0
	for _, u := range s.First {
		if u.Reason == openForWriting {
			continue
		}
		listed++
		what := admin.FsckFinding{Kind: admin.FsckUnpublished, Node: uint32(id), Path: u.Path, Content: u.ID,
			SizeBytes: u.SizeBytes, Count: 1,
			Text: u.Reason + ": 'rdmcfs restore --content " + u.ID + "' on that node publishes the bytes or drops them"}
		if err := f.found(what); err != nil {
			return err
		}
	}
	if more := s.Count - s.Open - listed; more > 0 && f.scope.everything() {
		return f.found(admin.FsckFinding{Kind: admin.FsckUnpublished, Node: uint32(id), Count: more,
			Text: "they were never published: 'rdmcfs versions' on that node lists them all"})
	}
	return nil
}
