package node

import (
	"context"
	"fmt"
	"path"

	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// fscks compare names, contents and nodes when somebody asks for it. They change nothing by themselves. Damage that
// they meet is mended as after any read.
type fscks struct {
	self    meta.NodeID
	db      *meta.DB
	paths   *paths
	members *members
	peers   *control.Peers
	strays  *strayFiles
	stock   *stock
	compare func(context.Context) (own mark, others map[meta.NodeID]digestAnswer)
}

// fsck is a check under way.
type fsck struct {
	*fscks
	ctx    context.Context
	req    admin.FsckRequest
	scope  *scope
	tell   func(admin.Progress)
	take   func(admin.FsckFinding) error
	result admin.FsckResult
}

// fsck checks the names, then where contents are, then what each node has.
func (fs *fscks) fsck(
	ctx context.Context, req admin.FsckRequest, tell func(admin.Progress), take func(admin.FsckFinding) error,
) (admin.FsckResult, error) {
	in, err := scopeOf(fs.db, fs.paths, req.Path)
	if err != nil {
		return admin.FsckResult{}, err
	}
	f := &fsck{fscks: fs, ctx: ctx, req: req, scope: in, tell: tell, take: take}
	f.result.Nodes = []admin.FsckNode{}
	for _, step := range []func() error{f.names, f.nodes, f.copies, f.unmet, f.stocks} {
		if err := step(); err != nil {
			return f.result, err
		}
	}
	return f.result, nil
}

// found counts a finding and hands it on.
func (f *fsck) found(what admin.FsckFinding) error {
	if f.result.Findings++; !what.Heals {
		f.result.Left++
	}
	if what.Node != 0 {
		what.Name = f.members.name(meta.NodeID(what.Node))
	}
	return f.take(what)
}

// ofContent is a finding about a content.
func (f *fsck) ofContent(kind string, c meta.Content) admin.FsckFinding {
	return admin.FsckFinding{Kind: kind, Path: f.paths.ofContent(c), Version: c.Version, Content: c.ID.String(),
		SizeBytes: c.Size, Count: 1}
}

// names checks whether the state of this node fits together: all nodes have the same one if their digests are equal.
func (f *fsck) names() error {
	did, err := meta.Checks{DB: f.db}.Run(f.ctx, f.fault, func(records uint64) {
		f.tell(admin.Progress{Step: "records of the names", Count: records})
	})
	f.result.Index, f.result.Inodes = did.Index, did.Inodes
	return err
}

// fault reports a fault of the state.
func (f *fsck) fault(what meta.Fault) error {
	out := admin.FsckFinding{Kind: admin.FsckState, Text: what.Text, Count: 1}
	if !what.Content.IsZero() {
		out.Content = what.Content.String()
	}
	if !f.scope.everything() {
		if in, err := f.scope.hasInode(what.Ino); err != nil || !in || what.Ino == 0 {
			return err
		}
	}
	if what.Ino != 0 {
		var err error
		if out.Path, err = f.paths.of(what.Ino); err != nil {
			out.Path = fmt.Sprintf("inode %d", what.Ino)
		}
		if what.Name != "" {
			out.Path = path.Join(out.Path, what.Name)
		}
	}
	return f.found(out)
}

// nodes compares the states of all nodes, and lists the nodes that can't be asked.
func (f *fsck) nodes() error {
	f.tell(admin.Progress{Step: "digests"})
	records, err := f.db.Nodes()
	if err != nil {
		return err
	}
	own, answers := f.compare(f.ctx)
	if err := f.ctx.Err(); err != nil {
		return err
	}
	for _, rec := range records {
		line := admin.FsckNode{Node: uint32(rec.ID), Name: rec.Name, Digest: "unknown"}
		what := admin.FsckFinding{Kind: admin.FsckDigest, Node: line.Node, Count: 1}
		a, said := answers[rec.ID]
		switch {
		case rec.ID == f.self:
			line.Digest = "same"
		case rec.State != meta.NodeUp:
			what.Kind, what.Text = admin.FsckUnchecked, "it was not checked: it is "+stateWords[rec.State]
		case !said:
			what.Text, what.Heals = "it did not say which state it has: it is behind, or this node or that one took another "+
				"node's state just now", true
		case a.digest == own.digest:
			line.Digest = "same"
		default:
			line.Digest = "differs"
			what.Text = fmt.Sprintf("it has another state than node %d at log index %d: 'rdmcfs status' says what to do",
				f.self, own.index)
		}
		f.result.Nodes = append(f.result.Nodes, line)
		if line.Digest == "same" {
			continue
		}
		if err := f.found(what); err != nil {
			return err
		}
	}
	return nil
}

// unmet lists the policies that the present nodes can't meet.
func (f *fsck) unmet() error {
	list, err := unmetPolicies(f.db, f.members)
	if err != nil || !f.scope.everything() {
		return err
	}
	for _, text := range list {
		if err := f.found(admin.FsckFinding{Kind: admin.FsckPolicy, Text: text, Count: 1}); err != nil {
			return err
		}
	}
	return nil
}
