package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// staging is what was staged here and not published.
type staging struct {
	self     meta.NodeID
	store    *content.Store
	versions published
	paths    *paths
	log      *slog.Logger

	differ map[comparison]bool // what was found to differ, by dropPublished, which runs once at a time
}

// published is what the log knows of versions.
type published interface {
	Inode(ino meta.Ino) (meta.Inode, error)
	Content(id meta.ContentID) (meta.Content, error)
	Holders(id meta.ContentID) ([]meta.NodeID, error)
}

// comparison is of staged bytes and a version.
type comparison struct {
	token    uint64
	size     int64
	modified time.Time
	version  meta.ContentID
}

// unused lists the staged bytes that no open file uses, and that are not known to be published.
func (s *staging) unused() []content.Unpublished {
	return slices.DeleteFunc(s.left(), func(u content.Unpublished) bool { return u.IsVersion })
}

// left lists the staged bytes that no open file uses.
func (s *staging) left() []content.Unpublished {
	list, err := s.store.Unused()
	if err != nil {
		s.log.Warn("list staged bytes", "err", err)
		return nil
	}
	return slices.DeleteFunc(list, func(u content.Unpublished) bool { return u.Open }) // since it was asked for
}

// list lists staged bytes that no open file has any more.
func (s *staging) list() []admin.Unpublished {
	var out []admin.Unpublished
	for _, u := range s.unused() {
		out = append(out, admin.Unpublished{
			ID: unpublishedID(u), Path: s.paths.ofStaged(u), SizeBytes: u.Size, Modified: u.Modified,
			Reason: orDefault(u.Reason, "the daemon ended while the file was being written"),
		})
	}
	return out
}

// compareEvery is how often staged bytes that no open file uses are compared with what is published.
const compareEvery = 30 * time.Second

// compareFirst bounds the comparison at a start that everything else waits for.
const compareFirst = 2 * time.Second

// compare drops what was published all the same, until ctx ends: a daemon that was killed leaves the staged bytes of
// each file that was open for writing, and of a publish whose outcome was not known. Which version is current, it knows
// only when the log has let the node in.
func (s *staging) compare(ctx context.Context) {
	s.dropPublished(ctx)
	for range ticks(ctx, compareEvery) {
		s.dropPublished(ctx)
	}
}

// dropPublished drops the staged bytes that are a version of their file which the log has.
func (s *staging) dropPublished(ctx context.Context) {
	differ := map[comparison]bool{}
	for _, u := range s.left() {
		for _, v := range s.versionsOf(u) {
			c := comparison{u.Token, u.Size, u.Modified, meta.ContentIDFromBytes(v.ID)}
			if !s.differ[c] && s.dropIf(ctx, u, v) {
				break
			}
			if ctx.Err() != nil {
				return
			}
			differ[c] = true
		}
	}
	s.differ = differ
}

// dropIf drops staged bytes if they are a version. What can't be read differs.
func (s *staging) dropIf(ctx context.Context, u content.Unpublished, v content.Version) bool {
	same, err := s.store.DropPublished(ctx, u.Token, v)
	switch {
	case same:
		s.log.Debug("staged bytes are published", "inode", u.Origin.Ino, "content", v.ID.String(), "err", err)
	case err != nil:
		s.log.Debug("staged bytes not compared", "inode", u.Origin.Ino, "err", err)
	}
	return same
}

// versionsOf lists the versions that staged bytes may be: the current one of their file, and the one that they were
// written over, if that is kept. A version that nobody has is left out: the staged bytes may be the last of it.
func (s *staging) versionsOf(u content.Unpublished) (list []content.Version) {
	over := meta.ContentIDFromBytes(u.Origin.Over)
	ino, err := s.versions.Inode(meta.Ino(u.Origin.Ino))
	if err == nil && ino.Version > 0 && ino.Size == 0 {
		list = append(list, content.Version{Root: content.Root(0, nil)})
	}
	for _, id := range []meta.ContentID{ino.Content, over} {
		c, err := s.versions.Content(id)
		if err == nil && c.Ino == meta.Ino(u.Origin.Ino) && s.isKept(c) {
			list = append(list, content.Version{ID: id.Bytes(), Size: c.Size, Root: c.Root})
		}
	}
	return list
}

// isKept reports whether the bytes of a version are somewhere, as far as is known: in the log, on another node, or here
// and whole.
func (s *staging) isKept(c meta.Content) bool {
	if c.Inline {
		return true
	}
	holders, err := s.versions.Holders(c.ID)
	if err != nil {
		return false
	}
	if slices.ContainsFunc(holders, func(n meta.NodeID) bool { return n != s.self }) {
		return true
	}
	info, err := s.store.Stat(c.ID.Bytes())
	return err == nil && !info.Damaged && len(holders) > 0
}

// sweep drops what a crash left of files that were opened and never written, or had no name.
func (s *staging) sweep() error {
	var errs error
	for _, u := range s.unused() {
		if u.Size == 0 && u.Base.IsZero() || fs.Unnamed(u.Origin.Ino) {
			errs = errors.Join(errs, s.store.DropStaging(u.Token))
		}
	}
	return errs
}

// dataExtents lists where below size a file has data, by SEEK_DATA and SEEK_HOLE.
func dataExtents(fd int, size int64) ([]replicate.Extent, error) {
	var out []replicate.Extent
	for off := int64(0); off < size; {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("node: map staged file: %w", err)
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil {
			return nil, fmt.Errorf("node: map staged file: %w", err)
		}
		if data >= size {
			return out, nil
		}
		out = append(out, replicate.Extent{Offset: data, Length: min(hole, size) - data})
		off = hole
	}
	return out, nil
}

// stagedID begins the ids of unpublished bytes.
const stagedID = "staged-"

func unpublishedID(u content.Unpublished) string { return fmt.Sprintf("%s%x", stagedID, u.Token) }
