package content

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Folding in place. Until the .fold sidecar is durable, a crash leaves the delta as it was. From then on the fold is
// only ever finished: each step can be done again, and the delta's stream, which all of them read, is removed last.
//
//	1 take the space that the changed bytes need in the base's file
//	2 write <id>.fold: the sidecar of the plain form, marked in place; make it durable
//	3 write the delta's bytes into <base>.data, punch its zeros, cut it to size; make it durable
//	4 rename <base>.data to <id>.data; make both directories durable; remove <base>.meta
//	5 rename <id>.fold to <id>.meta; make it durable; remove the delta

// foldInPlace folds a delta into its base's file if nothing else needs the base; done is false if not.
func (fo *forms) foldInPlace(ctx context.Context, id ID) (done bool, err error) {
	base, ok := fo.index.claimPair(id)
	if !ok {
		return false, nil
	}
	m, done, err := fo.foldClaimed(ctx, id)
	err = errors.Join(err, fo.index.unclaimPair(id, base, done, m, err))
	if err != nil {
		return done, fmt.Errorf("content: fold %s: %w", id, noSpace(err))
	}
	return done, nil
}

// foldClaimed does the fold. done says that it went beyond step 2: then an error leaves it to be finished at
// the next Open. m is the mark of the file afterwards, or zero if the file was changed since the base was checked.
func (fo *forms) foldClaimed(ctx context.Context, id ID) (m mark, done bool, err error) {
	b, err := fo.opener.openBody(id, fo.index.entry(id), os.O_RDWR)
	if err != nil {
		return m, false, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if b.base.streamFile == nil {
		return m, false, nil // an inline base is small: copy
	}
	sound := fo.index.hasMark(b.base.id, markOf(b.base.streamFile)) // blocks that did not change are not read
	if err := takeInPlace(b); err != nil {
		return m, false, nil // no room or no fallocate here; a copy fails with a better error, or works
	}
	planned, err := fo.planInPlace(ctx, b)
	if !planned || err != nil {
		return m, false, err
	}
	if err := fo.files.applyInPlace(b, b.base.streamFile); err != nil {
		return m, true, err
	}
	err = fo.files.finishInPlace(id, b.base.id)
	if sound {
		m = markOf(b.base.streamFile)
	}
	return m, true, err
}

// takeInPlace allocates what the delta's data needs in the base's file.
func takeInPlace(b *body) error {
	for _, p := range b.layout.pieces {
		if p.Zero {
			continue
		}
		err := unix.Fallocate(int(b.base.streamFile.Fd()), unix.FALLOC_FL_KEEP_SIZE, p.Off, p.Len)
		if err != nil {
			return err
		}
	}
	return nil
}

// planInPlace writes the .fold sidecar durably; planned is false if the plain form would be inline.
func (fo *forms) planInPlace(ctx context.Context, b *body) (planned bool, err error) {
	l, err := NewLayout(Shape{Size: b.head.size, Holes: b.zeroBlocks()})
	if err != nil {
		return false, err
	}
	to, encoded, err := newBody(b.id, l)
	if err != nil || to.head.has(flagInline) {
		return false, err
	}
	to.head.flags |= flagFoldInPlace
	to.head.foldBase = b.base.id
	path := fo.files.foldPath(b.id, ID{})
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return false, err
	}
	to.side, to.sideFile = f, f
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, fo.files.unlink(path))
			planned = false
		}
	}()
	if _, err := f.WriteAt(encoded, headerBytes); err != nil {
		return false, err
	}
	if err := planRows(ctx, to, b); err != nil {
		return false, err
	}
	if err := checkForm(ctx, to, b); err != nil {
		return false, err
	}
	if err := to.writeHeader(b.head.root, flagComplete); err != nil {
		return false, err
	}
	if err := fo.files.sync(f); err != nil {
		return false, err
	}
	return true, fo.files.syncShard(b.id)
}

// planRows takes the rows of blocks that did not change from the base and hashes the others.
func planRows(ctx context.Context, to, b *body) error {
	return eachBlock(ctx, to.layout.Blocks(), func(j int64, sc *scratch) error {
		at, _ := to.layout.locate(j * BlockBytes)
		i := at / BlockBytes
		if _, from := b.layout.leafSource(i); from == fromBase {
			if index, from := b.base.layout.leafSource(i); from == fromStream && b.base.readRow(index, sc) {
				return to.writeRow(j, sc)
			}
		}
		block := sc.block[:to.layout.BlockLen(j)]
		if err := b.readAt(block, at); err != nil {
			return err
		}
		fillRow(&sc.row, block)
		return to.writeRow(j, sc)
	})
}

// applyInPlace writes a delta's bytes over the base's file. It may be done again after a crash at any point.
func (sf *storeFiles) applyInPlace(b *body, file *os.File) error {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	if err := sf.step("apply", file.Name()); err != nil {
		return err
	}
	for i, p := range b.layout.pieces {
		if p.Zero {
			if err := punch(file, p); err != nil {
				return err
			}
			continue
		}
		for done := int64(0); done < p.Len; {
			block := sc.block[:min(BlockBytes, p.Len-done)]
			if err := b.readStream(block, b.layout.starts[i]+done); err != nil {
				return err
			}
			if _, err := file.WriteAt(block, p.Off+done); err != nil {
				return err
			}
			done += int64(len(block))
		}
	}
	if err := file.Truncate(b.head.size); err != nil {
		return err
	}
	return sf.sync(file)
}

// punch makes a range zero without changing the size.
func punch(file *os.File, e Extent) error {
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, e.Off, e.Len)
}

// finishInPlace gives the base's file to the folded content: steps 4 and 5, as far as they are not done.
func (sf *storeFiles) finishInPlace(id, base ID) error {
	from, to := sf.streamPath(base, ID{}), sf.streamPath(id, ID{})
	if _, err := os.Lstat(to); errors.Is(err, os.ErrNotExist) {
		if err := sf.rename(from, to); err != nil {
			return err
		}
	}
	if err := errors.Join(sf.syncShard(id), sf.syncShard(base)); err != nil {
		return err
	}
	if err := sf.unlink(sf.sidecarPath(base, ID{}, Committed)); err != nil {
		return err
	}
	if err := sf.rename(sf.foldPath(id, ID{}), sf.sidecarPath(id, ID{}, Committed)); err != nil {
		return err
	}
	if err := sf.syncShard(id); err != nil {
		return err
	}
	return sf.remove(id, base, Committed)
}

// recoverFolds finishes folds in place and drops other forms that were not finished.
func (re *recovery) recoverFolds(id ID, f *found, all map[ID]*found) error {
	for _, over := range f.folds {
		path := re.files.foldPath(id, over)
		b, err := loadSidecar(path, id, os.O_RDONLY)
		inPlace := err == nil && b.head.has(flagComplete) && b.head.has(flagFoldInPlace)
		var base ID
		if err == nil {
			base = b.head.foldBase
			_ = b.close() // it was only read
		}
		if !inPlace {
			if err := re.files.unlink(path); err != nil {
				return err
			}
			continue
		}
		if err := re.redoInPlace(id, base); err != nil {
			// The delta stays; what was overwritten below it fails its checks and is to be fetched again.
			re.log.Error("fold that a crash interrupted can't be finished", "content", id.String(), "error", err)
			if err := re.files.unlink(path); err != nil {
				return err
			}
			continue
		}
		re.log.Info("fold that a crash interrupted is finished", "content", id.String())
		f.forms, f.streams = []form{{state: Committed}}, []ID{{}}
		if old := all[base]; old != nil {
			old.forms = slices.DeleteFunc(old.forms, func(x form) bool { return x.base.IsZero() })
			old.streams = slices.DeleteFunc(old.streams, ID.IsZero)
		}
	}
	return nil
}

// redoInPlace does a fold again from step 3.
func (re *recovery) redoInPlace(id, base ID) error {
	if _, err := os.Lstat(re.files.streamPath(id, ID{})); err == nil {
		return re.files.finishInPlace(id, base)
	}
	b, err := re.files.open(id, base, Committed, os.O_RDONLY)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(re.files.streamPath(base, ID{}), os.O_RDWR, 0)
	if err != nil {
		return errors.Join(err, b.close())
	}
	err = re.files.applyInPlace(b, file)
	if err := errors.Join(err, file.Close(), b.close()); err != nil {
		return err
	}
	return re.files.finishInPlace(id, base)
}
