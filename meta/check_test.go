package meta_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// checkable is a state that has records of all tables.
type checkable struct {
	db               *meta.DB
	dir, sub, linked meta.Ino
	file, link, kept meta.Ino
	current, older   meta.ContentID
	small            meta.ContentID
}

// newCheckable makes one. The test forges it, so it is closed before the cluster's own look at it.
func newCheckable(t *testing.T) (f checkable) {
	t.Helper()
	f.db = meta.OpenMemory()
	c := metatest.Over(t, f.db, 3)
	t.Cleanup(func() { f.db.Close() })
	c.Do(1, &meta.Audit{Command: "rdmcfs policy dir"})
	f.dir = newDir(c, meta.RootIno, "dir")
	c.Do(1, &meta.SetPolicy{Dir: f.dir, Policy: &meta.Policy{Retain: 2, KeepRemoved: uint64(time.Hour)}})
	f.sub = newDir(c, f.dir, "sub")
	f.file, f.older = written(c, f.dir, "file")
	newer := push(c, 1, f.file, f.older, votes(c, 1, 2))
	c.Do(1, newer)
	f.current = newer.Session
	c.Do(2, push(c, 2, f.file, f.older, votes(c, 1, 2))) // newer loses
	f.current = mustInode(t, f.db, f.file).Content
	f.linked = file(c, f.sub, "linked")
	f.small = mustInode(t, f.db, f.linked).Content
	c.Do(1, &meta.Link{Ino: f.linked, Parent: f.dir, Name: "again"})
	f.link = c.Do(1, &meta.Create{Parent: f.dir, Name: "link", Kind: meta.KindSymlink, Target: "file"}).Ino
	patch := meta.AttrPatch{SetXattr: map[string][]byte{"user.a": []byte("x"), "user.b": {}}}
	f.kept, _ = written(c, f.dir, "removed")
	c.Do(1, &meta.SetAttr{Ino: f.kept, Patch: patch})
	c.Do(1, &meta.SetAttr{Ino: f.file, Patch: patch})
	c.Do(1, &meta.Unlink{Parent: f.dir, Name: "removed"})
	c.Do(1, &meta.Create{Parent: f.dir, Name: "being written", Kind: meta.KindFile})
	c.Do(1, &meta.DelegateNames{Dir: f.sub})
	return f
}

// faultsOf checks a state.
func faultsOf(t *testing.T, db *meta.DB) (list []string) {
	t.Helper()
	seen := uint64(0)
	did, err := meta.Checks{DB: db}.Run(t.Context(), func(f meta.Fault) error {
		list = append(list, fmt.Sprintf("%d %s %s: %s", f.Ino, f.Name, f.Content, f.Text))
		return nil
	}, func(records uint64) { seen = records })
	if err != nil || did.Index != db.Index() || seen != did.Records {
		t.Fatalf("check: %+v, %d records seen, %v", did, seen, err)
	}
	return list
}

// refersToNothing are the tables whose records nothing refers to and that refer to nothing.
const refersToNothing = "mswxtylj"

// Every record that goes missing is noticed, by what refers to it.
func TestCheckNoticesWhatIsMissing(t *testing.T) {
	whole := newCheckable(t)
	if faults := faultsOf(t, whole.db); len(faults) != 0 {
		t.Fatalf("faults of a sound state: %q", faults)
	}
	keys := map[string]string{}
	if err := whole.db.Raw().Scan("", "", 1<<20, func(key, value string) { keys[key] = value }); err != nil {
		t.Fatal(err)
	}
	tables := map[byte]bool{}
	for key, value := range keys {
		if key == "H" || strings.IndexByte(refersToNothing, key[0]) >= 0 {
			continue
		}
		tables[key[0]] = true
		whole.db.ForgePair(key, nil)
		if len(faultsOf(t, whole.db)) == 0 {
			t.Errorf("the record %q is missing, and nothing is found", key)
		}
		whole.db.ForgePair(key, []byte(value))
	}
	for _, table := range "idnacbpuvkzorqehA" {
		if !tables[byte(table)] {
			t.Errorf("the state has no record of table %c", table)
		}
	}
	if faults := faultsOf(t, whole.db); len(faults) != 0 {
		t.Errorf("faults of a sound state: %q", faults)
	}
}

// Records that contradict each other are noticed, and the fault names what they are about.
func TestCheckNoticesContradictions(t *testing.T) {
	for _, c := range []struct {
		says  string
		forge func(f checkable)
	}{
		{"directories in it", func(f checkable) { f.db.ForgeInode(f.dir, func(i *meta.Inode) { i.Nlink++ }) }},
		{"it has 3 links and 2 names", func(f checkable) { f.db.ForgeInode(f.linked, func(i *meta.Inode) { i.Nlink++ }) }},
		{"is not there or has one link", func(f checkable) { f.db.ForgeInode(f.linked, func(i *meta.Inode) { i.Nlink-- }) }},
		{"it has no link and is there", func(f checkable) { f.db.ForgeInode(f.link, func(i *meta.Inode) { i.Nlink = 0 }) }},
		{"and its content version 3 of 1048576", func(f checkable) {
			f.db.ForgeInode(f.file, func(i *meta.Inode) { i.Size++ })
		}},
		{"it has 6 bytes and no content", func(f checkable) {
			f.db.ForgeInode(f.linked, func(i *meta.Inode) { i.Content = meta.ContentID{} })
		}},
		{"or is not current", func(f checkable) {
			f.db.ForgeInode(f.file, func(i *meta.Inode) { i.Content = f.older })
		}},
		{"no file has it", func(f checkable) { f.db.ForgeInode(f.file, func(i *meta.Inode) { i.Content = f.older }) }},
		{"and its target has", func(f checkable) { f.db.ForgeInode(f.link, func(i *meta.Inode) { i.Target += "x" }) }},
		{"extended attributes and has 2", func(f checkable) {
			f.db.ForgeInode(f.file, func(i *meta.Inode) { i.Xattrs = 1 })
		}},
		{"or counts none", func(f checkable) { f.db.ForgeInode(f.file, func(i *meta.Inode) { i.Xattrs = 0 }) }},
		{"it leads to inode 77, which is not there", func(f checkable) {
			f.db.ForgeDirent(f.dir, "nothing", 77, meta.KindFile)
		}},
		{"which does not have this name", func(f checkable) {
			f.db.ForgeDirent(f.dir, "third", f.linked, meta.KindFile)
		}},
		{"it is no regular file and has a content", func(f checkable) {
			f.db.ForgeInode(f.link, func(i *meta.Inode) { i.Content = f.small })
		}},
		{"its policy 99 is not there", func(f checkable) { f.db.ForgeInode(f.dir, func(i *meta.Inode) { i.Policy = 99 }) }},
		{"the policy 99 of its content", func(f checkable) {
			f.db.ForgeContent(f.current, func(c *meta.Content) { c.Policy = 99 })
		}},
		{"has not 7 bytes in the state", func(f checkable) {
			f.db.ForgeContent(f.small, func(c *meta.Content) { c.Size++ })
		}},
		{"contents of policy", func(f checkable) { f.db.ForgeContent(f.current, func(c *meta.Content) { c.Size++ }) }},
		{"bytes of contents, and there are", func(f checkable) {
			f.db.ForgeContent(f.current, func(c *meta.Content) { c.Size++ })
		}},
		{"later than now", func(f checkable) {
			f.db.ForgeContent(f.current, func(c *meta.Content) { c.Published = 1 << 40 })
		}},
		{"is in no known state: 9", func(f checkable) { f.db.ForgeContent(f.older, func(c *meta.Content) { c.State = 9 }) }},
		{"would never expire", func(f checkable) { f.db.ForgeContent(f.older, func(c *meta.Content) { c.Expires = 5 }) }},
		{"no program can use the name", func(f checkable) { f.db.ForgeDirent(f.dir, "a/b", f.file, meta.KindFile) }},
		{"can't be read", func(f checkable) { f.db.ForgePair("i\x00\x00\x00\x00\x00\x00\x00\x63", []byte{1, 2}) }},
		{"a record of no known table", func(f checkable) { f.db.ForgePair("Z", []byte{1}) }},
		{"a record of no known table, or with too short a key: 69", func(f checkable) { f.db.ForgePair("i", []byte{1}) }},
		{"its parents do not lead to the root", func(f checkable) {
			f.db.ForgePair("d\x00\x00\x00\x00\x00\x00\x00\x01dir", nil)
			f.db.ForgeDirent(f.sub, "dir", f.dir, meta.KindDir)
			f.db.ForgeInode(f.dir, func(i *meta.Inode) { i.Parent, i.Name = f.sub, "dir" })
			f.db.ForgeInode(f.sub, func(i *meta.Inode) { i.Nlink++ })
			f.db.ForgeInode(meta.RootIno, func(i *meta.Inode) { i.Nlink-- })
		}},
	} {
		f := newCheckable(t)
		c.forge(f)
		if faults := faultsOf(t, f.db); !strings.Contains(strings.Join(faults, "\n"), c.says) {
			t.Errorf("no fault says %q, but %q", c.says, faults)
		}
	}
}

// A check ends with its context, with an error of its listener, and when the state is replaced.
func TestCheckEnds(t *testing.T) {
	f := newCheckable(t)
	ignore := func(uint64) {}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (meta.Checks{DB: f.db}).Run(ctx, nil, ignore); !errors.Is(err, context.Canceled) {
		t.Errorf("after a cancel: %v", err)
	}
	f.db.ForgePair("Z", []byte{1})
	gone := errors.New("nobody listens")
	leaves := func(meta.Fault) error { return gone }
	if _, err := (meta.Checks{DB: f.db}).Run(t.Context(), leaves, ignore); !errors.Is(err, gone) {
		t.Errorf("without a listener: %v", err)
	}
	f.db.Close()
	if _, err := (meta.Checks{DB: f.db}).Run(t.Context(), nil, ignore); !errors.Is(err, meta.ErrClosed) {
		t.Errorf("of a closed state: %v", err)
	}
}

// What is owed to whom and why is known of each content, and who holds it; inline ones are not listed.
func TestWhereCopiesAre(t *testing.T) {
	c := metatest.New(t, 4)
	f, first := written(c, meta.RootIno, "f")
	file(c, meta.RootIno, "inline")
	c.Do(2, &meta.Unheld{Node: 2, Contents: []meta.ContentID{first}, Reason: meta.OwedLost})
	c.Do(1, &meta.Down{Node: 4, Incarnation: c.Lease(4).Incarnation})
	next := push(c, 1, newFile(c, "g"), meta.ContentID{}, votes(c, 1, 3))
	c.Do(1, next)
	db := c.DB.(*meta.DB)
	got := map[meta.ContentID]string{}
	for after := (meta.ContentID{}); ; {
		page, more, err := meta.Checks{DB: db}.Copies(after, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range page {
			got[x.ID] = fmt.Sprint(x.Holders, x.Lacking)
		}
		if after = more; more.IsZero() {
			break
		}
	}
	want := map[meta.ContentID]string{first: "[1] [{2 lost or damaged there} {3 unreachable} {4 unreachable}]",
		next.Session: "[1 3] [{2 unreachable} {4 down}]"}
	if len(got) != 2 || got[first] != want[first] || got[next.Session] != want[next.Session] {
		t.Errorf("copies: %v, want %v (inode %d)", got, want, f)
	}
}

// A file with several names is below the directories of all of them, and a directory below itself and its parents.
func TestBelow(t *testing.T) {
	f := newCheckable(t)
	known := map[meta.Ino]bool{}
	for range 2 { // the second time from what is known
		for _, c := range []struct {
			ino, dir meta.Ino
			want     bool
		}{{f.linked, f.sub, true}, {f.linked, f.dir, true}, {f.file, f.dir, true}, {f.sub, f.dir, true},
			{f.dir, f.sub, false}, {meta.RootIno, f.sub, false}, {f.sub, meta.RootIno, true}, {f.file, f.file, true}} {
			if c.dir != f.dir {
				clear(known) // of another directory
			}
			in, err := meta.Checks{DB: f.db}.Below(c.ino, c.dir, known)
			if err != nil || in != c.want {
				t.Errorf("%d below %d: %v, %v", c.ino, c.dir, in, err)
			}
		}
		clear(known)
	}
	if _, err := (meta.Checks{DB: f.db}).Below(99, f.dir, known); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("of what is not there: %v", err)
	}
}

// A check looks at one version of a state on disk, whatever is changed and compacted meanwhile.
func TestCheckWhileApplyGoesOn(t *testing.T) {
	db := openSmall(t, t.TempDir())
	c := metatest.Over(t, db, 2)
	var files []meta.Ino
	for i := range 600 {
		files = append(files, file(c, meta.RootIno, fmt.Sprint(i)))
	}
	before, changed := db.Index(), false
	did, err := meta.Checks{DB: db}.Run(t.Context(), func(f meta.Fault) error {
		t.Errorf("%+v", f)
		return nil
	}, func(uint64) {
		if changed {
			return
		}
		changed = true
		for i, f := range files {
			c.Inline(1, f, []byte("another version"))
			c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: fmt.Sprint(i)})
		}
		fill := meta.AttrPatch{SetXattr: map[string][]byte{"user.a": make([]byte, 32<<10)}}
		for i := range 200 { // what memory does not hold is compacted
			fill.SetXattr["user.a"][0] = byte(i)
			c.Do(1, &meta.SetAttr{Ino: meta.RootIno, Patch: fill})
		}
		_, err := db.Sync()
		if err := errors.Join(err, db.Compact()); err != nil {
			t.Error(err)
		}
	})
	if err != nil || did.Index != before || did.Inodes != 601 || !changed {
		t.Errorf("%+v, %v", did, err)
	}
}

// BenchmarkCheck checks a state on disk of 20,000 files, each with a content on two nodes of three.
func BenchmarkCheck(b *testing.B) {
	db, err := meta.Open(b.TempDir(), meta.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	c := metatest.Over(b, db, 3)
	dir := meta.Ino(0)
	for i := range 20_000 {
		if i%100 == 0 {
			dir = newDir(c, meta.RootIno, fmt.Sprint("dir", i))
		}
		f := c.Do(1, &meta.Create{Parent: dir, Name: fmt.Sprint("file", i), Kind: meta.KindFile, Mode: 0o640}).Ino
		c.Do(1, push(c, 1, f, meta.ContentID{}, votes(c, 1, 2)))
	}
	for b.Loop() {
		if _, err := (meta.Checks{DB: db}).Run(b.Context(), func(f meta.Fault) error { return errors.New(f.Text) },
			func(uint64) {}); err != nil {
			b.Fatal(err)
		}
	}
}
