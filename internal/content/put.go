package content

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Put stores a content of the given shape from src, which has its bytes at their offsets, and returns its
// root. It is then undecided. Blocks are read and hashed concurrently.
func (s *Store) Put(ctx context.Context, id ID, shape Shape, src io.ReaderAt) (Hash, error) {
	r, err := s.Begin(id, shape)
	if err != nil {
		return Hash{}, err
	}
	root, err := r.fill(ctx, src)
	if err == nil {
		err = r.Finish(ctx, root)
	}
	if err != nil {
		return Hash{}, errors.Join(fmt.Errorf("content: put: %w", err), r.Discard())
	}
	return root, nil
}

// fill writes the missing blocks from src and returns the root.
func (r *Receiving) fill(ctx context.Context, src io.ReaderAt) (Hash, error) {
	l := r.body.layout
	err := eachBlock(ctx, l.Blocks(), func(i int64, _ *scratch) error {
		buf := scratches.Get().(*scratch) // WriteBlock has a scratch of its own
		defer scratches.Put(buf)
		if r.Has(i) {
			return nil
		}
		if err := l.ReadBlock(src, i, buf.block[:]); err != nil {
			return err
		}
		return r.WriteBlock(i, buf.block[:l.BlockLen(i)], nil)
	})
	if err != nil {
		return Hash{}, err
	}
	return r.Root(ctx)
}
