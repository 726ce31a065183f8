package meta_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

func mkdir(c *metatest.Cluster, parent meta.Ino, name string) meta.Ino {
	return c.Do(1, &meta.Create{Parent: parent, Name: name, Kind: meta.KindDir, Mode: 0o755}).Ino
}

// file makes a published file.
func file(c *metatest.Cluster, parent meta.Ino, name string) meta.Ino {
	ino := c.Do(1, &meta.Create{Parent: parent, Name: name, Kind: meta.KindFile, Mode: 0o644}).Ino
	c.Inline(1, ino, []byte(name))
	return ino
}

func wantErrno(t *testing.T, res meta.Result, want syscall.Errno) {
	t.Helper()
	if res.Errno != want {
		t.Fatalf("errno %v, want %v", res.Errno, want)
	}
}

func nlink(t *testing.T, c *metatest.Cluster, ino meta.Ino) uint32 {
	t.Helper()
	i, err := c.DB.Inode(ino)
	if err != nil {
		t.Fatal(err)
	}
	return i.Nlink
}

func TestReservedNameIsSeenByItsWriterOnly(t *testing.T) {
	c := metatest.New(t, 2)
	create := &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile, Mode: 0o644, Excl: true}
	ino := c.Do(1, create).Ino
	if _, err := c.DB.Lookup(meta.RootIno, "f", c.Lease(2)); err != meta.ErrNotFound {
		t.Fatalf("lookup by another: %v", err)
	}
	if i, err := c.DB.Lookup(meta.RootIno, "f", c.Lease(1)); err != nil || i.Ino != ino {
		t.Fatalf("lookup by the writer: %v %v", i, err)
	}
	if l, _ := c.DB.ReadDir(meta.RootIno, "", 10, c.Lease(2)); len(l) != 0 {
		t.Fatalf("another lists %v", l)
	}
	wantErrno(t, c.Propose(2, create), syscall.EEXIST)
	shared := *create
	shared.Excl = false
	wantErrno(t, c.Propose(2, &shared), syscall.ENOENT)
	if res := c.Do(1, &shared); !res.Existed || res.Ino != ino {
		t.Fatalf("the writer again: %+v", res)
	}
	wantErrno(t, c.Propose(2, &meta.Unlink{Parent: meta.RootIno, Name: "f"}), syscall.ENOENT)
	c.Inline(1, ino, []byte("x"))
	if i, err := c.DB.Lookup(meta.RootIno, "f", c.Lease(2)); err != nil || i.Size != 1 || i.Version != 1 {
		t.Fatalf("after the publish: %+v %v", i, err)
	}
}

// A name is given back only while its file has no version.
func TestGiveBackOfAReservedName(t *testing.T) {
	c := metatest.New(t, 2)
	create := &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile, Excl: true}
	ino := c.Do(1, create).Ino
	back := &meta.Unlink{Parent: meta.RootIno, Name: "f", Ino: ino, GiveBack: true}
	if res := c.Do(1, back); res.Removed != ino {
		t.Fatalf("give back: %+v", res)
	}
	ino = c.Do(1, create).Ino
	wantErrno(t, c.Propose(1, back), syscall.ESTALE) // another file
	c.Inline(1, ino, []byte("x"))
	wantErrno(t, c.Propose(1, &meta.Unlink{Parent: meta.RootIno, Name: "f", Ino: ino, GiveBack: true}), syscall.ESTALE)
	if _, err := c.DB.Inode(ino); err != nil {
		t.Fatal(err)
	}
}

func TestFenceFreesReservations(t *testing.T) {
	c := metatest.New(t, 2)
	old := c.Lease(1)
	ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile}).Ino
	c.Do(2, &meta.Down{Node: 1, Incarnation: old.Incarnation, Reason: "silent"})
	if _, err := c.DB.Inode(ino); err != meta.ErrNotFound {
		t.Fatalf("reserved inode after the fence: %v", err)
	}
	c.Do(2, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile, Excl: true})
	wantErrno(t, c.ProposeAs(old, &meta.Publish{Ino: ino,
		Session: meta.ContentID{Node: 1, Incarnation: old.Incarnation, Seq: 1}}), syscall.ESTALE)
}

// A boot ends what the incarnation before had open: all hear of it, and its reserved names are free.
func TestBootFencesTheIncarnationBefore(t *testing.T) {
	c := metatest.New(t, 2)
	old := c.Lease(1)
	inodes, _ := c.DB.StatFS()
	c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile})
	c.Events()
	c.Boot(1)
	ev := c.Events()
	if !slices.ContainsFunc(ev, func(e meta.Event) bool {
		return e.Kind == meta.EventFenced && e.Node == 1 && e.Incarnation == old.Incarnation
	}) {
		t.Fatalf("nobody hears that %v is fenced: %+v", old, ev)
	}
	if now, _ := c.DB.StatFS(); now != inodes {
		t.Fatalf("%d inodes, %d before the reservation", now, inodes)
	}
}

// What a dead process has sent may reach the log late, even if it is sent from two nodes. It must not end the process
// that lives, nor look like another machine with a copy of the directory.
func TestLateBootOfADeadProcessEndsNothing(t *testing.T) {
	c := metatest.New(t, 2)
	boot := func(nonce uint64, next uint64) meta.Result {
		program := meta.Program{Version: "v", Formats: format.Range{Oldest: 1, Newest: 1}}
		return c.ProposeAs(meta.Lease{Node: 2}, &meta.Boot{Node: 2, Store: [16]byte{15: 2}, Nonce: nonce, Next: next,
			Program: program})
	}
	next := uint64(c.Lease(2).Incarnation) + 1
	living := boot(9, next)
	if living.Errno != 0 || uint64(living.Incarnation) != next {
		t.Fatalf("%+v", living)
	}
	for nonce := range uint64(2) {
		if late := boot(1+nonce, next); late.Errno != syscall.EAGAIN || late.Incarnation != living.Incarnation {
			t.Fatalf("a late boot: %+v", late)
		}
	}
	if again := boot(9, next); again.Errno != 0 || again.Incarnation != living.Incarnation {
		t.Fatalf("asked again: %+v", again)
	}
	if now := c.Lease(2).Incarnation; now != living.Incarnation {
		t.Fatalf("incarnation %d, want %d", now, living.Incarnation)
	}
}

func TestManyReservationsAreFreedInSteps(t *testing.T) {
	c := metatest.New(t, 2)
	dir := mkdir(c, meta.RootIno, "d")
	for i := range 2500 {
		c.Do(1, &meta.Create{Parent: dir, Name: strings.Repeat("x", i%200+1) + string(rune('a'+i/200)), Kind: meta.KindFile})
	}
	c.Do(2, &meta.Down{Node: 1, Incarnation: c.Lease(1).Incarnation})
	if l, _ := c.DB.ReadDir(dir, "", 10, c.Lease(1)); len(l) != 0 {
		t.Fatalf("fenced reservations are listed: %v", l)
	}
	for range 3 {
		c.Do(2, &meta.Expire{})
	}
	if files, _ := c.DB.StatFS(); files != 2 {
		t.Fatalf("%d inodes, want 2", files)
	}
	c.Do(2, &meta.Rmdir{Parent: meta.RootIno, Name: "d"})
}

func TestNames(t *testing.T) {
	c := metatest.New(t, 1)
	d := mkdir(c, meta.RootIno, "d")
	f := file(c, d, "f")
	for name, want := range map[string]syscall.Errno{
		"": syscall.EINVAL, ".": syscall.EINVAL, "..": syscall.EINVAL, "a/b": syscall.EINVAL, "a\x00": syscall.EINVAL,
		strings.Repeat("n", 256): syscall.ENAMETOOLONG, strings.Repeat("n", 255): 0,
	} {
		wantErrno(t, c.Propose(1, &meta.Create{Parent: d, Name: name, Kind: meta.KindFIFO}), want)
	}
	wantErrno(t, c.Propose(1, &meta.Create{Parent: f, Name: "x", Kind: meta.KindDir}), syscall.ENOTDIR)
	wantErrno(t, c.Propose(1, &meta.Create{Parent: 999, Name: "x", Kind: meta.KindDir}), syscall.ENOENT)
	wantErrno(t, c.Propose(1, &meta.Create{Parent: meta.RootIno, Name: "d", Kind: meta.KindFile}), syscall.EEXIST)
	wantErrno(t, c.Propose(1, &meta.Create{Parent: d, Name: "k", Kind: 99}), syscall.EINVAL)
	wantErrno(t, c.Propose(1, &meta.Rmdir{Parent: meta.RootIno, Name: "d"}), syscall.ENOTEMPTY)
	wantErrno(t, c.Propose(1, &meta.Rmdir{Parent: d, Name: "f"}), syscall.ENOTDIR)
	wantErrno(t, c.Propose(1, &meta.Unlink{Parent: meta.RootIno, Name: "d"}), syscall.EISDIR)
	wantErrno(t, c.Propose(1, &meta.Unlink{Parent: d, Name: "f", Ino: d}), syscall.ESTALE)
	wantErrno(t, c.Propose(1, &meta.Link{Ino: d, Parent: d, Name: "l"}), syscall.EPERM)
	wantErrno(t, c.Propose(1, &meta.Link{Ino: f, Parent: d, Name: "f"}), syscall.EEXIST)
	if got := nlink(t, c, meta.RootIno); got != 3 {
		t.Fatalf("root has %d links", got)
	}
}

func TestHardLinks(t *testing.T) {
	c := metatest.New(t, 1)
	a, b := mkdir(c, meta.RootIno, "a"), mkdir(c, meta.RootIno, "b")
	f := file(c, a, "one")
	c.Do(1, &meta.Link{Ino: f, Parent: b, Name: "two"})
	c.Do(1, &meta.Link{Ino: f, Parent: b, Name: "three"})
	if got := nlink(t, c, f); got != 3 {
		t.Fatalf("%d links", got)
	}
	names := func() (s string) {
		l, err := meta.Names(c.DB, f, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range l {
			i, _ := c.DB.Inode(d.Ino)
			s += i.Name + "/" + d.Name + " "
		}
		return s
	}
	if got := names(); got != "a/one b/three b/two " {
		t.Fatal(got)
	}
	if res := c.Do(1, &meta.Unlink{Parent: a, Name: "one"}); res.Removed != 0 || res.Inode.Nlink != 2 {
		t.Fatalf("%+v", res)
	}
	c.Do(1, &meta.Rename{OldParent: b, OldName: "two", NewParent: a, NewName: "2"})
	if got := names(); got != "b/three a/2 " {
		t.Fatal(got)
	}
	// Two names of one inode: rename does nothing.
	c.Do(1, &meta.Rename{OldParent: b, OldName: "three", NewParent: a, NewName: "2"})
	if got := names(); got != "b/three a/2 " {
		t.Fatal(got)
	}
	c.Do(1, &meta.Unlink{Parent: a, Name: "2"})
	if res := c.Do(1, &meta.Unlink{Parent: b, Name: "three"}); res.Removed != f {
		t.Fatalf("%+v", res)
	}
	if kept, _ := c.DB.Kept(10); len(kept) != 0 {
		t.Fatal(kept)
	}
}

func TestRename(t *testing.T) {
	c := metatest.New(t, 1)
	a, b := mkdir(c, meta.RootIno, "a"), mkdir(c, meta.RootIno, "b")
	sub := mkdir(c, a, "sub")
	f, g := file(c, a, "f"), file(c, b, "g")
	mv := func(op, on meta.Ino, o string, n string, flags uint32) meta.Result {
		return c.Propose(1, &meta.Rename{OldParent: op, OldName: o, NewParent: on, NewName: n, Flags: flags})
	}
	wantErrno(t, mv(a, b, "none", "x", 0), syscall.ENOENT)
	wantErrno(t, mv(a, b, "f", "g", meta.RenameNoReplace), syscall.EEXIST)
	wantErrno(t, mv(a, b, "f", "x", meta.RenameExchange), syscall.ENOENT)
	wantErrno(t, mv(a, b, "f", "x", 8), syscall.EINVAL)
	wantErrno(t, mv(a, b, "f", "x", meta.RenameExchange|meta.RenameWhiteout), syscall.EINVAL)
	wantErrno(t, mv(a, b, "f", "x", meta.RenameExchange|meta.RenameNoReplace), syscall.EINVAL)
	wantErrno(t, mv(meta.RootIno, sub, "a", "x", 0), syscall.EINVAL)
	wantErrno(t, mv(a, meta.RootIno, "sub", "a", 0), syscall.ENOTEMPTY)
	wantErrno(t, mv(a, meta.RootIno, "sub", "b", 0), syscall.ENOTEMPTY)
	wantErrno(t, mv(a, b, "sub", "g", 0), syscall.ENOTDIR)
	wantErrno(t, mv(a, meta.RootIno, "f", "b", 0), syscall.EISDIR)
	wantErrno(t, mv(meta.RootIno, a, "a", "sub", meta.RenameExchange), syscall.EINVAL)
	wantErrno(t, mv(a, meta.RootIno, "sub", "a", meta.RenameExchange), syscall.EINVAL)

	if res := mv(a, b, "f", "g", 0); res.Errno != 0 || res.Removed != g || res.Ino != f {
		t.Fatalf("%+v", res)
	}
	wantErrno(t, mv(a, b, "sub", "sub", 0), 0)
	if nlink(t, c, a) != 2 || nlink(t, c, b) != 3 {
		t.Fatalf("links %d %d", nlink(t, c, a), nlink(t, c, b))
	}
	if i, _ := c.DB.Inode(sub); i.Parent != b {
		t.Fatalf("parent %d", i.Parent)
	}
	// Exchange of a file and a directory between two directories.
	h := file(c, a, "h")
	wantErrno(t, mv(a, b, "h", "sub", meta.RenameExchange), 0)
	if i, err := c.DB.Lookup(b, "sub", meta.Lease{}); err != nil || i.Ino != h {
		t.Fatal(i, err)
	}
	if nlink(t, c, a) != 3 || nlink(t, c, b) != 2 {
		t.Fatalf("links %d %d", nlink(t, c, a), nlink(t, c, b))
	}
}

func TestAttributes(t *testing.T) {
	c := metatest.New(t, 1)
	f := file(c, meta.RootIno, "f")
	set := func(p meta.AttrPatch, flags uint32) meta.Result {
		return c.Propose(1, &meta.SetAttr{Ino: f, Patch: p, XattrFlags: flags})
	}
	res := set(meta.AttrPatch{Mask: meta.AttrMode | meta.AttrUID, Mode: 0o6755, UID: 7}, 0)
	if res.Inode.Mode != 0o6755 || res.Inode.UID != 7 {
		t.Fatalf("%+v", res.Inode)
	}
	if res = set(meta.AttrPatch{Mask: meta.AttrKillPriv}, 0); res.Inode.Mode != 0o755 {
		t.Fatalf("mode %o", res.Inode.Mode)
	}
	x := func(name string, size int) meta.AttrPatch {
		return meta.AttrPatch{SetXattr: map[string][]byte{name: make([]byte, size)}}
	}
	wantErrno(t, set(x("user.a", 10), meta.XattrReplace), syscall.ENODATA)
	wantErrno(t, set(x("user.a", 0), meta.XattrCreate), 0)
	wantErrno(t, set(x("user.a", 10), meta.XattrCreate), syscall.EEXIST)
	wantErrno(t, set(x("user.b", 64<<10), 0), 0)
	wantErrno(t, set(x("user.c", 64<<10+1), 0), syscall.E2BIG)
	wantErrno(t, set(x(strings.Repeat("n", 256), 1), 0), syscall.ERANGE)
	if l, err := c.DB.Xattrs(f); err != nil || strings.Join(l, " ") != "user.a user.b" {
		t.Fatal(l, err)
	}
	if v, err := c.DB.Xattr(f, "user.a"); err != nil || len(v) != 0 {
		t.Fatal(v, err)
	}
	wantErrno(t, set(meta.AttrPatch{DelXattr: []string{"user.z"}}, 0), syscall.ENODATA)
	wantErrno(t, set(meta.AttrPatch{DelXattr: []string{"user.a", "user.b"}}, 0), 0)
	if i, _ := c.DB.Inode(f); i.Xattrs != 0 {
		t.Fatal(i.Xattrs)
	}
	d := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "d", Kind: meta.KindDir, Mode: 0o2775,
		Cred: meta.Cred{GID: 5}}).Ino
	sub := c.Do(1, &meta.Create{Parent: d, Name: "s", Kind: meta.KindDir, Mode: 0o755, Cred: meta.Cred{GID: 9}})
	if sub.Inode.GID != 5 || sub.Inode.Mode != 0o2755 {
		t.Fatalf("%+v", sub.Inode)
	}
}

// A whiteout is a character device of number 0 at the old name. Nobody sees the name missing.
func TestRenameLeavesAWhiteout(t *testing.T) {
	c := metatest.New(t, 1)
	a, b := mkdir(c, meta.RootIno, "a"), mkdir(c, meta.RootIno, "b")
	f, sub, g := file(c, a, "f"), mkdir(c, a, "sub"), file(c, b, "g")
	cred := meta.Cred{UID: 7, GID: 8}
	mv := func(o, n string, flags uint32) meta.Result {
		return c.Propose(1, &meta.Rename{OldParent: a, OldName: o, NewParent: b, NewName: n, Flags: flags, Cred: cred})
	}
	wantErrno(t, mv("f", "g", meta.RenameWhiteout|meta.RenameNoReplace), syscall.EEXIST)
	if res := mv("f", "g", meta.RenameWhiteout); res.Errno != 0 || res.Ino != f || res.Removed != g {
		t.Fatalf("%+v", res)
	}
	wantErrno(t, mv("sub", "sub", meta.RenameWhiteout), 0)
	for _, name := range []string{"f", "sub"} {
		i, err := c.DB.Lookup(a, name, meta.Lease{})
		if err != nil || i.Kind != meta.KindChar || i.Rdev != 0 || i.Mode != 0 || i.Nlink != 1 || i.UID != 7 || i.GID != 8 {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
	}
	if i, err := c.DB.Inode(sub); err != nil || i.Parent != b || nlink(t, c, a) != 2 || nlink(t, c, b) != 3 {
		t.Errorf("%+v, %v, links %d %d", i, err, nlink(t, c, a), nlink(t, c, b))
	}
}
