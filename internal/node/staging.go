package node

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// staging is what was staged here and not published.
type staging struct {
	store *content.Store
	paths *paths
	log   *slog.Logger
}

// unused lists the staged bytes that no open file uses.
func (s *staging) unused() []content.Unpublished {
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
