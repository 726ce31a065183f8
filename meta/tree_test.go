package meta_test

import (
	"fmt"
	"sort"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// tree is an independent, naive model of the namespace: what POSIX says of names, plus reservations.
type tree struct {
	inodes map[meta.Ino]*treeInode
}

type treeInode struct {
	kind  meta.Kind
	names map[string]meta.Ino // directories
	owner meta.NodeID         // reserved by it, or 0
}

func newTree() *tree {
	return &tree{map[meta.Ino]*treeInode{meta.RootIno: {kind: meta.KindDir, names: map[string]meta.Ino{}}}}
}

func (m *tree) links(ino meta.Ino) (n int) {
	for _, i := range m.inodes {
		for _, c := range i.names {
			if c == ino {
				n++
			}
		}
	}
	return n
}

func (m *tree) parent(ino meta.Ino) meta.Ino {
	for p, i := range m.inodes {
		for _, c := range i.names {
			if c == ino {
				return p
			}
		}
	}
	return meta.RootIno
}

func (m *tree) drop(dir meta.Ino, name string) {
	ino := m.inodes[dir].names[name]
	delete(m.inodes[dir].names, name)
	if m.links(ino) == 0 {
		delete(m.inodes, ino)
	}
}

// find returns what a viewer finds under a name; hidden reports that another node holds the name reserved.
func (m *tree) find(dir meta.Ino, name string, viewer meta.NodeID) (ino meta.Ino, hidden bool) {
	ino = m.inodes[dir].names[name]
	if ino == 0 {
		return 0, false
	}
	o := m.inodes[ino].owner
	return ino, o != 0 && o != viewer
}

func (m *tree) checkDir(dir meta.Ino) syscall.Errno {
	switch i := m.inodes[dir]; {
	case i == nil:
		return syscall.ENOENT
	case i.kind != meta.KindDir:
		return syscall.ENOTDIR
	}
	return 0
}

func (m *tree) create(v meta.NodeID, o *meta.Create) (errno syscall.Errno, existing meta.Ino) {
	if e := m.checkDir(o.Parent); e != 0 {
		return e, 0
	}
	ino, hidden := m.find(o.Parent, o.Name, v)
	switch {
	case ino == 0:
		return 0, 0
	case o.Excl || o.Kind != meta.KindFile || m.inodes[ino].kind != meta.KindFile:
		return syscall.EEXIST, 0
	case hidden:
		return syscall.ENOENT, 0
	}
	return 0, ino
}

func (m *tree) made(o *meta.Create, ino meta.Ino, owner meta.NodeID) {
	n := &treeInode{kind: o.Kind}
	if o.Kind == meta.KindDir {
		n.names = map[string]meta.Ino{}
	}
	if o.Kind == meta.KindFile {
		n.owner = owner
	}
	m.inodes[ino] = n
	m.inodes[o.Parent].names[o.Name] = ino
}

func (m *tree) unlink(v meta.NodeID, o *meta.Unlink) syscall.Errno {
	if e := m.checkDir(o.Parent); e != 0 {
		return e
	}
	ino, hidden := m.find(o.Parent, o.Name, v)
	switch {
	case ino == 0 || hidden:
		return syscall.ENOENT
	case m.inodes[ino].kind == meta.KindDir:
		return syscall.EISDIR
	}
	m.drop(o.Parent, o.Name)
	return 0
}

func (m *tree) rmdir(v meta.NodeID, o *meta.Rmdir) syscall.Errno {
	if e := m.checkDir(o.Parent); e != 0 {
		return e
	}
	ino, hidden := m.find(o.Parent, o.Name, v)
	switch {
	case ino == 0 || hidden:
		return syscall.ENOENT
	case m.inodes[ino].kind != meta.KindDir:
		return syscall.ENOTDIR
	case len(m.inodes[ino].names) > 0:
		return syscall.ENOTEMPTY
	}
	m.drop(o.Parent, o.Name)
	return 0
}

func (m *tree) link(o *meta.Link) syscall.Errno {
	if e := m.checkDir(o.Parent); e != 0 {
		return e
	}
	i := m.inodes[o.Ino]
	switch {
	case i == nil:
		return syscall.ENOENT
	case i.kind == meta.KindDir:
		return syscall.EPERM
	case i.owner != 0:
		return syscall.EBUSY
	case m.inodes[o.Parent].names[o.Name] != 0:
		return syscall.EEXIST
	}
	m.inodes[o.Parent].names[o.Name] = o.Ino
	return 0
}

func (m *tree) below(dir, top meta.Ino) bool {
	for ; dir != meta.RootIno; dir = m.parent(dir) {
		if dir == top {
			return true
		}
	}
	return top == meta.RootIno
}

func (m *tree) rename(v meta.NodeID, o *meta.Rename) syscall.Errno {
	for _, d := range []meta.Ino{o.OldParent, o.NewParent} {
		if e := m.checkDir(d); e != 0 {
			return e
		}
	}
	src, hidden := m.find(o.OldParent, o.OldName, v)
	if src == 0 || hidden {
		return syscall.ENOENT
	}
	s := m.inodes[src]
	if s.kind == meta.KindDir && m.below(o.NewParent, src) {
		return syscall.EINVAL
	}
	dst, hidden := m.find(o.NewParent, o.NewName, v)
	if o.Flags == meta.RenameExchange {
		return m.exchange(o, src, dst, hidden)
	}
	if dst == src {
		return 0
	}
	if dst != 0 {
		d := m.inodes[dst]
		switch {
		case o.Flags&meta.RenameNoReplace != 0:
			return syscall.EEXIST
		case s.owner != 0:
			return syscall.EBUSY
		case s.kind == meta.KindDir && d.kind != meta.KindDir:
			return syscall.ENOTDIR
		case s.kind != meta.KindDir && d.kind == meta.KindDir:
			return syscall.EISDIR
		case len(d.names) > 0:
			return syscall.ENOTEMPTY
		}
		m.drop(o.NewParent, o.NewName)
	}
	delete(m.inodes[o.OldParent].names, o.OldName)
	m.inodes[o.NewParent].names[o.NewName] = src
	return 0
}

func (m *tree) exchange(o *meta.Rename, src, dst meta.Ino, hidden bool) syscall.Errno {
	switch {
	case dst == 0 || hidden:
		return syscall.ENOENT
	case m.inodes[src].owner != 0 || m.inodes[dst].owner != 0:
		return syscall.EBUSY
	case m.inodes[dst].kind == meta.KindDir && m.below(o.OldParent, dst):
		return syscall.EINVAL
	}
	m.inodes[o.OldParent].names[o.OldName] = dst
	m.inodes[o.NewParent].names[o.NewName] = src
	return 0
}

// list draws the model as a viewer sees it: path, number, links.
func (m *tree) list(v meta.NodeID) (out []string) {
	var walk func(dir meta.Ino, path string)
	walk = func(dir meta.Ino, path string) {
		for name := range m.inodes[dir].names {
			ino, hidden := m.find(dir, name, v)
			if hidden {
				continue
			}
			i, links := m.inodes[ino], m.links(ino)
			if i.kind == meta.KindDir {
				links = 2
				for _, c := range i.names {
					if m.inodes[c].kind == meta.KindDir {
						links++
					}
				}
				walk(ino, path+"/"+name)
			}
			out = append(out, fmt.Sprintf("%s/%s %d %d", path, name, ino, links))
		}
	}
	walk(meta.RootIno, "")
	sort.Strings(out)
	return out
}

// list draws the database the same way.
func list(t rapid.TB, db meta.Reader, v meta.Lease) (out []string) {
	var walk func(dir meta.Ino, path string)
	walk = func(dir meta.Ino, path string) {
		for last := ""; ; {
			l, err := db.ReadDir(dir, last, 2, v) // small pages: continuing is tested too
			if err != nil {
				t.Fatalf("list %d: %v", dir, err)
			}
			for _, d := range l {
				i, err := db.Lookup(dir, d.Name, v)
				if err != nil || i.Ino != d.Ino || i.Kind != d.Kind {
					t.Fatalf("lookup of listed %q: %+v %v", d.Name, i, err)
				}
				checkNames(t, db, i, path+"/"+d.Name, dir, d.Name)
				if d.Kind == meta.KindDir {
					walk(d.Ino, path+"/"+d.Name)
				}
				out = append(out, fmt.Sprintf("%s/%s %d %d", path, d.Name, d.Ino, i.Nlink))
				last = d.Name
			}
			if len(l) < 2 {
				return
			}
		}
	}
	walk(meta.RootIno, "")
	sort.Strings(out)
	return out
}

// checkNames holds the inode's own list of names against a name that was found.
func checkNames(t rapid.TB, db meta.Reader, i meta.Inode, path string, dir meta.Ino, name string) {
	names, err := meta.Names(db, i.Ino, 100)
	if err != nil {
		t.Fatalf("names of %s: %v", path, err)
	}
	if want := int(i.Nlink); i.Kind != meta.KindDir && len(names) != want {
		t.Fatalf("%s: %d names, %d links", path, len(names), want)
	}
	for _, n := range names {
		if n.Ino == dir && n.Name == name {
			return
		}
	}
	t.Fatalf("%s is not among its names %v", path, names)
}

// TestTreeModel runs random operations of two nodes against the naive model, in memory.
func TestTreeModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		db := meta.OpenMemory()
		c := metatest.Over(t, db, 2)
		m := newTree()
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			step(r, c, m)
		}
		for v := meta.NodeID(1); v <= 2; v++ {
			if diff := cmp.Diff(m.list(v), list(r, db, c.Lease(v))); diff != "" {
				r.Fatalf("as node %d sees it: %s", v, diff)
			}
		}
		if files, _ := db.StatFS(); int(files) != len(m.inodes) {
			r.Fatalf("%d inodes, want %d", files, len(m.inodes))
		}
		checkDigest(r, db)
	})
}

// step draws one operation, applies it to both, and compares the errno.
func step(r *rapid.T, c *metatest.Cluster, m *tree) {
	v := meta.NodeID(rapid.IntRange(1, 2).Draw(r, "node"))
	var inos []meta.Ino
	for ino := range m.inodes {
		inos = append(inos, ino)
	}
	sort.Slice(inos, func(i, j int) bool { return inos[i] < inos[j] })
	ino := func(label string) meta.Ino { return rapid.SampledFrom(inos).Draw(r, label) }
	name := func(label string) string { return rapid.SampledFrom(strings.Split("a b c d", " ")).Draw(r, label) }
	var want, got syscall.Errno
	var op meta.Op
	switch rapid.IntRange(0, 9).Draw(r, "op") {
	case 0, 1, 2:
		kind := rapid.SampledFrom([]meta.Kind{meta.KindFile, meta.KindFile, meta.KindDir, meta.KindFIFO}).Draw(r, "kind")
		o := &meta.Create{Parent: ino("parent"), Name: name("name"), Kind: kind, Excl: rapid.Bool().Draw(r, "excl")}
		var existing meta.Ino
		want, existing = m.create(v, o)
		res := c.Propose(v, o)
		got, op = res.Errno, o
		if want == 0 && existing == 0 && got == 0 {
			m.made(o, res.Ino, v)
		} else if existing != 0 && res.Ino != existing {
			r.Fatalf("%+v answered %+v", o, res)
		}
	case 3:
		p := ino("publish")
		i := m.inodes[p]
		if i.kind != meta.KindFile || i.owner != 0 && i.owner != v {
			return
		}
		c.Inline(v, p, []byte("x"))
		i.owner = 0
	case 4:
		o := &meta.Link{Ino: ino("ino"), Parent: ino("parent"), Name: name("name")}
		want, got, op = m.link(o), c.Propose(v, o).Errno, o
	case 5:
		o := &meta.Unlink{Parent: ino("parent"), Name: name("name")}
		want, got, op = m.unlink(v, o), c.Propose(v, o).Errno, o
	case 6:
		o := &meta.Rmdir{Parent: ino("parent"), Name: name("name")}
		want, got, op = m.rmdir(v, o), c.Propose(v, o).Errno, o
	default:
		o := &meta.Rename{OldParent: ino("from"), OldName: name("old"), NewParent: ino("to"), NewName: name("new")}
		o.Flags = rapid.SampledFrom([]uint32{0, 0, 0, meta.RenameNoReplace, meta.RenameExchange, meta.RenameWhiteout,
			meta.RenameWhiteout | meta.RenameNoReplace}).Draw(r, "flags")
		want, got, op = m.rename(v, o), c.Propose(v, o).Errno, o
		if want == 0 && o.Flags&meta.RenameWhiteout != 0 && m.inodes[o.OldParent].names[o.OldName] == 0 {
			left, err := c.DB.Lookup(o.OldParent, o.OldName, meta.Lease{})
			if err != nil || left.Kind != meta.KindChar || left.Rdev != 0 {
				r.Fatalf("the whiteout is %+v, %v", left, err)
			}
			m.made(&meta.Create{Parent: o.OldParent, Name: o.OldName, Kind: meta.KindChar}, left.Ino, 0)
		}
	}
	if got != want {
		r.Fatalf("node %d %T %+v: %v, the model says %v", v, op, op, got, want)
	}
}

// checkDigest recomputes the digest of everything by way of a snapshot.
func checkDigest(t rapid.TB, db meta.StateMachine) {
	s, index, err := db.Snapshot()
	if err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	defer s.Close()
	again := meta.OpenMemory()
	if err := again.Restore(s); err != nil {
		t.Fatalf("restore: %v", err)
	}
	i, want := db.Digest()
	if j, got := again.Digest(); i != index || j != index || got != want {
		t.Fatalf("restored digest %x at %d, want %x at %d", got, j, want, i)
	}
}
