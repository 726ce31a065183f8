package content

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// form is one way a content lies on disk: a sidecar with its state and base.
type form struct {
	state State
	base  ID
}

// found is what Open found of one content.
type found struct {
	forms   []form
	folds   []ID // the bases of forms that were being made
	streams []ID // the bases of stream files; zero is the plain one
	aside   bool // a copy of the data file was being made
}

// recovery makes the index of what is in the directories, and finishes or undoes what a crash left.
type recovery struct {
	files *storeFiles
	index *index
	log   *slog.Logger
}

// run runs before the store is shared.
func (re *recovery) run() error {
	contents := make(map[ID]*found)
	for i := range heldDirs {
		if err := re.scanShard(filepath.Join(re.files.dir, "held", fmt.Sprintf("%02x", i)), contents); err != nil {
			return err
		}
	}
	for id, f := range contents {
		if err := re.recoverFolds(id, f, contents); err != nil {
			return err
		}
	}
	for id, f := range contents {
		if err := re.recoverContent(id, f, contents); err != nil {
			return err
		}
	}
	re.index.linkBases()
	return nil
}

// scanShard sorts the names of one directory by content.
func (re *recovery) scanShard(dir string, contents map[ID]*found) error {
	d, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, name := range names {
		h, ok := parseHeldName(name)
		if !ok || filepath.Join(dir, name) != filepath.Join(re.files.shardDir(h.id), name) {
			re.log.Warn("unknown file in the content store is left alone", "path", filepath.Join(dir, name))
			continue
		}
		f := contents[h.id]
		if f == nil {
			f = new(found)
			contents[h.id] = f
		}
		f.note(h)
	}
	return nil
}

func (f *found) note(h heldName) {
	switch h.suffix {
	case suffixPart:
		f.forms = append(f.forms, form{Partial, h.base})
	case suffixNew:
		f.forms = append(f.forms, form{Undecided, h.base})
	case suffixMeta:
		f.forms = append(f.forms, form{Committed, h.base})
	case suffixAside:
		f.aside = true
	case suffixFold:
		f.folds = append(f.folds, h.base)
	case suffixData, suffixDelta:
		f.streams = append(f.streams, h.base)
	}
}

// recoverContent keeps the best form of a content and removes everything else of it.
func (re *recovery) recoverContent(id ID, f *found, all map[ID]*found) error {
	if f.aside {
		if err := re.files.unlink(re.files.asidePath(id)); err != nil {
			return err
		}
	}
	best, ok := f.best(all)
	for ok {
		why := re.usable(id, best)
		if why == nil {
			break
		}
		re.log.Warn("content that a crash left torn is dropped", "content", id.String(), "state", best.state.String(),
			"reason", why)
		if err := re.files.remove(id, best.base, best.state); err != nil {
			return err
		}
		f.drop(best)
		best, ok = f.best(all)
	}
	for _, other := range f.forms {
		if other != best {
			if err := re.files.unlink(re.files.sidecarPath(id, other.base, other.state)); err != nil {
				return err
			}
		}
	}
	for _, base := range f.streams {
		if !ok || base != best.base {
			if err := re.files.unlink(re.files.streamPath(id, base)); err != nil {
				return err
			}
		}
	}
	if ok {
		re.index.all[id] = &entry{state: best.state, base: best.base}
	}
	return nil
}

// best chooses the most decided form, among them a plain one, among deltas one whose base is here.
func (f *found) best(all map[ID]*found) (best form, ok bool) {
	rank := func(x form) int {
		n := int(x.state) * 4
		if x.base.IsZero() {
			return n + 2
		}
		if all[x.base] != nil {
			return n + 1
		}
		return n
	}
	for _, x := range f.forms {
		if !ok || rank(x) > rank(best) {
			best, ok = x, true
		}
	}
	return best, ok
}

func (f *found) drop(x form) {
	for i := range f.forms {
		if f.forms[i] == x {
			f.forms = append(f.forms[:i], f.forms[i+1:]...)
			return
		}
	}
}

// usable reports why a form that was not committed can't be used. Committed sidecars are not read at Open:
// they were durable before they got their name, and a store may have very many.
func (re *recovery) usable(id ID, x form) error {
	if x.state == Committed {
		return nil
	}
	b, err := re.files.open(id, x.base, x.state, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer b.close()
	if x.state == Partial {
		return nil
	}
	if !b.head.has(flagComplete) {
		return fmt.Errorf("not complete: %w", ErrCorrupt)
	}
	if b.head.has(flagInline) && b.head.streamBytes > 0 {
		return b.readStream(make([]byte, b.head.streamBytes), 0)
	}
	return nil
}
