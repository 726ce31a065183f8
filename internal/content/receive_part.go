package content

import "fmt"

// WriteAt writes a part of the stream, for transfers whose blocks are not of 1 MiB: off must be a multiple
// of [ChunkBytes], and so must len(p) unless it ends the stream. Parts of one block may come in any order; the
// block counts as here when all are. p is not kept. It is safe for concurrent use; bytes that are here are
// not written again.
func (r *Receiving) WriteAt(p []byte, off int64) error {
	end := off + int64(len(p))
	if off < 0 || off%ChunkBytes != 0 || end > r.body.layout.stream ||
		end%ChunkBytes != 0 && end != r.body.layout.stream {
		return fmt.Errorf("content: write %d bytes at %d of %s: %w", len(p), off, r.body.id, ErrShape)
	}
	for len(p) > 0 {
		i, inBlock := off/BlockBytes, off%BlockBytes
		n := min(int64(len(p)), r.body.layout.BlockLen(i)-inBlock)
		var err error
		if n == r.body.layout.BlockLen(i) {
			err = r.WriteBlock(i, p[:n], nil)
		} else {
			err = r.writePart(i, inBlock, p[:n])
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

// writePart writes some chunks of block i and, with the last of them, its row.
func (r *Receiving) writePart(i, inBlock int64, p []byte) error {
	have, err := r.begun(i)
	if have {
		return nil
	}
	if err != nil {
		return fmt.Errorf("content: write block %d of %s: %w", i, r.body.id, err)
	}
	whole, err := r.storePart(i, inBlock, p)
	r.written(i, int64(len(p)), whole && err == nil)
	return err
}

// storePart writes chunks of a block that the caller owns and completes the block if they are the last.
func (r *Receiving) storePart(i, inBlock int64, p []byte) (whole bool, err error) {
	part := r.partOf(i)
	if _, err := r.body.stream.WriteAt(p, r.body.streamAt(i*BlockBytes+inBlock)); err != nil {
		return false, fmt.Errorf("content: write block %d of %s: %w", i, r.body.id, noSpace(err))
	}
	for c := int64(0); c < int64(len(p)); c += ChunkBytes {
		chunk := (inBlock + c) / ChunkBytes
		part.mask |= 1 << chunk
		part.crcs[chunk] = Checksum(p[c:min(c+ChunkBytes, int64(len(p)))])
	}
	n := r.body.layout.BlockLen(i)
	if part.mask != 1<<((n+ChunkBytes-1)/ChunkBytes)-1 {
		return false, nil
	}
	return true, r.closeBlock(i, n, part)
}

func (r *Receiving) partOf(i int64) *partialBlock {
	r.mu.Lock()
	defer r.mu.Unlock()
	part := r.partial[i]
	if part == nil {
		part = new(partialBlock)
		r.partial[i] = part
	}
	return part
}

// closeBlock reads a block that came in parts back, holds it against the checksums of the parts, and
// writes its row.
func (r *Receiving) closeBlock(i, n int64, part *partialBlock) error {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	block := sc.block[:n]
	if got, err := r.body.stream.ReadAt(block, r.body.streamAt(i*BlockBytes)); int64(got) < n {
		return fmt.Errorf("content: read back block %d of %s: %w", i, r.body.id, err)
	}
	fillRow(&sc.row, block)
	if sc.row.crcs != part.crcs {
		part.mask = 0
		return fmt.Errorf("content: read back block %d of %s: %w", i, r.body.id, ErrCorrupt)
	}
	return r.body.writeRow(i, sc)
}
