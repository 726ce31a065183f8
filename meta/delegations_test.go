package meta_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// heldDir is a directory whose new names node 1 gives, and the first of the inode numbers that it got.
func heldDir(c *metatest.Cluster) (dir, first meta.Ino) {
	dir = newDir(c, meta.RootIno, "d")
	return dir, c.Do(1, &meta.DelegateNames{Dir: dir, Numbers: true}).Ino
}

// numbered is the first publish of an empty file that node n has numbered.
func numbered(c *metatest.Cluster, n meta.NodeID, dir meta.Ino, name string, ino meta.Ino) *meta.Publish {
	return &meta.Publish{Ino: ino, Session: c.Session(n), LinkParent: dir, LinkName: name,
		Made: &meta.Made{Mode: 0o640, Policy: 1}}
}

func answers(t *testing.T, what string, res meta.Result, want syscall.Errno) {
	t.Helper()
	if res.Errno != want {
		t.Errorf("%s: %v, want %v", what, res.Errno, want)
	}
}

func holderOf(t *testing.T, c *metatest.Cluster, dir meta.Ino) meta.Lease {
	t.Helper()
	l, err := c.DB.(*meta.DB).NamesHolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The holder's files get name and number with their first publish. What is there is everybody's.
func TestHolderGivesNamesByItself(t *testing.T) {
	c := metatest.New(t, 3)
	dir, ino := heldDir(c)
	res := c.Do(1, numbered(c, 1, dir, "a", ino))
	if res.Ino != ino || res.Version != 1 || res.Inode.Parent != dir || res.Inode.Name != "a" {
		t.Fatalf("published as %+v", res)
	}
	if i, err := c.DB.Lookup(dir, "a", meta.Lease{}); err != nil || i.Ino != ino {
		t.Fatalf("found %+v, %v", i, err)
	}
	answers(t, "a number that an inode has, under another name", c.Propose(1, numbered(c, 1, dir, "b", ino)), 0)
	if _, err := c.DB.Lookup(dir, "b", meta.Lease{}); err == nil {
		t.Error("a second publish gave the file a second name")
	}
	answers(t, "a name that is taken", c.Propose(1, numbered(c, 1, dir, "a", ino+1)), syscall.EEXIST)
	answers(t, "a number of the next block",
		c.Propose(1, numbered(c, 1, dir, "c", ino+meta.NamesBlock)), syscall.EINVAL)
	answers(t, "another node's number", c.Propose(2, numbered(c, 2, dir, "c", ino+1)), syscall.EINVAL)
	if res := c.Do(2, &meta.Create{Parent: dir, Name: "a", Kind: meta.KindFile}); !res.Existed || res.Ino != ino {
		t.Errorf("an open of what is there: %+v", res)
	}
	answers(t, "O_EXCL of what is there",
		c.Propose(2, &meta.Create{Parent: dir, Name: "a", Kind: meta.KindFile, Excl: true}), syscall.EEXIST)
	answers(t, "unlink by another node", c.Propose(2, &meta.Unlink{Parent: dir, Name: "a"}), 0)
}

// Nobody else puts a name there, or removes the directory.
func TestNamesOfAHeldDirectoryAreTheHolders(t *testing.T) {
	c := metatest.New(t, 3)
	keepRemoved(c, 0)
	dir, _ := heldDir(c)
	sub := newDir(c, dir, "sub")
	file, _ := written(c, meta.RootIno, "f")
	gone, _ := written(c, meta.RootIno, "gone")
	c.Do(2, &meta.Unlink{Parent: meta.RootIno, Name: "gone", Ino: gone})
	removed := onlyRemoved(t, c)
	empty := newDir(c, meta.RootIno, "empty")
	c.Do(1, &meta.DelegateNames{Dir: empty})
	other := newDir(c, meta.RootIno, "other")
	for what, op := range map[string]meta.Op{
		"create":            &meta.Create{Parent: dir, Name: "x", Kind: meta.KindFile},
		"mkdir":             &meta.Create{Parent: dir, Name: "x", Kind: meta.KindDir},
		"create below":      &meta.Create{Parent: sub, Name: "x", Kind: meta.KindFile},
		"link":              &meta.Link{Parent: dir, Name: "x", Ino: file},
		"rename into":       &meta.Rename{OldParent: meta.RootIno, OldName: "f", NewParent: dir, NewName: "x"},
		"rename inside":     &meta.Rename{OldParent: dir, OldName: "sub", NewParent: dir, NewName: "x"},
		"undelete":          &meta.Undelete{Removed: removed.Index, Parent: dir, Name: "x"},
		"publish with link": &meta.Publish{Session: c.Session(2), LinkParent: dir, LinkName: "x"},
		"rmdir":             &meta.Rmdir{Parent: meta.RootIno, Name: "empty"},
		"rename over": &meta.Rename{OldParent: meta.RootIno, OldName: "other", NewParent: meta.RootIno,
			NewName: "empty"},
	} {
		answers(t, what, c.Propose(2, op), syscall.EREMOTE)
	}
	answers(t, "delegation of it", c.Propose(2, &meta.DelegateNames{Dir: dir}), syscall.EBUSY)
	answers(t, "rename out of it", c.Propose(2, &meta.Rename{OldParent: dir, OldName: "sub", NewParent: other,
		NewName: "sub"}), 0)
	for _, op := range []meta.Op{
		&meta.Link{Parent: dir, Name: "l", Ino: file}, &meta.Rmdir{Parent: meta.RootIno, Name: "empty"},
	} {
		answers(t, "the holder itself", c.Propose(1, op), 0)
	}
	if l := holderOf(t, c, empty); l != (meta.Lease{}) {
		t.Errorf("a removed directory is delegated to %+v", l)
	}
}

// What a recall needs: the holder hears it, makes the names known that it has given, and returns the rest.
func TestNamesAreReturned(t *testing.T) {
	c := metatest.New(t, 3)
	dir, ino := heldDir(c)
	c.Events()
	if res := c.Do(2, &meta.RecallNames{Dir: dir}); !res.Existed {
		t.Error("a recall finds no holder")
	}
	found := false
	for _, e := range c.Events() {
		found = found || e.Kind == meta.EventNamesRecalled && e.Ino == dir && meta.Lease{Node: e.Node,
			Incarnation: e.Incarnation} == c.Lease(1)
	}
	if !found {
		t.Error("the holder does not hear of it")
	}
	reserve := meta.Reserve{Incarnation: c.Lease(1).Incarnation, Parent: dir, Name: "a", Ino: ino,
		Made: meta.Made{Mode: 0o600, Policy: 1}}
	c.Do(1, &reserve)
	if res := c.Do(1, &reserve); !res.Existed || res.Ino != ino {
		t.Errorf("reserved twice: %+v", res)
	}
	answers(t, "a return by another node", c.Propose(2, &meta.ReturnNames{Dirs: []meta.Ino{dir}}), 0)
	if holderOf(t, c, dir) != c.Lease(1) {
		t.Fatal("another node returned the names")
	}
	c.Do(1, &meta.ReturnNames{Dirs: []meta.Ino{dir}})
	answers(t, "O_EXCL of a name that the holder has given", c.Propose(2, &meta.Create{Parent: dir, Name: "a",
		Kind: meta.KindFile, Excl: true}), syscall.EEXIST)
	c.Do(2, &meta.Create{Parent: dir, Name: "b", Kind: meta.KindFile, Excl: true})
	answers(t, "a name after the return", c.Propose(1, numbered(c, 1, dir, "c", ino+1)), syscall.ESTALE)
	if res := c.Do(1, numbered(c, 1, dir, "a", ino)); res.Ino != ino || res.Version != 1 {
		t.Errorf("the first publish of what was reserved: %+v", res)
	}
	if res := c.Do(2, &meta.RecallNames{Dir: dir}); res.Existed {
		t.Error("a recall finds a holder after the return")
	}
}

// G5: a fence ends what the incarnation holds at once. Its next one can't go on with it.
func TestFenceEndsDelegations(t *testing.T) {
	c := metatest.New(t, 3)
	dir, ino := heldDir(c)
	old := c.Lease(1)
	c.Do(2, &meta.Down{Node: 1, Incarnation: old.Incarnation})
	c.Do(2, &meta.Create{Parent: dir, Name: "a", Kind: meta.KindFile})
	c.Boot(1)
	answers(t, "under the next incarnation", c.Propose(1, numbered(c, 1, dir, "b", ino)), syscall.ESTALE)
	c.Do(2, &meta.DelegateNames{Dir: dir})
	if got := holderOf(t, c, dir); got != c.Lease(2) {
		t.Errorf("held by %+v", got)
	}
	reserve := &meta.Reserve{Incarnation: old.Incarnation, Parent: dir, Name: "b", Ino: ino, Made: meta.Made{Policy: 1}}
	answers(t, "a reservation of the old one under the next", c.Propose(1, reserve), syscall.ESTALE)
	reserve.Incarnation = c.Lease(1).Incarnation
	answers(t, "the next incarnation reserves there", c.Propose(1, reserve), syscall.EREMOTE)
}

// A fence ends all delegations at once, though their rows go a few at a time.
func TestFenceEndsManyDelegations(t *testing.T) {
	c := metatest.New(t, 3)
	dir, _ := heldDir(c)
	var last meta.Ino
	for i := range 3000 {
		last = newDir(c, dir, fmt.Sprint("sub", i))
	}
	c.Do(2, &meta.Down{Node: 1, Incarnation: c.Lease(1).Incarnation})
	if !c.DB.(*meta.DB).Freeing() {
		t.Fatal("all rows are gone at once: make more of them")
	}
	c.Do(2, &meta.Create{Parent: last, Name: "a", Kind: meta.KindFile, Excl: true})
	if l := holderOf(t, c, last); l != (meta.Lease{}) {
		t.Errorf("held by %+v", l)
	}
	c.Do(2, &meta.DelegateNames{Dir: last})
	for c.DB.(*meta.DB).Freeing() {
		c.Do(2, &meta.Expire{})
	}
	if l := holderOf(t, c, last); l != c.Lease(2) {
		t.Errorf("after the sweep it is held by %+v", l)
	}
}

// Operations as they come: each directory has one giver of names at a time.
func TestDelegationsAsTheyCome(t *testing.T) {
	for seed := range uint64(30) {
		c := metatest.New(t, 3)
		r := rand.New(rand.NewPCG(seed, 49))
		var dirs [3]meta.Ino
		for i := range dirs {
			dirs[i] = newDir(c, meta.RootIno, fmt.Sprint("d", i))
		}
		numbers, holder := map[meta.NodeID]meta.Ino{}, map[meta.Ino]meta.Lease{}
		for range 300 {
			n, dir, name := meta.NodeID(1+r.IntN(3)), dirs[r.IntN(3)], fmt.Sprint("f", r.IntN(20))
			held := holder[dir]
			foreign := held != (meta.Lease{}) && held != c.Lease(n)
			switch r.IntN(9) {
			case 0, 1:
				if res := c.Propose(n, &meta.DelegateNames{Dir: dir, Numbers: true}); res.Errno == 0 {
					numbers[n], holder[dir] = res.Ino, c.Lease(n)
				} else if !foreign {
					t.Fatalf("seed %d: delegate: %v", seed, res.Errno)
				}
			case 2:
				if c.Propose(n, &meta.ReturnNames{Dirs: []meta.Ino{dir}}); held == c.Lease(n) {
					delete(holder, dir)
				}
			case 3:
				c.Do(1+n%3, &meta.Down{Node: n, Incarnation: c.Lease(n).Incarnation})
				for d, l := range holder {
					if l.Node == n {
						delete(holder, d)
					}
				}
				c.Boot(n)
			case 4, 5:
				if numbers[n] == 0 {
					continue
				}
				numbers[n]++
				if res := c.Propose(n, numbered(c, n, dir, name, numbers[n])); res.Errno == 0 && held != c.Lease(n) {
					t.Fatalf("seed %d: node %d gives a name that %+v is to give", seed, n, held)
				}
			case 6:
				c.Propose(n, &meta.Unlink{Parent: dir, Name: name})
			default:
				res := c.Propose(n, &meta.Create{Parent: dir, Name: name, Kind: meta.KindFile, Excl: true})
				if foreign && res.Errno != syscall.EREMOTE && res.Errno != syscall.EEXIST {
					t.Fatalf("seed %d: node %d makes a name that %+v is to give: %v", seed, n, held, res.Errno)
				}
			}
			for _, d := range dirs {
				if got := holderOf(t, c, d); got != holder[d] {
					t.Fatalf("seed %d: %d is held by %+v, want %+v", seed, d, got, holder[d])
				}
			}
		}
	}
}
