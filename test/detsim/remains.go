package detsim

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// remains is what a power loss would leave for certain of a machine's contents: the bytes of files as they were at
// their last fsync, and the names of directories as they were at theirs. Directories themselves stay.
type remains struct {
	dir   string // of the contents; all paths are relative to it
	here  map[string]*extent
	names map[string]map[string]*extent // by directory, as durable

	stashed int
}

// extent is a file, whatever its names are.
type extent struct {
	ever   bool   // it was synced
	whole  bool   // it is large, and as it was at its last fsync: the content store changes none after that without a step
	synced []byte // as at its last fsync, unless it is whole
	stash  string // another link of a whole file that was removed, in stashDir
}

// wholeBytes is from what size on a file's bytes are not kept at an fsync.
const wholeBytes = 64 << 10

func newRemains(dir string) *remains {
	return &remains{dir: dir, here: map[string]*extent{}, names: map[string]map[string]*extent{}}
}

func (r *remains) rel(p string) string { return strings.TrimPrefix(strings.TrimPrefix(p, r.dir), "/") }

// stashDir holds links of files that were removed; it lies next to the contents.
func (r *remains) stashDir() string { return r.dir + ".stash" }

// at is the file that has a name now.
func (r *remains) at(name string) *extent {
	e := r.here[name]
	if e == nil {
		e = &extent{}
		r.here[name] = e
	}
	return e
}

// step notes a step of the content store before it is done ([content.Options]).
func (r *remains) step(step, p string) error {
	switch step {
	case "rename":
		from, to, _ := strings.Cut(p, " -> ")
		err := r.remove(to)
		r.here[r.rel(to)] = r.at(r.rel(from))
		delete(r.here, r.rel(from))
		return err
	case "unlink":
		return r.remove(p)
	case "create", "apply":
		return r.keep(p)
	case "fsync":
		return r.sync(p)
	case "fsync dir":
		entries, err := os.ReadDir(p)
		if err != nil {
			return err
		}
		list := map[string]*extent{}
		for _, e := range entries {
			if !e.IsDir() {
				list[e.Name()] = r.at(path.Join(r.rel(p), e.Name()))
			}
		}
		for name, e := range r.names[r.rel(p)] {
			if list[name] != e && e.stash != "" {
				if err := os.Remove(filepath.Join(r.stashDir(), e.stash)); err != nil {
					return err
				}
				e.stash = ""
			}
		}
		r.names[r.rel(p)] = list
	}
	return nil
}

// sync notes that the bytes of a file are durable as they are now.
func (r *remains) sync(p string) error {
	e := r.at(r.rel(p))
	st, err := os.Stat(p)
	if err == nil && st.Size() < wholeBytes {
		e.synced, err = os.ReadFile(p)
	}
	e.ever, e.whole = err == nil, err == nil && st.Size() >= wholeBytes
	return err
}

// keep takes the bytes of a whole file, which is to be changed.
func (r *remains) keep(p string) (err error) {
	e := r.here[r.rel(p)]
	if e == nil || !e.whole {
		return nil
	}
	e.whole = false
	e.synced, err = os.ReadFile(p)
	return err
}

// remove notes that a name is to go. A whole file, which may come back, gets another link.
func (r *remains) remove(p string) error {
	e := r.here[r.rel(p)]
	delete(r.here, r.rel(p))
	if e == nil || !e.whole || e.stash != "" {
		return nil
	}
	r.stashed++
	e.stash = itoa(r.stashed)
	if err := os.MkdirAll(r.stashDir(), 0o700); err != nil {
		return err
	}
	return os.Link(p, filepath.Join(r.stashDir(), e.stash))
}

// present lists the files by directory.
func (r *remains) present() (map[string]map[string]*extent, error) {
	out := map[string]map[string]*extent{}
	err := filepath.WalkDir(r.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		dir, name := path.Split(r.rel(p))
		dir = path.Clean(dir)
		if out[dir] == nil {
			out[dir] = map[string]*extent{}
		}
		out[dir][name] = r.at(r.rel(p))
		return nil
	})
	return out, err
}

// durable makes all that is there durable.
func (r *remains) durable() error {
	now, err := r.present()
	err = errors.Join(err, os.RemoveAll(r.stashDir()))
	for dir, names := range now {
		for name := range names {
			err = errors.Join(err, r.step("fsync", filepath.Join(r.dir, dir, name)))
		}
		err = errors.Join(err, r.step("fsync dir", filepath.Join(r.dir, dir)))
	}
	return err
}

// copied is the same for a copy of the directory.
func (r *remains) copied(dir string) *remains {
	return &remains{dir: dir, here: r.here, names: r.names, stashed: r.stashed}
}

// lose makes a copy of the directory as a power loss would leave it. Each file has its old names or its new ones; of a
// file that took another's place, it or the other one is there; and what was not synced of its bytes is there, or not,
// or in part. intn chooses. Files outside held and staging are written once, and stay.
func (r *remains) lose(to string, intn func(int) int) (*remains, error) {
	out := newRemains(to)
	now, err := r.present()
	if err == nil {
		err = removeFiles(to)
	}
	if err == nil {
		err = os.RemoveAll(out.stashDir())
	}
	if err != nil {
		return nil, err
	}
	moved := map[*extent]bool{} // has its new names
	chosen := func(e *extent) bool {
		is, ok := moved[e]
		if !ok {
			is = intn(2) == 0
			moved[e] = is
		}
		return is
	}
	for _, p := range union(now, r.names) {
		dir, name := path.Split(p)
		dir = path.Clean(dir)
		before, after := r.names[dir][name], now[dir][name]
		e := after
		switch {
		case dir == "." || before == after:
		case before == nil:
			if !chosen(after) {
				e = nil
			}
		case after == nil:
			if e = before; chosen(before) {
				e = nil
			}
		case !chosen(after):
			e = before
		}
		if e == nil {
			continue
		}
		if err := r.write(out, p, e, dir == ".", intn); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// removeFiles empties a tree, whose directories stay.
func removeFiles(dir string) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Remove(p)
	})
}

// write writes a file as a power loss leaves it. What is on a disk afterwards is durable.
func (r *remains) write(out *remains, p string, e *extent, safe bool, intn func(int) int) error {
	data, err := e.synced, error(nil)
	if e.stash != "" {
		data, err = os.ReadFile(filepath.Join(r.stashDir(), e.stash))
	}
	if err != nil {
		return err
	}
	if name := r.nameOf(e, p); name != "" {
		now, err := os.ReadFile(filepath.Join(r.dir, name))
		if err != nil {
			return err
		}
		if safe || e.whole || e.ever && bytes.Equal(now, data) {
			data = now
		} else {
			data = torn(data, now, intn)
		}
	}
	to := filepath.Join(out.dir, p)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	left := &extent{ever: true, whole: len(data) >= wholeBytes}
	if !left.whole {
		left.synced = data
	}
	out.here[p] = left
	dir, name := path.Split(p)
	dir = path.Clean(dir)
	if out.names[dir] == nil {
		out.names[dir] = map[string]*extent{}
	}
	out.names[dir][name] = left
	return os.WriteFile(to, data, 0o600)
}

// nameOf is a name that a file has now, "" if it has none: p if that is one.
func (r *remains) nameOf(e *extent, p string) string {
	if r.here[p] == e {
		return p
	}
	found := ""
	for name, x := range r.here {
		if x == e && (found == "" || name < found) {
			found = name
		}
	}
	return found
}

// torn is a file of which some pages were written since its last fsync: all of them, none, or some.
func torn(synced, now []byte, intn func(int) int) []byte {
	const page = 4096
	kind := intn(3)
	if kind == 0 {
		return synced
	}
	if kind == 1 {
		return now
	}
	size := len(now)
	if intn(2) == 0 {
		size = len(synced)
	}
	data := make([]byte, size)
	copy(data, synced)
	for at := 0; at < min(size, len(now)); at += page {
		if intn(2) == 0 {
			copy(data[at:min(at+page, size)], now[at:])
		}
	}
	return data
}

// forget drops files that have no name any more.
func (r *remains) forget() {
	for p := range r.here {
		if _, err := os.Lstat(filepath.Join(r.dir, p)); errors.Is(err, fs.ErrNotExist) {
			delete(r.here, p)
		}
	}
}

// union lists the paths of both, in order.
func union(a, b map[string]map[string]*extent) []string {
	var out []string
	for _, m := range []map[string]map[string]*extent{a, b} {
		for dir, names := range m {
			for name := range names {
				out = append(out, path.Join(dir, name))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
