package fstest

import (
	"bytes"
	"errors"
	"io"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// inline is a content that lies in the namespace.
type inline []byte

func (b inline) ReadAt(p []byte, off int64) (int, error) { return bytes.NewReader(b).ReadAt(p, off) }
func (b inline) Close() error                            { return nil }
func (b inline) Fd() int                                 { return -1 }
func (b inline) Size() int64                             { return int64(len(b)) }

// reader is a content that lies in a store.
type reader struct {
	*content.Reader
	n *Node
}

func (r reader) ReadAt(p []byte, off int64) (int, error) {
	got, err := r.Reader.ReadAt(p, off)
	if other := r.n.elsewhere(); other != nil && errors.Is(err, content.ErrCorrupt) {
		return other.ReadAt(p, off)
	}
	return got, err
}

func (r reader) Fd() int {
	if f := r.File(); f != nil {
		return int(f.Fd())
	}
	return -1
}

// Stored is the content in the store.
func (r reader) Stored() *content.Reader { return r.Reader }

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// drain reads what a push would send.
func drain(p replicate.Push) error {
	list := p.Data
	if p.Dirty != nil {
		list = p.Dirty
	}
	buf := make([]byte, content.BlockBytes)
	for _, e := range list {
		for off := e.Offset; off < e.Offset+e.Length; off += int64(len(buf)) {
			n := min(int64(len(buf)), e.Offset+e.Length-off)
			if _, err := p.Source.ReadAt(buf[:n], off); ignoreEOF(err) != nil {
				return err
			}
		}
	}
	return nil
}

// shape is how a push is stored.
func (n *Node) shape(p replicate.Push) (content.Shape, error) {
	base := content.ID(p.Base.Bytes())
	if p.Dirty == nil || base.IsZero() {
		return content.Shape{Size: p.Size, Holes: holes(p)}, nil
	}
	r, err := n.store.Open(base)
	if errors.Is(err, content.ErrNotFound) {
		return content.Shape{Size: p.Size, Holes: holes(p)}, nil
	}
	if err != nil {
		return content.Shape{}, err
	}
	s := content.Shape{Size: p.Size, Base: base, BaseSize: r.Size()}
	for _, e := range p.Dirty {
		s.Extents = append(s.Extents, content.Extent{Off: e.Offset, Len: e.Length})
	}
	return s, r.Close()
}

// holes are the blocks of a push that no data extent touches.
func holes(p replicate.Push) blockset.Ranges {
	var out blockset.Ranges
	blocks := (p.Size + content.BlockBytes - 1) / content.BlockBytes
	next := int64(0)
	add := func(until int64) {
		if until > next {
			out = append(out, blockset.Range{First: uint64(next), Count: uint64(until - next)})
		}
	}
	for _, e := range p.Data {
		add(e.Offset / content.BlockBytes)
		next = max(next, (e.Offset+e.Length+content.BlockBytes-1)/content.BlockBytes)
	}
	add(blocks)
	return out
}
