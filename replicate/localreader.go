package replicate

import (
	"bytes"
	"errors"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// localReader is a content of the local store. What it finds damaged it reads from other holders, until the store has
// been mended.
type localReader struct {
	*content.Reader
	m  *Member
	id meta.ContentID

	mu        sync.Mutex
	elsewhere *remoteReader // nil until it is needed
}

// newLocalReader reads a content of the store. One that was not checked since the start, or whose file was changed
// since then, is checked in the background: other programs may read its file without the daemon already.
func newLocalReader(m *Member, id meta.ContentID, r *content.Reader) *localReader {
	if r.HasFile() && !r.Checked() {
		m.mender.checkSoon(id)
	}
	return &localReader{Reader: r, m: m, id: id}
}

// Fd is the descriptor of the data file if that is exactly the content, else -1. Nobody checks what is read through
// it, so it is given away only if all of the content was checked.
func (r *localReader) Fd() int {
	if !r.HasFile() || !r.Checked() {
		return -1
	}
	return int(r.File().Fd())
}

// Stored is the content in the store. It belongs to this reader.
func (r *localReader) Stored() *content.Reader { return r.Reader }

// ReadAt implements io.ReaderAt.
func (r *localReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.Reader.ReadAt(p, off)
	if !errors.Is(err, content.ErrCorrupt) {
		return n, err
	}
	other, openErr := r.others()
	if openErr != nil {
		return n, errors.Join(err, openErr)
	}
	return other.ReadAt(p, off)
}

func (r *localReader) others() (*remoteReader, error) {
	r.mu.Lock()
	other := r.elsewhere
	r.mu.Unlock()
	if other != nil {
		return other, nil
	}
	other, err := r.m.remote.open(r.m.ctx, r.id, r.m.cfg.Self().Node)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.elsewhere != nil {
		return r.elsewhere, errors.Join(other.Close())
	}
	r.elsewhere = other
	return other, nil
}

// Close lets go of the content.
func (r *localReader) Close() error {
	r.mu.Lock()
	other := r.elsewhere
	r.mu.Unlock()
	if other != nil {
		return errors.Join(other.Close(), r.Reader.Close())
	}
	return r.Reader.Close()
}

// inlineReader is a content whose bytes came with the log.
type inlineReader struct{ *bytes.Reader }

func newInlineReader(b []byte) ContentReader { return inlineReader{bytes.NewReader(b)} }

// Fd is -1.
func (inlineReader) Fd() int { return -1 }

// Close does nothing.
func (inlineReader) Close() error { return nil }
