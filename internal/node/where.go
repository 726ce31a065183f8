package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// holdings tells which nodes have a file.
type holdings struct {
	db       *meta.DB
	members  *members
	paths    *paths
	policies *policies
	nodes    *nodeReport
	damage   *damage
}

// where returns the nodes that hold a file's current version.
func (hs *holdings) where(_ context.Context, req admin.WhereRequest) (admin.Where, error) {
	ino, clean, err := hs.paths.lookup(req.Path)
	if err != nil {
		return admin.Where{}, err
	}
	if ino.Kind != meta.KindFile {
		return admin.Where{}, admin.Errorf(admin.CodeInvalid, "%s is not a regular file", clean)
	}
	out := admin.Where{Path: clean, Inode: uint64(ino.Ino), Version: ino.Version, Content: ino.Content.String(),
		SizeBytes: ino.Size}
	if out.Policy, err = hs.policies.of(ino.Policy); err != nil {
		return out, err
	}
	if !ino.Content.IsZero() {
		c, err := hs.db.Content(ino.Content)
		if err != nil {
			return out, err
		}
		out.Root = fmt.Sprintf("%x", c.Root)
	}
	nodes, err := hs.holdersOf(ino)
	if err != nil {
		return out, err
	}
	for _, m := range nodes {
		h, err := hs.holder(m, ino.Content)
		if err != nil {
			return out, err
		}
		out.Holders = append(out.Holders, h)
	}
	return out, nil
}

// holdersOf lists the nodes that are to hold a file's current version, and the other nodes that hold it: nodes that are
// draining, or that stood in for another.
func (hs *holdings) holdersOf(ino meta.Inode) ([]meta.NodeID, error) {
	nodes, err := hs.db.Members(ino.Policy, ino.Ino)
	if err != nil || ino.Content.IsZero() {
		return nodes, err
	}
	holders, err := hs.db.Holders(ino.Content)
	for _, h := range holders {
		if !slices.Contains(nodes, h) {
			nodes = append(nodes, h)
		}
	}
	return nodes, err
}

func (hs *holdings) holder(m meta.NodeID, c meta.ContentID) (admin.Holder, error) {
	rec := hs.members.book().nodes[m]
	h := admin.Holder{Node: uint32(m), Name: rec.Name, Holds: true}
	if c.IsZero() {
		return h, nil // nothing to hold
	}
	damaged := m == hs.damage.self && hs.damage.has(c) // the log may not know yet: this is looked at first
	holds, err := hs.db.Holds(m, c)
	if err != nil {
		return h, err
	}
	if h.Holds = holds && !damaged; h.Holds {
		return h, nil
	}
	if holds {
		h.Reason = meta.OwedLost.String()
		return h, nil
	}
	content, err := hs.db.Content(c)
	h.Reason = hs.nodes.owedReason(rec, content)
	return h, err
}
