package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// checkedNode is node 1 of a cluster, with a store of its own and nobody to call: the others are down when it checks.
type checkedNode struct {
	*fscks
	c     *metatest.Cluster
	store *content.Store
	dir   string
	dirs  map[string]meta.Ino
}

func newCheckedNode(t *testing.T, nodes int) *checkedNode {
	t.Helper()
	n := &checkedNode{c: metatest.New(t, nodes), dir: t.TempDir(), dirs: map[string]meta.Ino{}}
	store, err := content.Open(n.dir, content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	db := n.c.DB.(*meta.DB)
	n.store = store
	names := &paths{names: db, lease: func() meta.Lease { return meta.Lease{} }}
	n.fscks = &fscks{self: 1, db: db, paths: names,
		compare: func(context.Context) (mark, map[meta.NodeID]digestAnswer) { return mark{}, nil }}
	n.stock = &stock{self: 1, db: db, store: store, paths: names, retiring: func(meta.ContentID) bool { return true }}
	for _, name := range []string{"a", "b"} {
		n.dirs[name] = n.c.Do(1, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindDir, Mode: 0o755}).Ino
	}
	return n
}

// file publishes a file with the votes of nodes; node 1 stores it if it is among them.
func (n *checkedNode) file(t *testing.T, dir, name string, votes ...meta.NodeID) meta.ContentID {
	t.Helper()
	ino := n.c.Do(1, &meta.Create{Parent: n.dirs[dir], Name: name, Kind: meta.KindFile, Mode: 0o644}).Ino
	b := bytes.Repeat([]byte(name), 100_000)
	p := &meta.Publish{Ino: ino, Session: n.c.Session(1), Size: int64(len(b)), Votes: meta.Votes{View: n.c.DB.View()}}
	for _, v := range votes {
		p.Votes.Add(v)
	}
	if slices.Contains(votes, 1) {
		p.Root = n.put(t, p.Session, b)
	}
	n.c.Do(1, p)
	return p.Session
}

func (n *checkedNode) put(t *testing.T, id meta.ContentID, b []byte) content.Hash {
	t.Helper()
	root, err := n.store.Put(t.Context(), id.Bytes(), content.Shape{Size: int64(len(b))}, bytes.NewReader(b))
	if err == nil {
		err = n.store.Commit(id.Bytes())
	}
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// run checks, with all other nodes down.
func (n *checkedNode) run(t *testing.T, req admin.FsckRequest) (lines []string, r admin.FsckResult) {
	t.Helper()
	n.members = membersOf(t, n.c)
	n.strays = &strayFiles{self: 1, store: n.store, paths: n.paths, members: n.members}
	r, err := n.fsck(t.Context(), req, func(admin.Progress) {}, func(f admin.FsckFinding) error {
		at := f.Path + f.Name
		if len(f.Paths) > 0 {
			at += fmt.Sprint(f.Paths)
		}
		lines = append(lines, fmt.Sprintf("%s %s %d %v: %s", f.Kind, at, f.Count, f.Heals, f.Text))
		return nil
	})
	if err != nil || r.Findings != len(lines) {
		t.Fatalf("%+v, %v: %q", r, err, lines)
	}
	return lines, r
}

// wantLines holds findings against how they begin, in any order, and what of their text.
func wantLines(t *testing.T, what string, lines []string, want ...string) {
	t.Helper()
	for _, w := range want {
		start, text, _ := strings.Cut(w, " ... ")
		if !slices.ContainsFunc(lines, func(l string) bool {
			return strings.HasPrefix(l, start) && strings.Contains(l, text)
		}) {
			t.Errorf("%s: no finding is %q", what, w)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("%s: %d findings, want %d: %q", what, len(lines), len(want), lines)
	}
}

// dataFile is the file of a content in the store.
func (n *checkedNode) dataFile(t *testing.T, id meta.ContentID) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(n.dir, "held", "*", id.String()+".data"))
	if err != nil || len(list) != 1 {
		t.Fatalf("files of %s: %q, %v", id, list, err)
	}
	return list[0]
}

// A fsck finds nothing where all is well, and says what it looked at.
func TestFsckOfWhatIsWell(t *testing.T) {
	n := newCheckedNode(t, 1)
	n.file(t, "a", "f", 1)
	n.file(t, "b", "g", 1)
	for path, contents := range map[string]uint64{"": 2, "a": 1, "/b/g": 1} {
		for _, read := range []bool{false, true} {
			lines, r := n.run(t, admin.FsckRequest{Path: path, Contents: read})
			if len(lines) != 0 || r.Contents != contents || r.Inodes != 5 || len(r.Nodes) != 1 || !r.Nodes[0].Checked ||
				r.Nodes[0].Contents != int(contents) || r.Index != n.db.Index() || r.Nodes[0].SizeBytes != r.SizeBytes {
				t.Errorf("at %q: %q, %+v", path, lines, r)
			}
		}
	}
}

// Each thing that can be wrong with contents is found, with what becomes of it.
func TestFsckNamesWhatIsWrong(t *testing.T) {
	t.Parallel() // it waits more than it works
	n := newCheckedNode(t, 3)
	removed, cut, rotten := n.file(t, "a", "removed", 1, 2), n.file(t, "a", "cut", 1, 2), n.file(t, "a", "rotten", 1, 2)
	lost := n.file(t, "b", "lost", 1, 2, 3)
	n.file(t, "b", "far", 2, 3)
	absent := n.file(t, "b", "absent", 2, 3)
	n.c.Do(1, &meta.Held{Node: 1, Contents: []meta.ContentID{absent}, View: n.c.DB.View()})
	for _, holder := range []meta.NodeID{1, 2, 3} {
		n.c.Do(holder, &meta.Unheld{Node: holder, Contents: []meta.ContentID{lost}, Reason: meta.OwedLost})
	}
	if err := os.Remove(n.dataFile(t, removed)); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(n.dataFile(t, cut), 4096); err != nil {
		t.Fatal(err)
	}
	n.flip(t, rotten)
	n.put(t, meta.ContentID{Node: 1, Incarnation: 1, Seq: 999}, []byte("that nobody needs any more"))
	for _, down := range []meta.NodeID{2, 3} {
		n.c.Do(1, &meta.Down{Node: down, Incarnation: n.c.Lease(down).Incarnation})
	}
	names := []string{
		"unchecked node2 1 false ... it is down", "unchecked node3 1 false",
		"lost /b/lost 1 false ... no node holds it any more",
		"unreachable [/b/far] 1 false ... start node2, node3",
		"owed [/a/removed /a/cut /a/rotten] 3 false ... one node that is up has them",
		"owed node1[/b/far] 1 true ... unreachable",
		"owed node3[/a/removed /a/cut /a/rotten] 3 false ... they are owed to it",
	}
	stocks := []string{
		"damaged /a/removednode1 1 false ... its files are gone, or have another length; no other node that is up",
		"damaged /a/cutnode1 1 false ... or have another length",
		"missing /b/absentnode1 1 false ... there is nothing of it in the store; no other node that is up",
	}
	lines, r := n.run(t, admin.FsckRequest{})
	wantLines(t, "names and lengths", lines, append(names, stocks...)...)
	if r.Nodes[0].UnneededCount != 1 || r.Nodes[0].UnneededBytes != 26 || r.Nodes[1].Checked || r.Left != 9 {
		t.Errorf("%+v", r)
	}
	n.stock.retiring = func(meta.ContentID) bool { return false }
	lines, _ = n.run(t, admin.FsckRequest{Contents: true})
	bits := []string{"damaged /a/removednode1 1 false ... failed its checks before", "damaged /a/cutnode1", stocks[2],
		"damaged /a/rottennode1 1 false ... damaged blocks of 1 MiB: 1, the first is block 0",
		"unneeded node1 1 false ... nothing needs them"}
	wantLines(t, "all bytes", lines, append(names, bits...)...)
	lines, _ = n.run(t, admin.FsckRequest{Path: "b"})
	wantLines(t, "of a directory", lines, append(names[:4:4], names[5], stocks[2])...)
}

// What the state says is found, at its path, and bytes that were never published, except what is being written.
func TestFsckOfNamesAndUnpublishedBytes(t *testing.T) {
	n := newCheckedNode(t, 1)
	f := n.file(t, "a", "f", 1)
	files := fs.NewStaging(n.store, func() meta.Lease { return meta.Lease{Node: 1} })
	for name, keep := range map[string]bool{"/a/left": true, "/a/open": false} {
		st, err := files.Create(fs.StageInfo{Ino: 77, Parent: n.dirs["a"], Path: name})
		if err == nil {
			_, err = st.WriteAt([]byte("bytes"), 0)
		}
		if err == nil && keep {
			err = st.Keep("its program was killed")
		} else {
			t.Cleanup(func() { _ = st.Drop() })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	lines, r := n.run(t, admin.FsckRequest{})
	wantLines(t, "unpublished", lines, "unpublished /a/left")
	if r.Left != 1 || len(lines) == 1 && !strings.Contains(lines[0], "its program was killed: 'rdmcfs restore --content") {
		t.Errorf("%q, %+v", lines, r)
	}
	lines, _ = n.run(t, admin.FsckRequest{Path: "/b"})
	wantLines(t, "elsewhere", lines)
	at := n.fault(t, meta.Fault{Ino: n.dirs["a"], Name: "x", Text: "it leads nowhere"}, "")
	at += n.fault(t, meta.Fault{Ino: 99, Content: f, Text: "it is no inode"}, "")
	at += n.fault(t, meta.Fault{Ino: n.dirs["a"], Text: "elsewhere"}, "b") + n.fault(t, meta.Fault{Text: "no inode"}, "b")
	if want := "state /a/x false it leads nowhere|state inode 99 false it is no inode|"; at != want {
		t.Errorf("faults of the state: %q, want %q", at, want)
	}
}

// A node that has another state is named, and one that does not say which.
func TestFsckComparesStates(t *testing.T) {
	n := newCheckedNode(t, 4)
	n.members = membersOf(t, n.c)
	n.compare = func(context.Context) (mark, map[meta.NodeID]digestAnswer) {
		return mark{index: 5, digest: [16]byte{1}}, map[meta.NodeID]digestAnswer{
			2: {node: 2, digest: [16]byte{1}}, 3: {node: 3, digest: [16]byte{2}}}
	}
	var lines []string
	f := &fsck{fscks: n.fscks, ctx: t.Context(), tell: func(admin.Progress) {}, take: func(f admin.FsckFinding) error {
		lines = append(lines, fmt.Sprintf("%s %s %d %v: %s", f.Kind, f.Name, f.Count, f.Heals, f.Text))
		return nil
	}}
	if err := f.nodes(); err != nil {
		t.Fatal(err)
	}
	wantLines(t, "states", lines, "digest node3 1 false ... another state than node 1 at log index 5",
		"digest node4 1 true ... did not say")
	for i, want := range []string{"same", "same", "differs", "unknown"} {
		if got := f.result.Nodes[i].Digest; got != want {
			t.Errorf("node %d: %s, want %s", i+1, got, want)
		}
	}
}

// fault is how a fault of the state is reported, by a check of a path.
func (n *checkedNode) fault(t *testing.T, what meta.Fault, path string) (line string) {
	t.Helper()
	in, err := scopeOf(n.db, n.paths, path)
	if err != nil {
		t.Fatal(err)
	}
	f := &fsck{fscks: n.fscks, scope: in, take: func(f admin.FsckFinding) error {
		line += fmt.Sprintf("%s %s %v %s|", f.Kind, f.Path, f.Heals, f.Text)
		return nil
	}}
	if err := f.fault(what); err != nil {
		t.Fatal(err)
	}
	return line
}

// flip changes a bit of a content on the disk.
func (n *checkedNode) flip(t *testing.T, id meta.ContentID) {
	t.Helper()
	f, err := os.OpenFile(n.dataFile(t, id), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], 5000); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], 5000); err != nil {
		t.Fatal(err)
	}
}
