package meta_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// keepRemoved sets a policy of a directory that keeps what is removed from it for an hour; 0 is the cluster's default.
func keepRemoved(c *metatest.Cluster, dir meta.Ino) {
	c.Do(1, &meta.SetPolicy{Dir: dir, Policy: &meta.Policy{KeepRemoved: uint64(time.Hour)}})
}

func newDir(c *metatest.Cluster, parent meta.Ino, name string) meta.Ino {
	return c.Do(1, &meta.Create{Parent: parent, Name: name, Kind: meta.KindDir, Mode: 0o755}).Ino
}

// written makes a file with a version of 1 MiB on the nodes 1 and 2.
func written(c *metatest.Cluster, dir meta.Ino, name string) (meta.Ino, meta.ContentID) {
	f := c.Do(1, &meta.Create{Parent: dir, Name: name, Kind: meta.KindFile, Mode: 0o640}).Ino
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))
	c.Do(1, p)
	return f, p.Session
}

func removedUnder(t *testing.T, c *metatest.Cluster, path string) []meta.RemovedFile {
	t.Helper()
	list, err := meta.Removals{DB: c.DB.(*meta.DB)}.Under(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// onlyRemoved is the one removed file that is kept.
func onlyRemoved(t *testing.T, c *metatest.Cluster) meta.RemovedFile {
	t.Helper()
	list := removedUnder(t, c, "/")
	if len(list) != 1 {
		t.Fatalf("%d removed files are kept: %+v", len(list), list)
	}
	again, err := meta.Removals{DB: c.DB.(*meta.DB)}.At(list[0].Index)
	if diff := cmp.Diff(list[0], again); diff != "" || err != nil {
		t.Fatal(diff, err)
	}
	return list[0]
}

func retired(events []meta.Event) (out []meta.ContentID) {
	for _, e := range events {
		if e.Kind == meta.EventRetired {
			out = append(out, e.Content)
		}
	}
	return out
}

// A removed file is kept whole: where it was, who removed it, its bytes on their holders and owed to the others, and
// all that it has when it comes back.
func TestRemovedFileIsKeptAndComesBack(t *testing.T) {
	c := metatest.New(t, 3)
	keepRemoved(c, 0)
	d := newDir(c, newDir(c, meta.RootIno, "a"), "d")
	f, id := written(c, d, "f")
	patch := meta.AttrPatch{Mask: meta.AttrUID | meta.AttrGID | meta.AttrMtime, UID: 7, GID: 8, Mtime: 9,
		SetXattr: map[string][]byte{"user.a": []byte("x"), "user.b": {}}}
	c.Do(1, &meta.SetAttr{Ino: f, Patch: patch})
	before := mustInode(t, c.DB, f)
	files, bytes := c.DB.StatFS()
	c.Events()
	c.Do(2, &meta.Unlink{Parent: d, Name: "f"})
	if ids := retired(c.Events()); len(ids) != 0 {
		t.Fatalf("retired: %v", ids)
	}
	kept := onlyRemoved(t, c)
	if kept.Path != "/a/d/f" || kept.Node != 2 || kept.Expires != kept.Removed+int64(time.Hour) ||
		kept.Removed != c.DB.(*meta.DB).Time() || kept.Index != c.DB.Index() {
		t.Fatalf("%+v", kept)
	}
	if diff := cmp.Diff(before, kept.Inode); diff != "" {
		t.Fatal(diff)
	}
	if n, b := c.DB.StatFS(); n != files-1 || b != bytes {
		t.Fatalf("%d files of %d bytes, before %d of %d", n, b, files, bytes)
	}
	rec, err := c.DB.Content(id)
	if err != nil || rec.State != meta.ContentRemoved || rec.Reason != "removed: /a/d/f" {
		t.Fatalf("%+v, %v", rec, err)
	}
	if !holds(t, c, 1, id) || !holds(t, c, 2, id) || holds(t, c, 3, id) || len(owed(t, c, 3)) != 1 {
		t.Fatal("another node holds it, or is owed it")
	}
	c.Do(3, &meta.Held{Node: 3, Contents: []meta.ContentID{id}})
	c.Do(1, &meta.Create{Parent: d, Name: "f", Kind: meta.KindFile})
	wantErrno(t, c.Propose(1, &meta.Undelete{Removed: kept.Index, Parent: d, Name: "f"}), syscall.EEXIST)
	wantErrno(t, c.Propose(1, &meta.Undelete{Removed: kept.Index, Parent: d + 1000, Name: "g"}), syscall.ENOENT)
	wantErrno(t, c.Propose(1, &meta.Undelete{Removed: kept.Index + 1, Parent: d, Name: "g"}), syscall.ENODATA)
	res := c.Do(3, &meta.Undelete{Removed: kept.Index, Parent: d, Name: "g"})
	after := mustInode(t, c.DB, res.Ino)
	if diff := cmp.Diff(before, after, cmpopts.IgnoreFields(meta.Inode{}, "Ino", "Ctime", "Name")); diff != "" {
		t.Fatal(diff)
	}
	if after.Name != "g" || after.Ctime <= before.Ctime || res.Ino == f || res.Version != before.Version {
		t.Fatalf("%+v", after)
	}
	names, err := c.DB.Xattrs(res.Ino)
	value, verr := c.DB.Xattr(res.Ino, "user.a")
	diff := cmp.Diff([]string{"user.a", "user.b"}, names)
	if diff != "" || err != nil || verr != nil || string(value) != "x" {
		t.Fatal(diff, err, value, verr)
	}
	rec, err = c.DB.Content(id)
	if err != nil || rec.State != meta.ContentCurrent || rec.Ino != res.Ino || rec.Reason != "" {
		t.Fatalf("%+v, %v", rec, err)
	}
	if list := removedUnder(t, c, "/"); len(list) != 0 || !holds(t, c, 3, id) {
		t.Fatalf("still kept: %+v", list)
	}
	wantErrno(t, c.Propose(1, &meta.Undelete{Removed: kept.Index, Parent: d, Name: "h"}), syscall.ENODATA)
	c.Do(1, &meta.Unlink{Parent: d, Name: "g"})
	if again := onlyRemoved(t, c); again.Path != "/a/d/g" || again.Inode.Content != id {
		t.Fatalf("%+v", again)
	}
}

// A file with very large extended attributes is not kept: to bring it back, one small entry would write them all.
func TestRemovedFileWithLargeXattrs(t *testing.T) {
	c := metatest.New(t, 3)
	keepRemoved(c, 0)
	for name, values := range map[string]int{"kept": 15, "gone": 16} {
		f, _ := written(c, meta.RootIno, name)
		for n := range values {
			c.Do(1, &meta.SetAttr{Ino: f, Patch: meta.AttrPatch{SetXattr: map[string][]byte{
				fmt.Sprint("user.", n): make([]byte, 1<<16)}}})
		}
		c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: name})
	}
	kept := onlyRemoved(t, c)
	if kept.Path != "/kept" {
		t.Errorf("kept: %s", kept.Path)
	}
	ino := c.Do(1, &meta.Undelete{Removed: kept.Index, Parent: meta.RootIno, Name: "kept"}).Ino
	if names, err := c.DB.Xattrs(ino); err != nil || len(names) != 15 {
		t.Errorf("%v, %v", names, err)
	}
}

// A removed file is kept for its time by the log, and then nothing of it is left.
func TestRemovedFileExpires(t *testing.T) {
	c := metatest.New(t, 3)
	keepRemoved(c, 0)
	f, id := written(c, meta.RootIno, "f")
	c.Do(1, &meta.SetAttr{Ino: f, Patch: meta.AttrPatch{SetXattr: map[string][]byte{"user.a": []byte("x")}}})
	empty := newFile(c, "empty")
	c.Do(1, &meta.Publish{Ino: empty, Session: c.Session(1)})
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "empty"})
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	kept := meta.Removals{DB: c.DB.(*meta.DB)}
	c.Advance(int64(time.Hour) - int64(time.Minute))
	c.Do(1, &meta.Expire{})
	if list := removedUnder(t, c, "/"); len(list) != 2 || kept.Due() || list[0].Path != "/f" {
		t.Fatalf("a minute before their time is over: %+v", list)
	}
	c.Advance(int64(time.Minute))
	c.Do(1, &meta.SetVoters{}) // the log's time goes on by any entry
	if !kept.Due() {
		t.Fatal("nothing is due when their time is over")
	}
	c.Events()
	c.Do(1, &meta.Expire{})
	if ids := retired(c.Events()); len(ids) != 1 || ids[0] != id {
		t.Fatalf("retired: %v", ids)
	}
	if _, err := c.DB.Content(id); err != meta.ErrNotFound {
		t.Fatal(err)
	}
	if _, err := c.DB.Xattr(f, "user.a"); err != meta.ErrNotFound {
		t.Fatalf("an attribute of a file that is gone: %v", err)
	}
	list, rows := removedUnder(t, c, "/"), owed(t, c, 3)
	if _, bytes := c.DB.StatFS(); bytes != 0 || kept.Due() || len(list) != 0 || len(rows) != 0 {
		t.Fatalf("%d bytes are left, %v, %v", bytes, list, rows)
	}
}

// What is given up by hand is gone at once.
func TestDropOfARemovedFile(t *testing.T) {
	c := metatest.New(t, 3)
	keepRemoved(c, 0)
	_, id := written(c, meta.RootIno, "f")
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	index := onlyRemoved(t, c).Index
	c.Events()
	c.Do(2, &meta.Undelete{Removed: index, Drop: true})
	if ids := retired(c.Events()); len(ids) != 1 || ids[0] != id || len(removedUnder(t, c, "/")) != 0 {
		t.Fatalf("retired: %v", ids)
	}
	c.Advance(2 * int64(time.Hour))
	c.Do(1, &meta.Expire{})
	wantErrno(t, c.Propose(1, &meta.Undelete{Removed: index, Drop: true}), syscall.ENODATA)
}

// Only a file that other programs could read is kept, and only when its last name goes.
func TestRemovalsThatKeepNothing(t *testing.T) {
	c := metatest.New(t, 3)
	keepRemoved(c, 0)
	newFile(c, "reserved")
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "reserved"})
	newFile(c, "fenced")
	c.Boot(1)
	c.Do(1, &meta.Expire{})
	newDir(c, meta.RootIno, "dir")
	c.Do(1, &meta.Rmdir{Parent: meta.RootIno, Name: "dir"})
	for i, kind := range []meta.Kind{meta.KindSymlink, meta.KindFIFO, meta.KindSocket, meta.KindChar, meta.KindBlock} {
		name := fmt.Sprint("special", i)
		c.Do(1, &meta.Create{Parent: meta.RootIno, Name: name, Kind: kind, Target: "x"})
		c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: name})
	}
	f, _ := written(c, meta.RootIno, "f")
	c.Do(1, &meta.Link{Ino: f, Parent: meta.RootIno, Name: "second"})
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	deep := meta.RootIno
	for range 20 {
		deep = newDir(c, deep, fmt.Sprintf("%0255d", 0))
	}
	written(c, deep, "deep")
	c.Do(1, &meta.Unlink{Parent: deep, Name: "deep"})
	if list := removedUnder(t, c, "/"); len(list) != 0 {
		t.Fatalf("kept: %+v", list)
	}
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "second"})
	if kept := onlyRemoved(t, c); kept.Path != "/second" || kept.Inode.Ino != f || kept.Inode.Nlink != 1 {
		t.Fatalf("%+v", kept)
	}
}

// A file that another one takes the name of is a removed one too; an older version that was retained goes.
func TestFileThatWasRenamedOverIsKept(t *testing.T) {
	c := metatest.New(t, 3)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{KeepRemoved: 1, Retain: 3}})
	f, first := written(c, meta.RootIno, "f")
	second := push(c, 1, f, first, votes(c, 1, 2))
	c.Do(1, second)
	g, _ := written(c, meta.RootIno, "g")
	c.Events()
	c.Do(1, &meta.Rename{OldParent: meta.RootIno, OldName: "g", NewParent: meta.RootIno, NewName: "f"})
	if kept := onlyRemoved(t, c); kept.Path != "/f" || kept.Inode.Content != second.Session || kept.Inode.Version != 2 {
		t.Fatalf("%+v", kept)
	}
	if ids := retired(c.Events()); len(ids) != 1 || ids[0] != first {
		t.Fatalf("retired: %v", ids)
	}
	if i, err := c.DB.Lookup(meta.RootIno, "f", meta.Lease{}); err != nil || i.Ino != g {
		t.Fatalf("%+v, %v", i, err)
	}
}

// The directory decides when a file is removed from it: files that were there before the policy are kept too, those of
// directories with another policy are not.
func TestPolicyOfTheDirectoryDecides(t *testing.T) {
	c := metatest.New(t, 3)
	d, other := newDir(c, meta.RootIno, "d"), newDir(c, meta.RootIno, "other")
	written(c, d, "f")
	written(c, d, "away")
	keepRemoved(c, d)
	written(c, newDir(c, d, "sub"), "inherits")
	written(c, other, "g")
	c.Do(1, &meta.Rename{OldParent: d, OldName: "away", NewParent: other, NewName: "away"})
	sub, err := c.DB.Lookup(d, "sub", meta.Lease{})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []*meta.Unlink{{Parent: d, Name: "f"}, {Parent: other, Name: "g"}, {Parent: other, Name: "away"},
		{Parent: sub.Ino, Name: "inherits"}} {
		c.Do(1, u)
	}
	paths := func(under string) (out []string) {
		for _, f := range removedUnder(t, c, under) {
			out = append(out, f.Path)
		}
		return out
	}
	for under, want := range map[string][]string{"/": {"/d/sub/inherits", "/d/f"}, "/d": {"/d/sub/inherits", "/d/f"},
		"/d/sub": {"/d/sub/inherits"}, "/d/f": {"/d/f"}, "/other": nil, "/d/su": nil} {
		if diff := cmp.Diff(want, paths(under)); diff != "" {
			t.Errorf("under %s: %s", under, diff)
		}
	}
	wantErrno(t, c.Propose(1, &meta.SetPolicy{Dir: d, Policy: &meta.Policy{KeepRemoved: meta.KeepRemovedMax + 1}}),
		syscall.EINVAL)
	c.Do(1, &meta.SetPolicy{Dir: d, Policy: &meta.Policy{KeepRemoved: meta.KeepRemovedMax}})
}

// G4: what is kept of a removed file is not lost with its only holder unless that is asked for.
func TestEvictRefusesTheOnlyCopyOfARemovedFile(t *testing.T) {
	c := metatest.New(t, 3)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 1, KeepRemoved: 1}})
	f := newFile(c, "f")
	members, _ := c.DB.Members(mustInode(t, c.DB, f).Policy, f)
	p := push(c, 1, f, meta.ContentID{}, votes(c, members...))
	c.Do(1, p)
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	op, d := checked(t, c, members[0])
	if d.Contents != 1 || d.List[0].ID != p.Session {
		t.Fatalf("%+v", d)
	}
	op.Checked = 0
	refusedWith(t, c, op, syscall.EBUSY)
}

// With copies on some nodes, a file that comes back has another inode, and perhaps other nodes that are to hold it.
// They are owed it.
func TestCopiesOfAnUndeletedFileAreOwedToTheirNodes(t *testing.T) {
	c := metatest.New(t, 5)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2, KeepRemoved: 1}})
	moved := false
	for n := range 8 {
		name := fmt.Sprint("f", n)
		f := newFile(c, name)
		members, _ := c.DB.Members(mustInode(t, c.DB, f).Policy, f)
		p := push(c, 1, f, meta.ContentID{}, votes(c, members...))
		c.Do(1, p)
		c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: name})
		res := c.Do(1, &meta.Undelete{Removed: onlyRemoved(t, c).Index, Parent: meta.RootIno, Name: name})
		now, _ := c.DB.Members(res.Inode.Policy, res.Ino)
		for _, m := range now {
			row := false
			for _, o := range owed(t, c, m) {
				row = row || o.Content == p.Session
			}
			if holds(t, c, m, p.Session) == row {
				t.Errorf("%s: member %d holds it and is owed it, or neither", name, m)
			}
			moved = moved || row
		}
		for _, m := range members {
			if !holds(t, c, m, p.Session) {
				t.Errorf("%s: node %d does not hold it any more", name, m)
			}
		}
	}
	if !moved {
		t.Error("no file has other nodes: the test shows nothing")
	}
}

// A removed file comes back by Undelete only, with all that it had.
func TestRestoreLeavesRemovedFilesAlone(t *testing.T) {
	c := metatest.New(t, 3)
	keepRemoved(c, 0)
	f, id := written(c, meta.RootIno, "f")
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	wantErrno(t, c.Propose(1, &meta.Restore{Ino: f, Content: id, Parent: meta.RootIno, Name: "g"}), syscall.EINVAL)
	onlyRemoved(t, c)
	if kept, err := c.DB.(*meta.DB).Kept(10); err != nil || len(kept) != 0 {
		t.Fatalf("among losers and orphans: %+v, %v", kept, err)
	}
}

// What is kept of removed files is the same after a replay, and in a snapshot.
func TestRemovedFilesReplay(t *testing.T) {
	seeds(t, 5, func(t *testing.T, rnd *rand.Rand) {
		rec := newRecorder(meta.OpenMemory())
		c := metatest.Over(t, rec, 3)
		keepRemoved(c, 0)
		for range 200 {
			name := fmt.Sprint("f", rnd.IntN(4))
			f := c.Propose(1, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindFile, Excl: true})
			if f.Errno == 0 {
				c.Inline(1, f.Ino, []byte(name))
			}
			res := c.Propose(2, &meta.Unlink{Parent: meta.RootIno, Name: fmt.Sprint("f", rnd.IntN(4))})
			switch rnd.IntN(4) {
			case 0:
				c.Propose(3, &meta.Undelete{Removed: res.Index, Parent: meta.RootIno, Name: name, Drop: rnd.IntN(2) == 0})
			case 1:
				c.Advance(int64(time.Minute) * rnd.Int64N(30))
				c.Do(1, &meta.Expire{})
			}
		}
		rec.replay(t, meta.OpenMemory(), c.DB.Index())
		s, _, err := c.DB.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		fresh := meta.OpenMemory()
		if err := fresh.Restore(s); err != nil {
			t.Fatal(err)
		}
		was, err := meta.Removals{DB: rec.StateMachine.(*meta.DB)}.Under("/", 1000)
		is, ferr := meta.Removals{DB: fresh}.Under("/", 1000)
		if diff := cmp.Diff(was, is); diff != "" || len(was) == 0 || err != nil || ferr != nil {
			t.Fatal(diff, len(was), err, ferr)
		}
	})
}
