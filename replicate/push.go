package replicate

import (
	"context"
	"io"

	"github.com/rdmcfs/rdmcfs/meta"
)

// Extent is a run of bytes.
type Extent struct{ Offset, Length int64 }

// AppendExtent adds an extent that begins at the last one or behind it, and joins the two where they touch.
func AppendExtent(list []Extent, e Extent) []Extent {
	if n := len(list); n > 0 && list[n-1].Offset+list[n-1].Length >= e.Offset {
		list[n-1].Length = max(list[n-1].Length, e.Offset+e.Length-list[n-1].Offset)
		return list
	}
	return append(list, e)
}

// AlignExtents widens ascending extents to whole units within size, and joins extents that then touch. Empty ones are
// left out.
func AlignExtents(list []Extent, unit, size int64) []Extent {
	out := make([]Extent, 0, len(list))
	for _, e := range list {
		start := e.Offset / unit * unit
		end := min((e.Offset+e.Length+unit-1)/unit*unit, size)
		if e.Length > 0 && end > start {
			out = AppendExtent(out, Extent{start, end - start})
		}
	}
	return out
}

// Push is one closed (or synced) file to be replicated and published.
type Push struct {
	Ino  meta.Ino
	Path string // for progress and status only
	// Base is the content that was current when the writer began; zero for a new file.
	Base meta.ContentID
	Size int64
	// Holes is how much of Size takes no room, for what stat shows.
	Holes int64
	// Source yields the staged bytes. Several goroutines read it. Each block is read at most once, unless it has to be
	// sent again and is no longer kept. Which of the reads counts is not specified, but it is the same on every member.
	// Bytes may be overwritten meanwhile. They must not go away: a read that ends before Size, or fails with ErrCut,
	// fails the push with ErrCut, and no reader sees anything of it. Source never maps memory that an application can
	// shrink.
	Source io.ReaderAt
	// Urgent, if not nil, is closed when bytes are to go away: bytes that were not yet read are then read at once, at
	// the disk's pace.
	Urgent <-chan struct{}
	// Taken, if not nil, is called when all bytes were read. If the push has to begin again they are read once more,
	// and it is called again.
	Taken func()
	// Data lists, ascending, where Source may hold other bytes than zeros; the rest of Size is holes.
	Data []Extent
	// Dirty lists, ascending, where Source may differ from Base; nil means everywhere (then Base only serves to find
	// conflicts).
	Dirty []Extent
	// Attr rides in the publish entry.
	Attr meta.AttrPatch
	// LinkParent and LinkName give an O_TMPFILE its name with the publish. Btime is when it was made.
	LinkParent meta.Ino
	LinkName   string
	Btime      int64
	// Allowed, if not nil, is called before each session, when it is settled to which incarnation of this node the
	// session belongs. An error ends the push.
	Allowed func() error
	// Rename, if not nil, is called when a new file's inode is gone in mid-push: it gives the file another one, which
	// it may be published under, or says why there is none. Without it the push ends with ErrNoInode then.
	Rename func(ctx context.Context) (meta.Ino, error)
}

// bytes is about what a node has to store for the push.
func (p *Push) bytes() int64 {
	parts := p.Data
	if p.Dirty != nil && !p.Base.IsZero() {
		parts = p.Dirty
	}
	if parts == nil {
		return p.Size
	}
	sum := int64(0)
	for _, e := range parts {
		sum += e.Length
	}
	return min(p.Size, sum)
}

// named gives a new file whose inode is gone another one.
func (p *Push) named(ctx context.Context) (meta.Ino, error) {
	if p.Rename == nil {
		return 0, ErrNoInode
	}
	return p.Rename(ctx)
}

// Outcome is what became of a Push that was published.
type Outcome struct {
	Result  meta.Result    // of the publish entry
	Content meta.ContentID // the new version's content; zero for an empty file
	Behind  []meta.NodeID  // up members that had not shown the version when the barrier's time was over
	// Unseen, if not nil, is why it can't be known which members show the version: this node is cut off from a
	// majority.
	Unseen error
}

// Publisher replicates files. Implemented by Pusher.
type Publisher interface {
	// Publish pushes the file to the members of its placement, proposes the publish, and waits for the barrier
	// of G3. It returns an error with nothing published (the staged bytes stay with the caller), or ErrUnknown when
	// the outcome is not known yet. It ends at most 30 s after progress stopped. When ctx is cancelled it
	// returns within 1 s; the session ends in the background.
	Publish(ctx context.Context, p Push) (Outcome, error)
}

// ContentReader is an open, pinned content.
type ContentReader interface {
	io.ReaderAt
	io.Closer
	// Fd is a descriptor of a plain local file with exactly the content's bytes, or -1.
	Fd() int
	Size() int64
}

// Contents opens contents wherever they are: the local store, the log (inline), or another holder.
type Contents interface {
	// OpenContent opens a content and pins it until Close.
	OpenContent(ctx context.Context, id meta.ContentID) (ContentReader, error)
}
