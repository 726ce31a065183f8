package node

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
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

const (
	waitPoll     = 100 * time.Millisecond
	versionsMost = admin.VersionsMost
)

// handlers are the answers to the command line.
func (n *node) handlers() admin.Handlers {
	return admin.Handlers{
		Status: n.status, Watch: n.watch,
		Mount: func(ctx context.Context, req admin.MountRequest) (admin.Mount, error) {
			return n.mounts.mount(ctx, req)
		},
		Unmount:   func(ctx context.Context, req admin.UnmountRequest) error { return n.mounts.unmount(ctx, req) },
		MountWait: func(ctx context.Context, req admin.MountWaitRequest) error { return n.mounts.wait(ctx, req.Dir) },
		Where:     n.where, Versions: n.versions, Restore: n.restore, Policy: n.policy, Wait: n.wait,
		Token: n.token, Evict: n.evict, Drain: n.drain,
		Stop:    func(context.Context) error { n.cancel(); return nil },
		Metrics: n.metricsHandler(),
	}
}

// where returns the nodes that hold a file's current version.
func (n *node) where(_ context.Context, req admin.WhereRequest) (admin.Where, error) {
	ino, clean, err := n.lookup(req.Path)
	if err != nil {
		return admin.Where{}, err
	}
	if ino.Kind != meta.KindFile {
		return admin.Where{}, admin.Errorf(admin.CodeInvalid, "%s is not a regular file", clean)
	}
	out := admin.Where{Path: clean, Inode: uint64(ino.Ino), Version: ino.Version, Content: ino.Content.String(),
		SizeBytes: ino.Size}
	if out.Policy, err = n.policyOf(ino.Policy); err != nil {
		return out, err
	}
	if !ino.Content.IsZero() {
		c, err := n.db.Content(ino.Content)
		if err != nil {
			return out, err
		}
		out.Root = fmt.Sprintf("%x", c.Root)
	}
	nodes, err := n.holdersOf(ino)
	if err != nil {
		return out, err
	}
	for _, m := range nodes {
		h, err := n.holder(m, ino.Content)
		if err != nil {
			return out, err
		}
		out.Holders = append(out.Holders, h)
	}
	return out, nil
}

// holdersOf lists the nodes that are to hold a file's current version, and the other nodes that hold it: nodes that are
// draining, or that stood in for another.
func (n *node) holdersOf(ino meta.Inode) ([]meta.NodeID, error) {
	nodes, err := n.db.Members(ino.Policy, ino.Ino)
	if err != nil || ino.Content.IsZero() {
		return nodes, err
	}
	holders, err := n.db.Holders(ino.Content)
	for _, h := range holders {
		if !slices.Contains(nodes, h) {
			nodes = append(nodes, h)
		}
	}
	return nodes, err
}

func (n *node) holder(m meta.NodeID, c meta.ContentID) (admin.Holder, error) {
	rec := n.members.book().nodes[m]
	h := admin.Holder{Node: uint32(m), Name: rec.Name, Holds: true}
	if c.IsZero() {
		return h, nil // nothing to hold
	}
	holds, err := n.db.Holds(m, c)
	if err != nil {
		return h, err
	}
	if h.Holds = holds; holds {
		return h, nil
	}
	content, err := n.db.Content(c)
	h.Reason = n.owedReason(rec, content)
	return h, err
}

// versions lists what is kept of a file, what was removed below a directory, or all conflict losers and orphans.
func (n *node) versions(_ context.Context, req admin.VersionsRequest) ([]admin.Version, error) {
	var contents []meta.Content
	var err error
	switch {
	case req.Removed:
		return removedFiles{n}.list(req.Path)
	case req.Path == "":
		contents, err = n.db.Kept(versionsMost)
	default:
		var ino meta.Inode
		if ino, _, err = n.lookup(req.Path); err == nil && ino.Kind == meta.KindDir {
			return removedFiles{n}.list(req.Path)
		}
		if err == nil {
			contents, err = n.db.Versions(ino.Ino)
		}
	}
	if err != nil {
		return nil, err
	}
	out := make([]admin.Version, 0, len(contents))
	for _, c := range contents {
		out = append(out, n.version(c))
	}
	if req.Path == "" {
		for _, u := range n.unpublished() {
			out = append(out, admin.Version{Path: u.Path, Content: u.ID, SizeBytes: u.SizeBytes, Modified: u.Modified,
				Writer: uint32(n.id.Node), State: "unpublished", Reason: u.Reason})
		}
	}
	return out, nil
}

var contentWords = map[meta.ContentState]string{
	meta.ContentCurrent: "current", meta.ContentRetained: "retained", meta.ContentConflict: "conflict",
	meta.ContentOrphan: "orphan", meta.ContentRetired: "retired",
	meta.ContentRemoved: "removed",
}

func (n *node) version(c meta.Content) admin.Version {
	out := admin.Version{
		Version: c.Version, Content: c.ID.String(), SizeBytes: c.Size, Modified: time.Unix(0, c.Mtime), Index: c.Published,
		Writer: uint32(c.ID.Node), State: contentWords[c.State], Reason: c.Reason,
	}
	if c.Expires != 0 {
		out.Expires = time.Unix(0, c.Expires)
	}
	if p, err := n.inodePath(c.Ino); err == nil {
		out.Path = p
	}
	return out
}

// restore makes a kept version current, brings a removed file back, or publishes unpublished bytes; or it drops them.
func (n *node) restore(
	ctx context.Context, req admin.RestoreRequest, tell func(admin.Progress),
) (admin.Version, error) {
	if u, ok := n.findUnpublished(req); ok {
		if req.Drop {
			return admin.Version{Path: n.pathOf(u), Content: unpublishedID(u), State: "dropped"}, n.store.DropStaging(u.Token)
		}
		return n.publishStaged(ctx, u, req.As, tell)
	}
	if f, named, err := (removedFiles{n}).find(req); err != nil {
		return admin.Version{}, err
	} else if named {
		return removedFiles{n}.restore(ctx, f, req)
	}
	if req.Drop {
		return admin.Version{}, admin.Errorf(admin.CodeNotFound,
			"no unpublished bytes named %q; kept versions expire by themselves", req.Content+req.Path)
	}
	c, err := n.findVersion(req)
	if err != nil {
		return admin.Version{}, err
	}
	op := &meta.Restore{Ino: c.Ino, Content: c.ID}
	if req.As != "" {
		if old, err := n.db.Inode(c.Ino); err == nil {
			return n.restoreBeside(ctx, c, old, req.As, tell)
		}
		dir, name, err := n.parentOf(req.As)
		if err != nil {
			return admin.Version{}, err
		}
		op.Parent, op.Name = dir.Ino, name
	}
	before, _ := n.db.Inode(c.Ino) // none where the file is gone
	res, err := n.newNames.Propose(ctx, op, n.proposer.propose)
	if err == nil && res.Errno != 0 {
		err = n.restoreRefused(res.Errno, req.As)
	}
	if err != nil {
		return admin.Version{}, adminError("restore", err)
	}
	if c, err = n.db.Content(c.ID); err != nil {
		return admin.Version{}, err
	}
	return n.displacing(n.version(c), before.Content), nil
}

// displacing adds to a version that was restored which one it replaced, if that is kept.
func (n *node) displacing(v admin.Version, before meta.ContentID) admin.Version {
	old, err := n.db.Content(before)
	if err == nil && (old.State == meta.ContentConflict || old.State == meta.ContentRetained) {
		v.Displaced = old.Version
	}
	return v
}

// restoreBeside publishes a copy of a kept version under another name, with owner and mode of its file, which stays
// as it is.
func (n *node) restoreBeside(
	ctx context.Context, c meta.Content, old meta.Inode, as string, tell func(admin.Progress),
) (admin.Version, error) {
	dir, name, err := n.parentOf(as)
	if err != nil {
		return admin.Version{}, err
	}
	r, err := n.repl.OpenContent(ctx, c.ID)
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
	return n.publishVersion(ctx, push, tell)
}

// restoreRefused says why the log did not bring a version back, under a path.
func (n *node) restoreRefused(errno syscall.Errno, as string) error {
	switch errno {
	case syscall.ENOENT:
		return admin.Errorf(admin.CodeNotFound, "the file is gone: name a path for the version with --as")
	case syscall.EEXIST:
		if _, _, err := n.lookup(as); admin.CodeOf(err) == admin.CodeNotFound { // mounts here do not show it
			return admin.Errorf(admin.CodeExists, "a program on another node has created a file of that name and has not "+
				"closed it yet: wait for that, or give another path with --as")
		}
		return admin.Errorf(admin.CodeExists, "a file of that name exists: remove it, or give another path with --as")
	}
	return errno
}

func (n *node) findUnpublished(req admin.RestoreRequest) (content.Unpublished, bool) {
	for _, u := range n.staging.unpublished() {
		if unpublishedID(u) == req.Content {
			return u, true
		}
	}
	return content.Unpublished{}, false
}

// findVersion finds the content that a request names.
func (n *node) findVersion(req admin.RestoreRequest) (meta.Content, error) {
	if req.Content != "" {
		id, err := meta.ParseContentID(req.Content)
		if strings.HasPrefix(req.Content, stagedID) {
			return meta.Content{}, admin.Errorf(admin.CodeNotFound, "no unpublished bytes named %q on this node: "+
				"'rdmcfs versions' lists them, on the node where they were written", req.Content)
		}
		if err != nil {
			return meta.Content{}, admin.Errorf(admin.CodeInvalid, "%v, or the id of unpublished bytes of this node", err)
		}
		c, err := n.db.Content(id)
		if errors.Is(err, meta.ErrNotFound) {
			return c, admin.Errorf(admin.CodeNotFound, "no version %s is kept", req.Content)
		}
		return c, err
	}
	ino, clean, err := n.lookup(req.Path)
	if err != nil {
		return meta.Content{}, err
	}
	kept, err := n.db.Versions(ino.Ino)
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

// parentOf is the directory of a path that need not exist, and the last name.
func (n *node) parentOf(name string) (meta.Inode, string, error) {
	clean := path.Clean("/" + name)
	dir, base := path.Split(clean)
	if base == "" {
		return meta.Inode{}, "", admin.Errorf(admin.CodeInvalid, "%q names no file", name)
	}
	ino, _, err := n.lookup(dir)
	if err == nil && ino.Kind != meta.KindDir {
		err = admin.Errorf(admin.CodeInvalid, "%s is not a directory", dir)
	}
	return ino, base, err
}

// publishStaged publishes bytes that a killed program or daemon left, under their old name or another one.
func (n *node) publishStaged(
	ctx context.Context, u content.Unpublished, as string, tell func(admin.Progress),
) (admin.Version, error) {
	push, done, err := n.stagedPush(u)
	if err != nil {
		return admin.Version{}, err
	}
	push.Path = orDefault(as, n.pathOf(u))
	before, err := n.aimStaged(&push, u, as)
	if err != nil {
		return admin.Version{}, errors.Join(err, done(false))
	}
	push.Attr.Mask |= meta.AttrMtime
	push.Attr.Mtime = u.Modified.UnixNano()
	v, err := n.publishVersion(ctx, push, tell)
	return n.displacing(v, before), errors.Join(err, done(err == nil))
}

// restoreTells is how often a restore reports its progress.
const restoreTells = 500 * time.Millisecond

// tellRestore reports how far the transfer of a path is, until the function that it returns is called.
func (n *node) tellRestore(path string, tell func(admin.Progress)) (stop func()) {
	ctx, cancel := context.WithCancel(n.ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		for range ticks(ctx, restoreTells) {
			for _, t := range n.repl.Transfers() {
				if t.Path == path && !t.CatchUp {
					tell(slowest(t))
				}
			}
		}
	})
	return func() {
		cancel()
		telling.Wait()
	}
}

// slowest is how much the member that has the least has.
func slowest(t replicate.TransferStatus) admin.Progress {
	p := admin.Progress{Bytes: t.Stream, SizeBytes: t.Stream}
	for _, m := range t.Members {
		p.Bytes = min(p.Bytes, m.Bytes)
	}
	return p
}

// publishVersion publishes what is restored.
func (n *node) publishVersion(
	ctx context.Context, push replicate.Push, tell func(admin.Progress),
) (admin.Version, error) {
	stop := n.tellRestore(push.Path, tell)
	out, err := n.repl.Publish(ctx, push)
	stop()
	if errors.Is(err, syscall.EEXIST) {
		err = n.restoreRefused(syscall.EEXIST, push.Path)
	}
	if err != nil {
		return admin.Version{}, adminError("publish", err)
	}
	c, err := n.db.Content(out.Content)
	if err != nil {
		c = unlisted(out, push) // it is published all the same
	}
	v := n.version(c)
	v.Writer = uint32(n.id.Node)
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

// stagedPush opens staged bytes. done drops them when they are published, and leaves them otherwise. Bytes that the
// disk has not taken are never opened again.
func (n *node) stagedPush(u content.Unpublished) (replicate.Push, func(published bool) error, error) {
	if !u.Base.IsZero() {
		o, err := n.store.OpenOverlay(u.Token)
		if err != nil {
			return replicate.Push{}, nil, err
		}
		src, note := fs.WrittenOut(o, o.File())
		push := replicate.Push{Size: o.Size(), Source: src, Data: []replicate.Extent{{Length: o.Size()}}}
		return push, dropOrClose(o, note), nil
	}
	st, err := n.store.OpenStaging(u.Token)
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
func (n *node) aimStaged(push *replicate.Push, u content.Unpublished, as string) (before meta.ContentID, err error) {
	if as == "" {
		if ino, err := n.db.Inode(meta.Ino(u.Origin.Ino)); err == nil {
			push.Ino, push.Base = ino.Ino, meta.ContentIDFromBytes(u.Base)
			return ino.Content, nil
		}
	}
	dir, name, err := n.restorePlace(u, as)
	if err != nil {
		return before, err
	}
	const mode = 0o600 // nobody else's eyes until the owner decides
	push.LinkParent, push.LinkName = dir.Ino, name
	push.Attr.Mask, push.Attr.Mode = meta.AttrMode, mode
	return before, nil
}

// restorePlace is the directory and name for staged bytes whose inode is gone: what as says, else the directory that
// they were written in, or the root if that is gone too.
func (n *node) restorePlace(u content.Unpublished, as string) (meta.Inode, string, error) {
	if as != "" {
		return n.parentOf(as)
	}
	name := orDefault(u.Origin.Name, unpublishedID(u))
	dir, err := n.db.Inode(meta.Ino(u.Origin.Parent))
	if err == nil && dir.Kind == meta.KindDir {
		return dir, name, nil
	}
	dir, err = n.db.Inode(meta.RootIno)
	return dir, name, err
}

// wait returns when nothing is owed any more, or the time is up. What was acknowledged before the call counts.
func (n *node) wait(ctx context.Context, req admin.WaitRequest) (admin.WaitResult, error) {
	var over <-chan time.Time
	limit := ctx
	if req.Timeout > 0 {
		timer := time.NewTimer(req.Timeout)
		defer timer.Stop()
		over = timer.C
		var cancel context.CancelFunc
		limit, cancel = context.WithTimeout(ctx, req.Timeout)
		defer cancel()
	}
	if err := hear(limit, n); err != nil {
		return admin.WaitResult{}, err
	}
	tick := time.NewTicker(waitPoll)
	defer tick.Stop()
	for {
		owed, lost, err := n.stillOwed(req)
		if err != nil || len(owed) == 0 {
			return admin.WaitResult{Done: err == nil, Lost: lost}, err
		}
		select {
		case <-ctx.Done():
			return admin.WaitResult{}, ctx.Err()
		case <-n.ctx.Done():
			return admin.WaitResult{}, admin.Errorf(admin.CodeUnavailable, "the node ends")
		case <-over:
			return admin.WaitResult{Nodes: owed, Lost: lost}, nil
		case <-tick.C:
		}
	}
}

// hear waits until this node knows what the log had at the call. A node that is cut off knows it when it is back.
func hear(ctx context.Context, n *node) error {
	for {
		raft, err := n.raft.get()
		if err == nil {
			_, err = raft.ReadBarrier(ctx)
		}
		switch {
		case err == nil:
			return nil
		case n.ctx.Err() != nil:
			return admin.Errorf(admin.CodeUnavailable, "the node ends")
		case !pause(ctx, waitPoll):
			return admin.Errorf(admin.CodeUnavailable, "what is owed now is not known here: 'rdmcfs status' shows which "+
				"voters are missing (%v)", err)
		}
	}
}

// stillOwed lists the nodes that a wait waits for, and counts what no node has any more.
func (n *node) stillOwed(req admin.WaitRequest) (out []admin.Node, lost int, err error) {
	nodes, err := n.nodeStatus(n.raft.status())
	if err != nil {
		return nil, 0, err
	}
	nowhere, err := n.gone.of(n.db)
	if err != nil {
		return nil, 0, err
	}
	lacking := func(admin.Node) bool { return true }
	if req.Path != "" {
		w, err := n.where(n.ctx, admin.WhereRequest{Path: req.Path})
		if err != nil {
			return nil, 0, err
		}
		lacks := map[uint32]bool{}
		for _, h := range w.Holders {
			lacks[h.Node] = !h.Holds
		}
		lacking = func(line admin.Node) bool { return lacks[line.ID] }
	}
	for _, line := range nodes {
		if req.Path == "" && line.OwedCount == 0 || !asked(req.Nodes, line.ID) || !lacking(line) {
			continue
		}
		if req.Path == "" {
			if only, err := owedLostOnly(n.db, line, nowhere); only || err != nil {
				if err != nil {
					return nil, 0, err
				}
				continue
			}
		}
		out = append(out, line)
	}
	return out, len(nowhere), nil
}

// owedLostOnly reports whether everything that a node is owed is contents that no node has.
func owedLostOnly(db interface {
	OwedTo(meta.NodeID, uint64, int) ([]meta.Owed, error)
}, line admin.Node, nowhere []meta.Content) (bool, error) {
	if line.OwedCount > len(nowhere) {
		return false, nil
	}
	lost := make(map[meta.ContentID]bool, len(nowhere))
	for _, c := range nowhere {
		lost[c.ID] = true
	}
	owed, err := db.OwedTo(meta.NodeID(line.ID), 0, len(nowhere)+1)
	for _, o := range owed {
		if !lost[o.Content] {
			return false, err
		}
	}
	return err == nil, err
}

func asked(nodes []uint32, id uint32) bool {
	for _, n := range nodes {
		if n == id {
			return true
		}
	}
	return len(nodes) == 0
}

// below reports whether p is dir or lies under it; "" and "/" hold everything.
func below(p, dir string) bool {
	dir = strings.TrimSuffix(path.Clean("/"+dir), "/")
	p = path.Clean("/" + p)
	return p == dir || strings.HasPrefix(p, dir+"/")
}
