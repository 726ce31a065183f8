package newnames

import (
	"errors"
	"slices"
	"strings"

	"github.com/rdmcfs/rdmcfs/meta"
)

// View is the namespace with the pending files of this node.
func (h *Holder) View() meta.Reader { return view{h.cfg.State, h} }

type view struct {
	State
	h *Holder
}

// Lookup finds a name. The state is asked first, and once more: a pending file may have gone there in between.
func (v view) Lookup(parent meta.Ino, of string, viewer meta.Lease) (meta.Inode, error) {
	some := v.h.count.Load() > 0
	rec, err := v.State.Lookup(parent, of, viewer)
	if !some || !errors.Is(err, meta.ErrNotFound) {
		return rec, err
	}
	if rec, ok := v.h.find(func() *pending { return v.h.byName[parent][of] }); ok && rec.Reserved == viewer {
		return rec, nil
	}
	return v.State.Lookup(parent, of, viewer)
}

// Inode reads an inode.
func (v view) Inode(ino meta.Ino) (meta.Inode, error) {
	some := v.h.count.Load() > 0
	rec, err := v.State.Inode(ino)
	if !some || !errors.Is(err, meta.ErrNotFound) {
		return rec, err
	}
	if rec, ok := v.h.find(func() *pending { return v.h.byIno[ino] }); ok {
		return rec, nil
	}
	return v.State.Inode(ino)
}

// Xattrs lists no attributes of a pending file: they come with its first publish.
func (v view) Xattrs(ino meta.Ino) ([]string, error) {
	some := v.h.count.Load() > 0
	names, err := v.State.Xattrs(ino)
	if !some || !errors.Is(err, meta.ErrNotFound) {
		return names, err
	}
	if _, ok := v.h.find(func() *pending { return v.h.byIno[ino] }); ok {
		return nil, nil
	}
	return v.State.Xattrs(ino)
}

// ReadDir lists a directory. The pending files are read first: one that goes into the state meanwhile is in both.
func (v view) ReadDir(dir meta.Ino, after string, limit int, viewer meta.Lease) ([]meta.Dirent, error) {
	here := v.h.list(dir, after, viewer)
	list, err := v.State.ReadDir(dir, after, limit, viewer)
	if err != nil || len(here) == 0 {
		return list, err
	}
	byName := func(a, b meta.Dirent) int { return strings.Compare(a.Name, b.Name) }
	full := len(list) >= limit
	for _, d := range here {
		i, found := slices.BinarySearchFunc(list, d, byName)
		if found || full && i == len(list) {
			continue
		}
		list = slices.Insert(list, i, d)
	}
	return list[:min(len(list), limit)], nil
}

// find copies the record of a pending file.
func (h *Holder) find(of func() *pending) (meta.Inode, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := of(); p != nil {
		return p.rec, true
	}
	return meta.Inode{}, false
}

// list is the pending files of a directory, in no order.
func (h *Holder) list(dir meta.Ino, after string, viewer meta.Lease) (out []meta.Dirent) {
	if h.count.Load() == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for of, p := range h.byName[dir] {
		if of > after && p.rec.Reserved == viewer {
			out = append(out, meta.Dirent{Name: of, Ino: p.rec.Ino, Kind: meta.KindFile})
		}
	}
	return out
}
