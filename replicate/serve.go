package replicate

import (
	"errors"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// contentServer gives other nodes the bytes of contents that are here.
type contentServer struct {
	cfg     *Config
	applied applied
	mender  *mender
}

// fetched handles KindFetch: bytes of a content that is here, checked as they are read.
func (s *contentServer) fetched(f fetch) fetchReply {
	if f.Length == 0 || f.Length > maxFetchBytes {
		return fetchReply{Status: session.StatusRefused, Text: fmt.Sprintf("%d bytes asked for", f.Length)}
	}
	return s.serve(f.Content, func(r *content.Reader) ([]byte, error) {
		if f.Offset >= r.Size() {
			return nil, errors.New("behind the end")
		}
		buf := make([]byte, min(int64(f.Length), r.Size()-f.Offset))
		n, err := r.ReadAt(buf, f.Offset)
		if n == len(buf) {
			err = nil
		}
		return buf, err
	})
}

// leaves handles KindLeaves.
func (s *contentServer) leaves(f fetch) fetchReply {
	if f.Length == 0 || f.Length > maxLeavesReply {
		return fetchReply{Status: session.StatusRefused, Text: fmt.Sprintf("%d leaves asked for", f.Length)}
	}
	return s.serve(f.Content, func(r *content.Reader) ([]byte, error) {
		blocks := (r.Size() + content.BlockBytes - 1) / content.BlockBytes
		if f.Offset > blocks || int64(f.Length) > blocks-f.Offset {
			return nil, errors.New("behind the end")
		}
		buf := make([]byte, 0, 32*f.Length)
		for i := f.Offset; i < f.Offset+int64(f.Length); i++ {
			leaf, err := r.Leaf(i)
			if err != nil {
				return nil, err
			}
			buf = append(buf, leaf[:]...)
		}
		return buf, nil
	})
}

// serve opens a published content and answers with what read makes of it. A content that the log no longer names is
// still read by nodes that have it open.
func (s *contentServer) serve(id meta.ContentID, read func(*content.Reader) ([]byte, error)) fetchReply {
	refuse := func(err error) fetchReply { return fetchReply{Status: session.StatusRefused, Text: err.Error()} }
	_, err := s.cfg.Names.Content(id)
	if isNotFound(err) && s.applied.wasDecided(id) {
		err = nil
	}
	if err != nil {
		return refuse(err)
	}
	r, err := s.cfg.Store.OpenUndecided(storeID(id))
	if err != nil {
		s.mender.missing(id)
		return refuse(err)
	}
	defer r.Close()
	buf, err := read(r)
	if err != nil {
		return refuse(err)
	}
	return fetchReply{Status: session.StatusVoted, CRC: content.Checksum(buf), Bytes: buf}
}
