package content

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var errCrash = errors.New("crash")

// crasher stops a store at its n-th durable step and makes the directory what it could be afterwards. With
// power, everything that was not synced is undone or garbled; without, only the process is gone.
type crasher struct {
	t     *testing.T
	dir   string
	left  int
	power bool

	stash    string
	synced   map[string]bool
	before   map[string][]byte // a file that is being overwritten, as it was durable
	renames  [][2]string       // not synced
	unlinked [][2]string       // stashed file, path; not synced
	replaced [][2]string       // the same of files whose name a rename has taken
}

func (c *crasher) step(step, path string) error {
	if c.left == 0 {
		return errCrash
	}
	c.left--
	switch step {
	case "fsync":
		c.synced[path] = true
	case "apply":
		p, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		c.before[path], c.synced[path] = p, false
	case "rename":
		from, to, _ := strings.Cut(path, " -> ")
		if kept := filepath.Join(c.stash, fmt.Sprintf("replaced-%d", c.left)); os.Link(to, kept) == nil {
			c.replaced = append(c.replaced, [2]string{kept, to})
		}
		c.synced[to] = c.synced[from]
		c.renames = append(c.renames, [2]string{from, to})
	case "unlink":
		kept := filepath.Join(c.stash, fmt.Sprint(len(c.unlinked)))
		if os.Link(path, kept) == nil {
			c.unlinked = append(c.unlinked, [2]string{kept, path})
		}
	case "fsync dir":
		c.settle(path)
	}
	return nil
}

// settle makes the changes of names in a directory durable.
func (c *crasher) settle(dir string) {
	keep := func(list [][2]string, at int) (left [][2]string) {
		for _, x := range list {
			if filepath.Dir(x[at]) != dir {
				left = append(left, x)
			}
		}
		return left
	}
	c.renames, c.unlinked, c.replaced = keep(c.renames, 1), keep(c.unlinked, 1), keep(c.replaced, 1)
}

// crash makes the directory what a power loss leaves.
func (c *crasher) crash() {
	if !c.power {
		return
	}
	for i := len(c.unlinked) - 1; i >= 0; i-- {
		if err := os.Link(c.unlinked[i][0], c.unlinked[i][1]); err != nil && !errors.Is(err, os.ErrExist) {
			c.t.Fatal(err)
		}
	}
	for i := len(c.renames) - 1; i >= 0; i-- {
		if err := os.Rename(c.renames[i][1], c.renames[i][0]); err != nil && !errors.Is(err, os.ErrNotExist) {
			c.t.Fatal(err)
		}
		c.synced[c.renames[i][0]] = c.synced[c.renames[i][1]]
		c.before[c.renames[i][0]] = c.before[c.renames[i][1]]
	}
	for _, x := range c.replaced {
		if err := os.Link(x[0], x[1]); err != nil && !errors.Is(err, os.ErrExist) {
			c.t.Fatal(err)
		}
		c.synced[x[1]] = true
	}
	_ = filepath.WalkDir(filepath.Join(c.dir, "held"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || c.synced[path] {
			return err
		}
		p, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		before := c.before[path]
		for off := 0; off < len(p); off += 8192 { // every other page is as it was
			page := p[off:min(off+4096, len(p))]
			clear(page)
			if off < len(before) {
				copy(page, before[off:])
			}
		}
		return os.WriteFile(path, p, 0o600)
	})
}

// history is what a run did and knows.
type history struct {
	want  map[ID][]byte // by content, whether acknowledged or not
	acked map[ID]bool   // Put returned
	gone  map[ID]bool   // Delete was called
}

// play does a fixed sequence of changes until one fails.
func (h *history) play(t *testing.T, s *Store) error {
	base := randomBytes(1, 2*BlockBytes+5000)
	first := bytes.Clone(base)
	copy(first[4000:], randomBytes(2, 100_000))
	second := append(bytes.Clone(first[:BlockBytes+77]), make([]byte, BlockBytes)...)
	third := bytes.Clone(second)
	copy(third[9:], "third")
	small := randomBytes(3, 3000)
	put := func(n byte, shape Shape, p []byte) func() error {
		return func() error {
			id := testID(n)
			h.want[id] = p
			if _, err := s.Put(t.Context(), id, shape, bytes.NewReader(p)); err != nil {
				return err
			}
			h.acked[id] = true
			return s.Commit(id)
		}
	}
	remove := func(n byte) func() error {
		return func() error {
			h.gone[testID(n)] = true
			return s.Delete(testID(n))
		}
	}
	steps := []func() error{
		put(1, Shape{Size: int64(len(base))}, base),
		put(2, Shape{Size: int64(len(first)), Base: testID(1), BaseSize: int64(len(base)),
			Extents: []Extent{{Off: 4000, Len: 100_000}}}, first),
		remove(1),
		func() error { return s.forms.fold(t.Context(), testID(2)) }, // in place
		put(3, Shape{Size: int64(len(small))}, small),
		put(4, Shape{Size: int64(len(second)), Base: testID(2), BaseSize: int64(len(first)), Extents: []Extent{
			{Off: BlockBytes + 77, Len: BlockBytes, Zero: true}}}, second),
		put(5, Shape{Size: int64(len(third)), Base: testID(4), BaseSize: int64(len(second)),
			Extents: []Extent{{Off: 9, Len: 5}}}, third),
		func() error { return s.Merge(t.Context(), testID(5)) },
		remove(4),
		func() error { return s.forms.fold(t.Context(), testID(5)) }, // a copy
		func() error { return stepAsideAndWrite(s, testID(5)) },
		remove(3), remove(2),
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// stepAsideAndWrite makes a content step aside and overwrites what was its file.
func stepAsideAndWrite(s *Store, id ID) error {
	r, err := s.Open(id)
	if err != nil {
		return err
	}
	defer r.Close()
	st, err := s.StepAside(r, Origin{Ino: 5})
	if err != nil {
		return err
	}
	_, err = st.File().WriteAt(randomBytes(5, r.Size()), 0)
	return errors.Join(err, st.File().Truncate(99), st.Close())
}

// check holds a reopened store against the history.
func (h *history) check(t *testing.T, s *Store) {
	for id, want := range h.want {
		state, ok := s.State(id)
		whole := ok && state != Partial
		if !whole {
			if h.acked[id] && !h.gone[id] {
				t.Errorf("%s is lost (%v)", id, state)
			}
			continue
		}
		r, err := s.OpenUndecided(id)
		if err != nil {
			if !h.gone[id] {
				t.Errorf("open %s: %v", id, err)
			}
			continue
		}
		got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
		if err == nil && !bytes.Equal(got, want) {
			t.Errorf("%s has wrong bytes", id)
		}
		if err != nil && !h.gone[id] {
			t.Errorf("read %s: %v", id, err)
		}
		r.Close()
		if damage, err := s.Check(t.Context(), id); !h.gone[id] && (err != nil || damage != nil) {
			t.Errorf("check %s: %+v, %v", id, damage, err)
		}
	}
}

// TestCrashAtEveryStep stops the store before each durable step, as by kill -9 and as by power loss.
func TestCrashAtEveryStep(t *testing.T) {
	for _, power := range []bool{false, true} {
		stride := 1
		if testing.Short() {
			stride = 5
		}
		for n := 0; ; n += stride {
			if crashed := crashAt(t, n, power); !crashed {
				t.Logf("power=%v: %d steps", power, n)
				break
			}
			if t.Failed() {
				t.Fatalf("power=%v, step %d", power, n)
			}
		}
	}
}

func crashAt(t *testing.T, n int, power bool) bool {
	dir, stash := t.TempDir(), t.TempDir()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := &crasher{t: t, dir: dir, left: n, power: power, stash: stash,
		synced: make(map[string]bool), before: make(map[string][]byte)}
	s.files.step = c.step
	h := &history{want: make(map[ID][]byte), acked: make(map[ID]bool), gone: make(map[ID]bool)}
	err = h.play(t, s)
	if err != nil && !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	if e := s.Close(); e != nil {
		t.Fatal(e)
	}
	if err == nil {
		return false
	}
	c.crash()
	again := openStore(t, dir, Options{})
	h.check(t, again)
	if t.Failed() {
		_ = filepath.WalkDir(filepath.Join(dir, "held"), func(path string, d os.DirEntry, _ error) error {
			if !d.IsDir() {
				t.Log(path)
			}
			return nil
		})
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	return true
}
