package node

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// clusterLog applies each proposal to a state at once.
type clusterLog struct{ c *metatest.Cluster }

// Propose implements raftLog.
func (l clusterLog) Propose(_ context.Context, data []byte, _ consensus.ProposeOptions) (consensus.Proposed, error) {
	e, err := meta.DecodeEntry(data)
	if err != nil {
		return consensus.Proposed{}, err
	}
	return consensus.Proposed{Result: l.c.ProposeAs(meta.Lease{Node: e.Node, Incarnation: e.Incarnation}, e.Op)}, nil
}

// keeping is what answers for a node that keeps removed files.
type keeping struct {
	db       *meta.DB
	members  *members
	paths    *paths
	staging  *staging
	policies *policies
	versions *versions
	restorer *restorer
}

// keepingNode is node 1 of two, with a directory /d whose removed files are kept for an hour.
func keepingNode(t *testing.T) (n *keeping, c *metatest.Cluster, d meta.Ino) {
	t.Helper()
	c = metatest.New(t, 2)
	n = &keeping{db: c.DB.(*meta.DB)}
	var err error
	n.members, err = newMembers(n.db, identity{Node: 1, Store: strings.Repeat("01", 16)}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	p1 := newProposer(t.Context(), clusterLog{c}, 1, meta.FirstGeneration)
	p1.beginIncarnation(c.Lease(1).Incarnation)
	n.staging, _ = openStaging(t, t.TempDir())
	n.paths = &paths{names: n.db, lease: p1.lease}
	n.staging.paths = n.paths
	n.policies = &policies{db: n.db, members: n.members, paths: n.paths, proposer: p1}
	n.versions = &versions{self: 1, db: n.db, paths: n.paths, staging: n.staging,
		removed: removedFiles{db: n.db, paths: n.paths, proposer: p1}}
	n.restorer = &restorer{ctx: t.Context(), db: n.db, store: n.staging.store, staging: n.staging, versions: n.versions,
		paths: n.paths, proposer: p1}
	d = c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "d", Kind: meta.KindDir, Mode: 0o755}).Ino
	p, err := n.policies.showOrSet(t.Context(), admin.PolicyRequest{Path: "/d",
		Set: &admin.Policy{KeepRemoved: time.Hour}})
	if err != nil || p.KeepRemoved != time.Hour {
		t.Fatalf("%+v, %v", p, err)
	}
	return n, c, d
}

// lose makes a file with some versions and removes it on node 2. It returns the content of the last version.
func lose(t *testing.T, c *metatest.Cluster, dir meta.Ino, name string, versions ...string) meta.ContentID {
	t.Helper()
	ino := c.Do(1, &meta.Create{Parent: dir, Name: name, Kind: meta.KindFile, Mode: 0o640}).Ino
	var last meta.ContentID
	for _, text := range versions {
		last = c.Inline(1, ino, []byte(text)).Inode.Content
	}
	c.Do(2, &meta.Unlink{Parent: dir, Name: name})
	return last
}

func TestRemovedFilesAreListed(t *testing.T) {
	n, c, d := keepingNode(t)
	lose(t, c, d, "first", "a")
	lose(t, c, d, "second", "b", "cc")
	check := func(what string, req admin.VersionsRequest, want ...string) {
		t.Helper()
		list, err := n.versions.list(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var got []string
		for _, v := range list {
			got = append(got, v.Path)
			if v.State != "removed" || v.Remover != 2 || v.RemoverName != "node2" || !strings.HasPrefix(v.Content, "removed-") ||
				v.Expires.Sub(v.Removed) != time.Hour {
				t.Errorf("%s: %+v", what, v)
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("a directory", admin.VersionsRequest{Path: "/d"}, "/d/second", "/d/first")
	check("the root", admin.VersionsRequest{Path: "/"}, "/d/second", "/d/first")
	check("all that was removed", admin.VersionsRequest{Removed: true}, "/d/second", "/d/first")
	check("a file that is gone", admin.VersionsRequest{Path: "d/first", Removed: true}, "/d/first")
	check("no path", admin.VersionsRequest{})
	list, _ := n.versions.list(t.Context(), admin.VersionsRequest{Path: "/d"})
	if v := list[0]; v.Version != 2 || v.SizeBytes != 2 || v.Writer != 1 {
		t.Errorf("%+v", v)
	}
	_, err := n.versions.list(t.Context(), admin.VersionsRequest{Path: "/d/first"})
	if admin.CodeOf(err) != admin.CodeNotFound {
		t.Error(err)
	}
}

func TestRemovedFileIsRestored(t *testing.T) {
	n, c, d := keepingNode(t)
	restore := func(req admin.RestoreRequest) (admin.Version, error) {
		return n.restorer.restore(t.Context(), req, func(admin.Progress) {})
	}
	refused := func(what string, code admin.Code, req admin.RestoreRequest) {
		t.Helper()
		if v, err := restore(req); admin.CodeOf(err) != code {
			t.Errorf("%s: %+v, %v, want %v", what, v, err, code)
		}
	}
	comesBack := func(what string, req admin.RestoreRequest, path string, version uint64, size int64) {
		t.Helper()
		v, err := restore(req)
		if err != nil || v.Path != path || v.Version != version || v.SizeBytes != size || v.State != "current" {
			t.Errorf("%s: %+v, %v", what, v, err)
		}
		if ino, _, err := n.paths.lookup(path); err != nil || ino.Mode != 0o640 || ino.Size != size {
			t.Errorf("%s: %+v, %v", what, ino, err)
		}
	}
	lose(t, c, d, "f", "old", "older")
	lose(t, c, d, "f", "new")
	comesBack("the last one", admin.RestoreRequest{Path: "d/f", Removed: true}, "/d/f", 1, 3)
	refused("a name that is taken", admin.CodeExists, admin.RestoreRequest{Path: "d/f", Removed: true})
	c.Do(2, &meta.Create{Parent: meta.RootIno, Name: "reserved", Kind: meta.KindFile})
	for as, why := range map[string]string{"/d/f": "a file of that name exists", "/reserved": "not closed it yet"} {
		_, err := restore(admin.RestoreRequest{Path: "d/f", Removed: true, As: as})
		if admin.CodeOf(err) != admin.CodeExists || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", as, err, why)
		}
	}
	comesBack("another name", admin.RestoreRequest{Path: "/d/f", Removed: true, Version: 2, As: "g"}, "/g", 2, 5)
	refused("none is left", admin.CodeNotFound, admin.RestoreRequest{Path: "d/f", Removed: true})
	id := lose(t, c, d, "h", "bytes")
	comesBack("by its content", admin.RestoreRequest{Content: id.String()}, "/d/h", 1, 5)
	refused("a content that is current", admin.CodeNotFound, admin.RestoreRequest{Content: id.String(), Removed: true})
	sub := c.Do(1, &meta.Create{Parent: d, Name: "sub", Kind: meta.KindDir}).Ino
	lose(t, c, sub, "deep", "12345678")
	c.Do(1, &meta.Rmdir{Parent: d, Name: "sub"})
	refused("its directory is gone", admin.CodeNotFound, admin.RestoreRequest{Path: "d/sub/deep", Removed: true})
	list, err := n.versions.list(t.Context(), admin.VersionsRequest{Removed: true, Path: "d/sub"})
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	refused("no id", admin.CodeInvalid, admin.RestoreRequest{Content: "removed-x"})
	refused("an unknown id", admin.CodeNotFound, admin.RestoreRequest{Content: "removed-1"})
	v, err := restore(admin.RestoreRequest{Content: list[0].Content, Drop: true})
	if err != nil || v.State != "dropped" || v.Path != "/d/sub/deep" {
		t.Errorf("%+v, %v", v, err)
	}
	refused("it was dropped", admin.CodeNotFound, admin.RestoreRequest{Content: list[0].Content})
}

func TestTimesForWhichRemovedFilesAreKept(t *testing.T) {
	n, _, _ := keepingNode(t)
	const most = time.Duration(meta.KeepRemovedMax)
	for keep, code := range map[time.Duration]admin.Code{-1: admin.CodeInvalid, most + 1: admin.CodeInvalid, most: "",
		0: ""} {
		p, err := n.policies.showOrSet(t.Context(), admin.PolicyRequest{Path: "/d", Set: &admin.Policy{KeepRemoved: keep}})
		if code != "" && admin.CodeOf(err) != code || code == "" && (err != nil || p.KeepRemoved != keep) {
			t.Errorf("%v: %+v, %v", keep, p, err)
		}
	}
}

// An eviction that would lose the last copy of a removed file names the file as it was.
func TestLossNamesARemovedFile(t *testing.T) {
	n, c, d := keepingNode(t)
	rec, err := n.db.Content(lose(t, c, d, "f", "bytes"))
	if err != nil {
		t.Fatal(err)
	}
	if text := n.paths.ofContent(rec) + stateNote(rec); text != "/d/f, removed version" {
		t.Errorf("%q", text)
	}
}

// Before removed files go early, status says so, and the metrics count them.
func TestRemovedFilesAreCounted(t *testing.T) {
	n, c, d := keepingNode(t)
	lose(t, c, d, "f", "12345")
	lose(t, c, d, "g", "123")
	if files, bytes := (meta.Removals{DB: n.db}).Count(), new(removedLook).of(n.db); files != 2 || bytes != 8 {
		t.Errorf("%d files of %v bytes", files, bytes)
	}
	for kept, warns := range map[uint64]bool{0: false, 79: false, 80: true, 100: true} {
		text := removedWarning(admin.Status{RemovedKept: kept, RemovedMost: 100})
		if warns != strings.Contains(text, "removed files are kept, of at most 100") {
			t.Errorf("%d: %q", kept, text)
		}
	}
}

// What status says of lost bytes names a removed file as it was, too.
func TestStatusNamesALostRemovedFile(t *testing.T) {
	n, c, d := keepingNode(t)
	w := &warnings{db: n.db, paths: n.paths, lost: &lostLooks{}}
	k := &damage{self: 1, db: n.db, store: n.staging.store, paths: n.paths}
	ino := c.Do(1, &meta.Create{Parent: d, Name: "f", Kind: meta.KindFile}).Ino
	p := &meta.Publish{Ino: ino, Session: c.Session(1), Size: 1 << 20, Root: [32]byte{1},
		Votes: meta.Votes{View: c.DB.View()}}
	p.Votes.Add(1)
	p.Votes.Add(2)
	c.Do(1, p)
	for id := range meta.NodeID(2) {
		c.Do(id+1, &meta.Unheld{Node: id + 1, Contents: []meta.ContentID{p.Session}, Reason: meta.OwedLost})
	}
	check := func(what, warning, damage string) {
		t.Helper()
		if text := w.nowhere(); !strings.Contains(text, warning) {
			t.Errorf("%s: %q, want %q", what, text, warning)
		}
		if d, _ := k.here(); strings.Join(d.Names, " ") != damage {
			t.Errorf("%s: %q, want %q", what, d.Names, damage)
		}
	}
	check("a file", `such as "/d/f", version 1: `, "/d/f")
	c.Do(1, &meta.Unlink{Parent: d, Name: "f"})
	check("a removed file", `such as "/d/f", removed version 1: `, "/d/f (removed version)")
}

// Many files that were removed at one time go one after the other, and not only some in each interval.
func TestLeaderGoesOnWhileSomethingIsDue(t *testing.T) {
	l := newDutyLeader(t)
	due, asked, retired := 40, 0, 1
	l.due = func() bool { return due > 0 }
	l.duties.propose = func(_ context.Context, op meta.Op) (meta.Result, error) {
		if _, ok := op.(*meta.Expire); ok {
			due--
			asked++
		}
		return meta.Result{Retired: retired}, nil
	}
	l.pass(5*time.Second, 2, 3)
	if asked != 40 {
		t.Errorf("asked %d times, want 40", asked)
	}
	l.pass(expireInterval, 2, 3)
	if asked != 41 {
		t.Errorf("asked %d times after an interval, want 41", asked)
	}
	due, retired = 1<<20, 0
	l.pass(expireInterval, 2, 3)
	if asked != 42 {
		t.Errorf("asked %d times, want 42: nothing was retired", asked)
	}
}
