package content

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"golang.org/x/sys/unix"
)

// ScrubReport is what a scrub found.
type ScrubReport struct {
	Contents int64
	Bytes    int64 // read and checked
	Damaged  []Damage
}

// Damage is a content that failed its checks.
type Damage struct {
	ID     ID
	Blocks []int64 // of the content: they can be mended one by one; empty: fetch all of it again
	Err    error
}

// damageBlocksMax bounds the blocks that one Damage lists.
const damageBlocksMax = 1 << 16

// Scrub reads every committed and undecided content from the disk and checks all of it: rows, checksums,
// leaves and roots. It reads at most bytesPerSec (0: as fast as it can) and ends early with ctx.
func (s *Store) Scrub(ctx context.Context, bytesPerSec int64) (ScrubReport, error) {
	var report ScrubReport
	pace := newPace(bytesPerSec, nil)
	for _, id := range append(s.List(Committed), s.List(Undecided)...) {
		n, damage, err := s.scrubOne(ctx, id, pace)
		report.Bytes += n
		if err != nil {
			return report, fmt.Errorf("content: scrub: %w", err)
		}
		report.Contents++
		if damage != nil {
			report.Damaged = append(report.Damaged, *damage)
		}
	}
	return report, nil
}

// Check scrubs one content.
func (s *Store) Check(ctx context.Context, id ID) (*Damage, error) {
	return s.Scrubber(0, nil).Check(ctx, id)
}

// Scrubber checks contents at a bounded rate for all of them together.
type Scrubber struct {
	s    *Store
	pace *pace
}

// Scrubber makes a scrubber that reads at most bytesPerSec (0: as fast as it can). read, which may be nil, hears of the
// bytes that are about to be read.
func (s *Store) Scrubber(bytesPerSec int64, read func(bytes int64)) *Scrubber {
	return &Scrubber{s, newPace(bytesPerSec, read)}
}

// Check scrubs one content. One that is gone is not damaged.
func (c *Scrubber) Check(ctx context.Context, id ID) (*Damage, error) {
	_, damage, err := c.s.scrubOne(ctx, id, c.pace)
	if err != nil {
		return nil, fmt.Errorf("content: check %s: %w", id, err)
	}
	return damage, nil
}

func (s *Store) scrubOne(ctx context.Context, id ID, pace *pace) (int64, *Damage, error) {
	r, err := s.opener.openIn(id, Undecided, Committed)
	switch {
	case errors.Is(err, ErrCorrupt):
		return 0, &Damage{ID: id, Err: err}, nil
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrBusy):
		return 0, nil, nil // gone, or being folded, which checks it
	case err != nil:
		return 0, nil, err
	}
	defer r.Close()
	damage := &Damage{ID: id}
	n, err := r.body.scrub(ctx, pace, damage, s.index.isOverDead(id))
	if err != nil {
		return n, nil, err
	}
	if damage.Err == nil {
		s.index.markWhole(id, r.body.looked()) // the reader keeps the entry
		return n, nil, nil
	}
	s.index.markDamaged(id, damage.Err)
	return n, damage, nil
}

// scrub checks the own bytes of a body. Its bases are checked as contents of their own, or with it if whole is set.
func (b *body) scrub(ctx context.Context, pace *pace, damage *Damage, whole bool) (int64, error) {
	if b.streamFile != nil { // so that clean pages are read from the disk again
		_ = unix.Fadvise(int(b.streamFile.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	var total int64
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	for i := range b.layout.Blocks() {
		n := b.layout.BlockLen(i)
		if err := pace.take(ctx, n); err != nil {
			return total, err
		}
		total += n
		if err := b.checkBlock(i, sc); err != nil {
			damage.add(b.contentBlocks(i), err)
		}
	}
	if b.base != nil {
		blocks := b.layout.leaves.Blocks
		if whole {
			blocks = b.blocks
		}
		if err := b.checkLeaves(ctx, pace, damage, blocks); err != nil {
			return total, err
		}
	}
	if err := b.checkHoles(damage); err != nil {
		return total, err
	}
	if damage.Err != nil {
		return total, nil
	}
	return total, b.checkRoot(ctx, damage)
}

// checkRoot computes the root from the leaves on disk; a leaf that can't be read names its block.
func (b *body) checkRoot(ctx context.Context, damage *Damage) error {
	root, err := b.root(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		b.checkLeafTable(damage)
		damage.add(nil, err)
	case root != b.head.root:
		damage.add(nil, fmt.Errorf("content: %s: root: %w", b.id, ErrCorrupt))
	}
	return nil
}

// checkLeafTable finds the blocks whose leaves can't be read.
func (b *body) checkLeafTable(damage *Damage) {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	for i := int64(0); i < blockCount(b.head.size); i++ {
		if n := b.zeroRun(i); n > 0 {
			i += n - 1
			continue
		}
		if _, err := b.leaf(i, sc); err != nil {
			damage.add([]int64{i}, err)
		}
	}
}

// checkHoles looks for bytes where a plain file should have holes: checked reads never give them, but a
// passthrough read would.
func (b *body) checkHoles(damage *Damage) error {
	if b.base != nil || b.streamFile == nil {
		return nil
	}
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	for _, p := range b.layout.pieces {
		for off := p.Off; p.Zero && off < p.End(); {
			data, err := unix.Seek(int(b.streamFile.Fd()), off, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) || err == nil && data >= p.End() {
				break
			}
			if err != nil {
				return fmt.Errorf("content: scrub %s: %w", b.id, err)
			}
			i := data / BlockBytes
			block := sc.block[:blockLen(b.head.size, i)]
			if n, _ := b.readFile(block, i*BlockBytes); n < len(block) || !allZero(block) {
				damage.add([]int64{i}, fmt.Errorf("content: %s: bytes in hole block %d: %w", b.id, i, ErrCorrupt))
			}
			off = (i + 1) * BlockBytes
		}
	}
	return nil
}

// zeros is what all-zero bytes are held against.
var zeros [4096]byte

func allZero(p []byte) bool {
	for len(p) > 0 {
		n := min(len(p), len(zeros))
		if !bytes.Equal(p[:n], zeros[:n]) {
			return false
		}
		p = p[n:]
	}
	return true
}

func (d *Damage) add(blocks []int64, err error) {
	if d.Err == nil {
		d.Err = err
	}
	for _, i := range blocks {
		if n := len(d.Blocks); n < damageBlocksMax && (n == 0 || d.Blocks[n-1] < i) {
			d.Blocks = append(d.Blocks, i)
		}
	}
}

// checkBlock checks stream block i.
func (b *body) checkBlock(i int64, sc *scratch) error {
	block := sc.block[:b.layout.BlockLen(i)]
	if err := b.readStream(block, i*BlockBytes); err != nil {
		return err
	}
	if !b.readRow(i, sc) || Leaf(block) != sc.row.leaf {
		return fmt.Errorf("content: block %d of %s: leaf: %w", i, b.id, ErrCorrupt)
	}
	return nil
}

// blocks are all blocks that are not zero by the shapes alone.
func (b *body) blocks(yield func(uint64) bool) {
	for i := range blockCount(b.head.size) {
		if !b.zeroBlock(i) && !yield(uint64(i)) {
			return
		}
	}
}

// checkLeaves hashes blocks of a delta over its base.
func (b *body) checkLeaves(ctx context.Context, pace *pace, damage *Damage, blocks iter.Seq[uint64]) error {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	for block := range blocks {
		i := int64(block)
		block := sc.block[:blockLen(b.head.size, i)]
		if err := pace.take(ctx, int64(len(block))); err != nil {
			return err
		}
		err := b.readAt(block, i*BlockBytes)
		var leaf Hash
		if err == nil {
			leaf, err = b.leaf(i, sc)
		}
		if err == nil && leaf != Leaf(block) {
			err = fmt.Errorf("content: block %d of %s: leaf: %w", i, b.id, ErrCorrupt)
		}
		if err != nil {
			damage.add([]int64{i}, err)
		}
	}
	return nil
}

// contentBlocks are the blocks of the content that have bytes in stream block i.
func (b *body) contentBlocks(i int64) []int64 {
	var list []int64
	end := i*BlockBytes + b.layout.BlockLen(i)
	for off := i * BlockBytes; off < end; {
		at, n := b.layout.locate(off)
		n = min(n, end-off)
		for block := at / BlockBytes; block <= (at+n-1)/BlockBytes; block++ {
			if len(list) == 0 || list[len(list)-1] < block {
				list = append(list, block)
			}
		}
		off += n
	}
	return list
}

// pace holds a reader to a rate.
type pace struct {
	bytesPerSec int64
	start       time.Time
	bytes       int64
	tell        func(bytes int64) // nil: nobody wants to hear
}

func newPace(bytesPerSec int64, tell func(bytes int64)) *pace {
	return &pace{bytesPerSec: bytesPerSec, start: time.Now(), tell: tell}
}

// take waits until n more bytes may be read.
func (p *pace) take(ctx context.Context, n int64) error {
	p.bytes += n
	if p.tell != nil {
		p.tell(n)
	}
	if p.bytesPerSec <= 0 {
		return ctx.Err()
	}
	due := time.Duration(float64(p.bytes-n) / float64(p.bytesPerSec) * float64(time.Second))
	wait := due - time.Since(p.start)
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
