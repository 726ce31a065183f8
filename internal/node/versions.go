package node

import (
	"context"
	"errors"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// versions lists what is kept of files that were changed or removed, for the command line.
type versions struct {
	self    meta.NodeID
	db      *meta.DB
	paths   *paths
	staging *staging
	removed removedFiles
}

// versionsMost is how many versions are listed.
const versionsMost = admin.VersionsMost

var contentWords = map[meta.ContentState]string{
	meta.ContentCurrent: "current", meta.ContentRetained: "retained", meta.ContentConflict: "conflict",
	meta.ContentOrphan: "orphan", meta.ContentRetired: "retired",
	meta.ContentRemoved: "removed",
}

// list lists what is kept of a file, what was removed below a directory, or all conflict losers and orphans.
func (vs *versions) list(_ context.Context, req admin.VersionsRequest) ([]admin.Version, error) {
	var contents []meta.Content
	var err error
	switch {
	case req.Removed:
		return vs.removed.list(req.Path)
	case req.Path == "":
		contents, err = vs.db.Kept(versionsMost)
	default:
		var ino meta.Inode
		if ino, _, err = vs.paths.lookup(req.Path); err == nil && ino.Kind == meta.KindDir {
			return vs.removed.list(req.Path)
		}
		if err == nil {
			contents, err = vs.db.Versions(ino.Ino)
			if errors.Is(err, meta.ErrNotFound) {
				err = nil // the log does not know the file yet: it has no version
			}
		}
	}
	if err != nil {
		return nil, err
	}
	out := make([]admin.Version, 0, len(contents))
	for _, c := range contents {
		out = append(out, vs.line(c))
	}
	if req.Path == "" {
		for _, u := range vs.staging.list() {
			out = append(out, admin.Version{Path: u.Path, Content: u.ID, SizeBytes: u.SizeBytes, Modified: u.Modified,
				Writer: uint32(vs.self), State: "unpublished", Reason: u.Reason})
		}
	}
	return out, nil
}

func (vs *versions) line(c meta.Content) admin.Version {
	out := admin.Version{
		Version: c.Version, Content: c.ID.String(), SizeBytes: c.Size, Modified: time.Unix(0, c.Mtime), Index: c.Published,
		Writer: uint32(c.ID.Node), State: contentWords[c.State], Reason: c.Reason,
	}
	if c.Expires != 0 {
		out.Expires = time.Unix(0, c.Expires)
	}
	if p, err := vs.paths.of(c.Ino); err == nil {
		out.Path = p
	}
	return out
}

// displacing adds to a version that was restored which one it replaced, if that is kept.
func (vs *versions) displacing(v admin.Version, before meta.ContentID) admin.Version {
	old, err := vs.db.Content(before)
	if err == nil && (old.State == meta.ContentConflict || old.State == meta.ContentRetained) {
		v.Displaced = old.Version
	}
	return v
}
