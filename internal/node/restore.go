package node

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// restorer makes kept versions current, brings removed files back, and publishes unpublished bytes.
type restorer struct {
	ctx      context.Context // ends with the node
	db       *meta.DB
	store    *content.Store
	staging  *staging
	versions *versions
	paths    *paths
	proposer *proposer
	repl     *replicate.Replicator
}

// restore makes a kept version current, brings a removed file back, or publishes unpublished bytes; or it drops them.
func (rs *restorer) restore(
	ctx context.Context, req admin.RestoreRequest, tell func(admin.Progress),
) (admin.Version, error) {
	if u, ok := rs.findUnpublished(req); ok {
		if req.Drop {
			v := admin.Version{Path: rs.paths.ofStaged(u), Content: unpublishedID(u), State: "dropped"}
			return v, rs.store.DropStaging(u.Token)
		}
		return rs.publishStaged(ctx, u, req.As, tell)
	}
	if f, named, err := rs.versions.removed.find(req); err != nil {
		return admin.Version{}, err
	} else if named {
		return rs.versions.removed.restore(ctx, f, req)
	}
	if req.Drop {
		return admin.Version{}, admin.Errorf(admin.CodeNotFound,
			"no unpublished bytes named %q; kept versions expire by themselves", req.Content+req.Path)
	}
	c, err := rs.findVersion(req)
	if err != nil {
		return admin.Version{}, err
	}
	op := &meta.Restore{Ino: c.Ino, Content: c.ID}
	if req.As != "" {
		if old, err := rs.db.Inode(c.Ino); err == nil {
			return rs.restoreBeside(ctx, c, old, req.As, tell)
		}
		dir, name, err := rs.paths.parent(req.As)
		if err != nil {
			return admin.Version{}, err
		}
		op.Parent, op.Name = dir.Ino, name
	}
	before, _ := rs.db.Inode(c.Ino) // none where the file is gone
	res, err := rs.proposer.request(ctx, op)
	if err == nil && res.Errno != 0 {
		err = rs.paths.refused(res.Errno, req.As)
	}
	if err != nil {
		return admin.Version{}, adminError("restore", err)
	}
	if c, err = rs.db.Content(c.ID); err != nil {
		return admin.Version{}, err
	}
	return rs.versions.displacing(rs.versions.line(c), before.Content), nil
}

// restoreBeside publishes a copy of a kept version under another name, with owner and mode of its file, which stays
// as it is.
func (rs *restorer) restoreBeside(
	ctx context.Context, c meta.Content, old meta.Inode, as string, tell func(admin.Progress),
) (admin.Version, error) {
	dir, name, err := rs.paths.parent(as)
	if err != nil {
		return admin.Version{}, err
	}
	r, err := rs.repl.OpenContent(ctx, c.ID)
	if err != nil {
		return admin.Version{}, adminError("read the version", err)
	}
	defer r.Close()
	push := replicate.Push{Path: as, LinkParent: dir.Ino, LinkName: name, Size: c.Size, Holes: c.Holes, Source: r}
	push.Data = []replicate.Extent{{Length: c.Size}}
	if fd := r.Fd(); fd >= 0 {
		if push.Data, err = dataExtents(fd, c.Size); err != nil {
			return admin.Version{}, err
		}
	}
	push.Attr = meta.AttrPatch{Mode: old.Mode, UID: old.UID, GID: old.GID, Mtime: c.Mtime}
	push.Attr.Mask = meta.AttrMode | meta.AttrUID | meta.AttrGID | meta.AttrMtime
	return rs.publishVersion(ctx, push, tell)
}

func (rs *restorer) findUnpublished(req admin.RestoreRequest) (content.Unpublished, bool) {
	for _, u := range rs.staging.unused() {
		if unpublishedID(u) == req.Content {
			return u, true
		}
	}
	return content.Unpublished{}, false
}

// findVersion finds the content that a request names.
func (rs *restorer) findVersion(req admin.RestoreRequest) (meta.Content, error) {
	if req.Content != "" {
		id, err := meta.ParseContentID(req.Content)
		if strings.HasPrefix(req.Content, stagedID) {
			return meta.Content{}, admin.Errorf(admin.CodeNotFound, "no unpublished bytes named %q on this node: "+
				"'rdmcfs versions' lists them, on the node where they were written", req.Content)
		}
		if err != nil {
			return meta.Content{}, admin.Errorf(admin.CodeInvalid, "%v, or the id of unpublished bytes of this node", err)
		}
		c, err := rs.db.Content(id)
		if errors.Is(err, meta.ErrNotFound) {
			return c, admin.Errorf(admin.CodeNotFound, "no version %s is kept", req.Content)
		}
		return c, err
	}
	ino, clean, err := rs.paths.lookup(req.Path)
	if err != nil {
		return meta.Content{}, err
	}
	kept, err := rs.db.Versions(ino.Ino)
	if err != nil {
		return meta.Content{}, err
	}
	for _, c := range kept {
		if c.Version == req.Version {
			return c, nil
		}
	}
	return meta.Content{}, admin.Errorf(admin.CodeNotFound, "version %d of %s is not kept: see 'rdmcfs versions'",
		req.Version, clean)
}

// publishStaged publishes bytes that a killed program or daemon left, under their old name or another one.
func (rs *restorer) publishStaged(
	ctx context.Context, u content.Unpublished, as string, tell func(admin.Progress),
) (admin.Version, error) {
	push, done, err := rs.stagedPush(u)
	if err != nil {
		return admin.Version{}, err
	}
	push.Path = orDefault(as, rs.paths.ofStaged(u))
	before, err := rs.aimStaged(&push, u, as)
	if err != nil {
		return admin.Version{}, errors.Join(err, done(false))
	}
	push.Attr.Mask |= meta.AttrMtime
	push.Attr.Mtime = u.Modified.UnixNano()
	v, err := rs.publishVersion(ctx, push, tell)
	return rs.versions.displacing(v, before), errors.Join(err, done(err == nil))
}

// stagedPush opens staged bytes. done drops them when they are published, and leaves them otherwise. Bytes that the
// disk has not taken are never opened again.
func (rs *restorer) stagedPush(u content.Unpublished) (replicate.Push, func(published bool) error, error) {
	if !u.Base.IsZero() {
		o, err := rs.store.OpenOverlay(u.Token)
		if err != nil {
			return replicate.Push{}, nil, err
		}
		src, note := fs.WrittenOut(o, o.File())
		push := replicate.Push{Size: o.Size(), Source: src, Data: []replicate.Extent{{Length: o.Size()}}}
		return push, dropOrClose(o, note), nil
	}
	st, err := rs.store.OpenStaging(u.Token)
	if err != nil {
		return replicate.Push{}, nil, err
	}
	file := fs.NewPlainFile(st.File())
	snap, err := file.Snapshot()
	if err != nil {
		return replicate.Push{}, nil, errors.Join(err, st.Close())
	}
	push := replicate.Push{Size: snap.Size, Holes: snap.Holes, Source: snap.Source, Data: snap.Data}
	return push, dropOrClose(st, file.NoteFailure), nil
}

func dropOrClose(st stagedBytes, note func(fs.Refuser) error) func(bool) error {
	return func(published bool) error {
		if published {
			return st.Drop()
		}
		return errors.Join(note(st), st.Close())
	}
}

// stagedBytes are staged bytes that were opened again.
type stagedBytes interface {
	fs.Refuser
	Drop() error
	Close() error
}

// aimStaged says where staged bytes go: to the inode that they belong to, or a new one, which gets its name with the
// publish. The version that the inode has now, before, is kept unless it is known to be what they were written over.
func (rs *restorer) aimStaged(
	push *replicate.Push, u content.Unpublished, as string,
) (before meta.ContentID, err error) {
	if as == "" {
		if ino, err := rs.db.Inode(meta.Ino(u.Origin.Ino)); err == nil {
			push.Ino, push.Base = ino.Ino, meta.ContentIDFromBytes(u.Origin.Over)
			return ino.Content, nil
		}
	}
	dir, name, err := rs.place(u, as)
	if err != nil {
		return before, err
	}
	const mode = 0o600 // nobody else's eyes until the owner decides
	push.LinkParent, push.LinkName = dir.Ino, name
	push.Attr.Mask, push.Attr.Mode = meta.AttrMode, mode
	return before, nil
}

// place is the directory and name for staged bytes whose inode is gone: what as says, else the directory that
// they were written in, or the root if that is gone too.
func (rs *restorer) place(u content.Unpublished, as string) (meta.Inode, string, error) {
	if as != "" {
		return rs.paths.parent(as)
	}
	name := orDefault(u.Origin.Name, unpublishedID(u))
	dir, err := rs.db.Inode(meta.Ino(u.Origin.Parent))
	if err == nil && dir.Kind == meta.KindDir {
		return dir, name, nil
	}
	dir, err = rs.db.Inode(meta.RootIno)
	return dir, name, err
}

// publishVersion publishes what is restored.
func (rs *restorer) publishVersion(
	ctx context.Context, push replicate.Push, tell func(admin.Progress),
) (admin.Version, error) {
	stop := rs.report(push.Path, tell)
	out, err := rs.repl.Publish(ctx, push)
	stop()
	if errors.Is(err, syscall.EEXIST) {
		err = rs.paths.refused(syscall.EEXIST, push.Path)
	}
	if err != nil {
		return admin.Version{}, adminError("publish", err)
	}
	c, err := rs.db.Content(out.Content)
	if err != nil {
		c = unlisted(out, push) // it is published all the same
	}
	v := rs.versions.line(c)
	v.Writer = uint32(rs.versions.self)
	return v, nil
}

// unlisted is what was published and is not in the log's list of contents: an empty file, or one that another version
// has replaced already.
func unlisted(out replicate.Outcome, push replicate.Push) meta.Content {
	c := meta.Content{ID: out.Content, Ino: out.Result.Ino, Version: out.Result.Version, Size: push.Size,
		Mtime:     push.Attr.Mtime,
		Published: out.Result.Index, State: meta.ContentCurrent}
	if push.Size > 0 {
		c.State = meta.ContentRetired
	}
	return c
}

// restoreTells is how often a restore reports its progress.
const restoreTells = 500 * time.Millisecond

// report reports how far the transfer of a path is, until the function that it returns is called.
func (rs *restorer) report(path string, tell func(admin.Progress)) (stop func()) {
	ctx, cancel := context.WithCancel(rs.ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		for range ticks(ctx, restoreTells) {
			for _, t := range rs.repl.Transfers() {
				if t.Path != path || t.CatchUp {
					continue
				}
				if p, some := slowest(t); some {
					tell(p)
				}
			}
		}
	})
	return func() {
		cancel()
		telling.Wait()
	}
}

// slowest is how much the member that has the least has. Nobody waits for members that are out; false if all are.
func slowest(t replicate.TransferStatus) (p admin.Progress, some bool) {
	p = admin.Progress{Bytes: t.Stream, SizeBytes: t.Stream}
	for _, m := range t.Members {
		if m.State != "out" {
			p.Bytes, some = min(p.Bytes, m.Bytes), true
		}
	}
	return p, some
}
