package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// sources are where the bytes of files come from.
type sources struct {
	db     *meta.DB
	stores []*content.Store
	dirs   []string
}

func openSources(db *meta.DB, cfg Config) (*sources, error) {
	s := &sources{db: db, dirs: cfg.Files}
	for _, dir := range cfg.Stores {
		if _, err := os.Stat(filepath.Join(dir, "held")); err != nil { // content.Open would make one
			return nil, errors.Join(fmt.Errorf("backup: no content store: %w", err), s.close())
		}
		st, err := content.Open(dir, content.Options{})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("backup: content store %s: %w", dir, err), s.close())
		}
		s.stores = append(s.stores, st)
	}
	return s, nil
}

func (s *sources) close() (err error) {
	for _, st := range s.stores {
		err = errors.Join(err, st.Close())
	}
	return err
}

// source is the bytes of a file, from one place.
type source struct {
	from string // in words
	io.ReaderAt
	io.Closer
}

// of lists where the bytes of a version may be, the surest first. why says what is wrong with places that have none.
func (s *sources) of(c meta.Content, path string) (list []source, why []string) {
	if c.Inline {
		b, err := s.db.InlineBytes(c.ID)
		if err != nil {
			return nil, []string{err.Error()}
		}
		return []source{{"the backup", bytes.NewReader(b), io.NopCloser(nil)}}, nil
	}
	for _, st := range s.stores {
		r, err := st.Open(c.ID.Bytes())
		if err == nil && r.Size() != c.Size {
			err = errors.Join(errors.New("the store has another size"), r.Close())
		}
		if err == nil {
			list = append(list, source{"a content store", r, r})
		} else if !errors.Is(err, content.ErrNotFound) {
			why = append(why, err.Error())
		}
	}
	for _, dir := range s.dirs {
		f, err := openPlain(filepath.Join(dir, path), c.Size)
		if err != nil {
			why = append(why, err.Error())
			continue
		}
		list = append(list, source{f.Name(), f, f})
	}
	return list, why
}

// openPlain opens a regular file of a size.
func openPlain(name string, size int64) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case !st.Mode().IsRegular():
		err = fmt.Errorf("%s is no regular file", name)
	case st.Size() != size:
		err = fmt.Errorf("%s has %d bytes, not %d", name, st.Size(), size)
	default:
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// file restores a regular file, and lists what is missing of it.
func (r *restore) file(i meta.Inode, at, path string) error {
	if err := r.olderVersions(i, path); err != nil {
		return err
	}
	if i.Content.IsZero() {
		_, err := r.write(i, meta.Content{}, source{"", bytes.NewReader(nil), io.NopCloser(nil)}, at, path)
		return err
	}
	c, err := r.db.Content(i.Content)
	if err != nil {
		return fmt.Errorf("backup: content of %s: %w", path, err)
	}
	list, why := r.sources.of(c, path)
	defer func() {
		for _, src := range list {
			src.Close()
		}
	}()
	for _, src := range list {
		made := false
		if c.Inline || r.right(src, c, nil) { // read first: a file that is closed is on all nodes
			made, err = r.write(i, c, src, at, path)
		}
		if err := errors.Join(err, r.ctx.Err()); err != nil || made {
			return err
		}
		why = append(why, src.from+" has other bytes, or can't be read")
	}
	if len(why) == 0 {
		why = []string{"no content store and no directory with copies was named that has it"}
	}
	return r.missed(path, MissedBytes, "%d bytes: %s", c.Size, strings.Join(why, "; "))
}

// olderVersions lists the versions of a file that are not restored.
func (r *restore) olderVersions(i meta.Inode, path string) error {
	list, err := r.db.Versions(i.Ino)
	if err != nil {
		return fmt.Errorf("backup: versions of %s: %w", path, err)
	}
	for _, c := range list {
		if c.State == meta.ContentCurrent {
			continue
		}
		if err := r.missed(path, MissedVersion, "version %d was kept beside the last one", c.Version); err != nil {
			return err
		}
	}
	return nil
}

// write makes a file of a source's bytes if they are those of the content. Its attributes come with them.
func (r *restore) write(i meta.Inode, c meta.Content, src source, at, path string) (same bool, err error) {
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return false, fmt.Errorf("backup: %w", err)
	}
	to := &writing{f: f}
	if same = c.Size == 0 || r.right(src, c, to); to.err == nil {
		to.err = f.Truncate(c.Size) // a hole at the end
	}
	err = errors.Join(r.ctx.Err(), to.err)
	if err == nil && same {
		err = r.attributes(i, target{at, int(f.Fd())}, path)
	}
	if err != nil || !same {
		return false, errors.Join(named(err), os.Remove(at), f.Close()) // what has no name is not published
	}
	if err := f.Close(); err != nil { // waits until all nodes have it
		return false, named(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.Files++
	r.out.Bytes += c.Size
	return true, nil
}

// right reads a source and reports whether it has the bytes of a content. to, which may be nil, gets them.
func (r *restore) right(src io.ReaderAt, c meta.Content, to *writing) bool {
	leaves := make([]content.Hash, 0, (c.Size+content.BlockBytes-1)/content.BlockBytes)
	block := make([]byte, content.BlockBytes)
	for off := int64(0); off < c.Size; off += content.BlockBytes {
		b := block[:min(content.BlockBytes, c.Size-off)]
		if _, err := io.ReadFull(io.NewSectionReader(src, off, int64(len(b))), b); err != nil || r.ctx.Err() != nil {
			return false
		}
		if leaves = append(leaves, content.Leaf(b)); to != nil && !to.write(b, off) {
			return true // its own error says what is wrong
		}
	}
	return c.Inline || content.Root(c.Size, leaves) == content.Hash(c.Root)
}

// writing writes a file and leaves holes where there are only zeros.
type writing struct {
	f   *os.File
	err error
}

func (w *writing) write(b []byte, off int64) bool {
	if bytes.Count(b, []byte{0}) < len(b) {
		_, w.err = w.f.WriteAt(b, off)
	}
	return w.err == nil
}
