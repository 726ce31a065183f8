package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// treeOfPaths has a directory /d and a file /d/f.
func treeOfPaths(t *testing.T) (ps *paths, c *metatest.Cluster, dir, file meta.Ino) {
	t.Helper()
	c = metatest.New(t, 1)
	dir = c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "d", Kind: meta.KindDir}).Ino
	file = c.Do(1, &meta.Create{Parent: dir, Name: "f", Kind: meta.KindFile}).Ino
	c.Inline(1, file, []byte("bytes"))
	return &paths{names: c.DB.(*meta.DB), lease: func() meta.Lease { return c.Lease(1) }}, c, dir, file
}

// A path leads to the inode whose path it is.
func TestPathsThereAndBack(t *testing.T) {
	ps, _, dir, file := treeOfPaths(t)
	for want, ino := range map[string]meta.Ino{"/": meta.RootIno, "/d": dir, "/d/f": file} {
		got, err := ps.of(ino)
		rec, clean, lerr := ps.lookup(want + "/")
		if err != nil || lerr != nil || got != want || clean != want || rec.Ino != ino {
			t.Errorf("inode %d is %q (%v), %q is inode %d (%v)", ino, got, err, want, rec.Ino, lerr)
		}
	}
	if _, _, err := ps.lookup("/d/none"); admin.CodeOf(err) != admin.CodeNotFound {
		t.Errorf("no such file: %v", err)
	}
}

// The parent of a path is a directory; the path itself need not be there.
func TestParentOfAPath(t *testing.T) {
	ps, _, dir, _ := treeOfPaths(t)
	if rec, name, err := ps.parent("d/new"); err != nil || rec.Ino != dir || name != "new" {
		t.Errorf("inode %d, %q, %v", rec.Ino, name, err)
	}
	for path, code := range map[string]admin.Code{"/": admin.CodeInvalid, "/d/f/new": admin.CodeInvalid,
		"/none/new": admin.CodeNotFound} {
		if _, _, err := ps.parent(path); admin.CodeOf(err) != code {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Staged bytes belong to their file. Without it they belong to the name that they were opened under, in the directory
// of then if that is there. A content is named by its file, or by its id.
func TestPathsOfWhatHasNone(t *testing.T) {
	ps, c, dir, file := treeOfPaths(t)
	staged := func(want string, o content.Origin) {
		t.Helper()
		if got := ps.ofStaged(content.Unpublished{Origin: o}); got != want {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
	at := content.Origin{Ino: uint64(file), Parent: uint64(dir), Name: "old"}
	staged("/d/f", at)
	rec, err := ps.names.Inode(file)
	if err != nil {
		t.Fatal(err)
	}
	kept := meta.Content{ID: rec.Content, Ino: file}
	if got := ps.ofContent(kept); got != "/d/f" {
		t.Errorf("of a content: %q", got)
	}
	c.Do(1, &meta.Unlink{Parent: dir, Name: "f"})
	staged("/d/old", at)
	if got := ps.ofContent(kept); got != fmt.Sprint("content ", rec.Content) {
		t.Errorf("of a content without a file: %q", got)
	}
	at.Parent = 99
	staged("old", at)
}

// A version that can't be brought back under a name: what the user reads depends on what has the name.
func TestWhyARestoreIsRefused(t *testing.T) {
	ps, _, _, _ := treeOfPaths(t)
	for as, says := range map[string]string{"/d/f": "remove it", "/d/reserved": "a program on another node"} {
		err := ps.refused(17, as)
		if admin.CodeOf(err) != admin.CodeExists || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", as, err)
		}
	}
	if err := ps.refused(2, ""); admin.CodeOf(err) != admin.CodeNotFound {
		t.Error(err)
	}
}
