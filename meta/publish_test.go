package meta_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// votes returns the votes of nodes as of the present view.
func votes(c *metatest.Cluster, nodes ...meta.NodeID) meta.Votes {
	v := meta.Votes{View: c.DB.View()}
	for _, n := range nodes {
		v.Add(n)
	}
	return v
}

// push is a publish of 1 MiB with votes.
func push(c *metatest.Cluster, writer meta.NodeID, ino meta.Ino, base meta.ContentID, v meta.Votes) *meta.Publish {
	return &meta.Publish{Ino: ino, Session: c.Session(writer), Base: base, Size: 1 << 20, Root: [32]byte{1}, Votes: v}
}

func newFile(c *metatest.Cluster, name string) meta.Ino {
	return c.Do(1, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindFile, Mode: 0o644}).Ino
}

func holds(t *testing.T, c *metatest.Cluster, n meta.NodeID, id meta.ContentID) bool {
	t.Helper()
	h, err := c.DB.Holds(n, id)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func owed(t *testing.T, c *metatest.Cluster, n meta.NodeID) []meta.Owed {
	t.Helper()
	l, err := c.DB.OwedTo(n, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	count, size, err := c.DB.OwedCount(n)
	if err != nil || count != len(l) || size != int64(len(l))<<20 {
		t.Fatalf("count %d of %d bytes, %v; listed %d", count, size, err, len(l))
	}
	return l
}

func TestPublishCountsVotes(t *testing.T) {
	c := metatest.New(t, 3)
	f := newFile(c, "f")
	wantErrno(t, c.Propose(1, push(c, 1, f, meta.ContentID{}, votes(c))), syscall.EIO)
	wantErrno(t, c.Propose(1, push(c, 1, f, meta.ContentID{}, votes(c, 1))), syscall.EIO)
	wantErrno(t, c.Propose(1, push(c, 1, f, meta.ContentID{}, votes(c, 1, 9))), syscall.EIO)
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))
	p.Missing = []meta.Missed{{Node: 3, Reason: meta.OwedSlow}}
	res := c.Do(1, p)
	if diff := cmp.Diff([]meta.NodeID{3}, res.Owed); diff != "" || res.Version != 1 || res.Conflict {
		t.Fatal(diff, res)
	}
	if !holds(t, c, 1, p.Session) || !holds(t, c, 2, p.Session) || holds(t, c, 3, p.Session) {
		t.Fatal("holders")
	}
	l := owed(t, c, 3)
	if len(l) != 1 || l[0].Content != p.Session || l[0].Reason != meta.OwedSlow || l[0].Published != res.Index {
		t.Fatalf("%+v", l)
	}
	c.Do(3, &meta.Held{Node: 3, Contents: []meta.ContentID{p.Session}})
	if !holds(t, c, 3, p.Session) || len(owed(t, c, 3)) != 0 {
		t.Fatal("after Held")
	}
	wantErrno(t, c.Propose(1, &meta.Unheld{Node: 3, Contents: []meta.ContentID{p.Session}, Reason: meta.OwedLost}),
		syscall.EINVAL)
	c.Do(3, &meta.Unheld{Node: 3, Contents: []meta.ContentID{p.Session}, Reason: meta.OwedLost})
	if holds(t, c, 3, p.Session) || owed(t, c, 3)[0].Reason != meta.OwedLost {
		t.Fatal("after Unheld")
	}
	// Removing the file cancels what is owed.
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	if l := owed(t, c, 3); len(l) != 0 {
		t.Fatal(l)
	}
	if _, err := c.DB.Content(p.Session); err != meta.ErrNotFound {
		t.Fatal(err)
	}
}

func TestVotesOfFormerIncarnationsDoNotCount(t *testing.T) {
	c := metatest.New(t, 3)
	f := newFile(c, "f")
	old := votes(c, 1, 2, 3)
	c.Boot(2)
	res := c.Do(1, push(c, 1, f, meta.ContentID{}, old))
	if diff := cmp.Diff([]meta.NodeID{2}, res.Owed); diff != "" {
		t.Fatal(diff)
	}
	c.Do(1, &meta.Down{Node: 3, Incarnation: 1})
	wantErrno(t, c.Propose(1, push(c, 1, f, meta.ContentID{}, old)), syscall.EIO)
	v := old
	v.View = c.DB.View() + 1
	wantErrno(t, c.Propose(1, push(c, 1, f, meta.ContentID{}, v)), syscall.EINVAL)
}

// A file that its writer has not published yet is that writer's alone, whatever another node says of it.
func TestOnlyItsWriterPublishesAReservedFile(t *testing.T) {
	c := metatest.New(t, 3)
	f := newFile(c, "f")
	wantErrno(t, c.Propose(2, push(c, 2, f, meta.ContentID{}, votes(c, 1, 2))), syscall.ESTALE)
	if _, err := c.DB.Lookup(meta.RootIno, "f", c.Lease(2)); err != meta.ErrNotFound {
		t.Fatalf("another node sees the name: %v", err)
	}
	if res := c.Do(1, push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))); res.Version != 1 || res.Conflict {
		t.Fatalf("%+v", res)
	}
}

func TestOneDecisionPerSession(t *testing.T) {
	c := metatest.New(t, 2)
	f := newFile(c, "f")
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))
	c.Do(1, p)
	wantErrno(t, c.Propose(1, p), syscall.ESTALE)
	wantErrno(t, c.Propose(1, &meta.Abort{Session: p.Session}), syscall.EALREADY)
	q := push(c, 1, f, p.Session, votes(c, 1, 2))
	c.Do(2, &meta.Abort{Session: q.Session})
	wantErrno(t, c.Propose(1, q), syscall.ESTALE)
	c.Do(2, &meta.Abort{Session: q.Session})
	if d, _ := c.DB.Decided(q.Session); !d {
		t.Fatal("not decided")
	}
	old := c.Lease(1)
	r := push(c, 1, f, p.Session, votes(c, 1, 2))
	c.Boot(1)
	if d, _ := c.DB.Decided(r.Session); !d {
		t.Fatal("a boot decides the sessions before it")
	}
	wantErrno(t, c.ProposeAs(old, r), syscall.ESTALE)
	wantErrno(t, c.Propose(1, r), syscall.ESTALE)
}

// G7: the later commit wins, the other is kept, listed, restored, and expires.
func TestConflict(t *testing.T) {
	c := metatest.New(t, 2)
	f := newFile(c, "f")
	base := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))
	c.Do(1, base)
	one, two := push(c, 1, f, base.Session, votes(c, 1, 2)), push(c, 2, f, base.Session, votes(c, 1, 2))
	c.Do(1, one)
	if _, err := c.DB.Content(base.Session); err != meta.ErrNotFound {
		t.Fatal("a plainly superseded version is retired", err)
	}
	if res := c.Do(2, two); !res.Conflict || res.Version != 3 || res.Inode.Content != two.Session {
		t.Fatalf("%+v", res)
	}
	kept, _ := c.DB.Kept(10)
	if len(kept) != 1 || kept[0].ID != one.Session || kept[0].State != meta.ContentConflict || kept[0].Reason == "" {
		t.Fatalf("%+v", kept)
	}
	if vs, _ := c.DB.Versions(f); len(vs) != 2 || vs[0].ID != two.Session || vs[1].ID != one.Session {
		t.Fatalf("%+v", vs)
	}
	if res := c.Do(1, &meta.Restore{Ino: f, Content: one.Session}); res.Version != 4 || res.Inode.Content != one.Session {
		t.Fatalf("%+v", res)
	}
	c.Do(1, &meta.Expire{})
	if vs, _ := c.DB.Versions(f); len(vs) != 2 || vs[1].ID != two.Session {
		t.Fatalf("%+v", vs)
	}
	c.Advance(8 * 24 * 3600 * 1e9)
	c.Events()
	c.Do(1, &meta.Expire{})
	if ev := c.Events(); len(ev) != 1 || ev[0].Kind != meta.EventRetired || ev[0].Content != two.Session {
		t.Fatalf("%+v", ev)
	}
	if vs, _ := c.DB.Versions(f); len(vs) != 1 {
		t.Fatalf("%+v", vs)
	}
	if _, n := c.DB.StatFS(); n != 1<<20 {
		t.Fatalf("%d bytes live", n)
	}
}

func TestOrphanIsKeptAndRevived(t *testing.T) {
	c := metatest.New(t, 2)
	f := newFile(c, "f")
	base := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))
	c.Do(1, base)
	p := push(c, 1, f, base.Session, votes(c, 1, 2))
	p.Hint = "d/f"
	c.Do(2, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	if res := c.Do(1, p); !res.Orphan || res.Ino != f {
		t.Fatalf("%+v", res)
	}
	kept, _ := c.DB.Kept(10)
	if len(kept) != 1 || kept[0].State != meta.ContentOrphan || kept[0].Reason != "removed while it was written: d/f" {
		t.Fatalf("%+v", kept)
	}
	res := c.Do(2, &meta.Restore{Ino: f, Content: p.Session, Parent: meta.RootIno, Name: "back"})
	if res.Ino == f || res.Inode.Size != 1<<20 {
		t.Fatalf("%+v", res)
	}
	if i, err := c.DB.Lookup(meta.RootIno, "back", meta.Lease{}); err != nil || i.Content != p.Session {
		t.Fatal(i, err)
	}
	if kept, _ := c.DB.Kept(10); len(kept) != 0 {
		t.Fatal(kept)
	}
}

func TestRetention(t *testing.T) {
	c := metatest.New(t, 2)
	c.Do(1, &meta.SetPolicy{Dir: meta.RootIno, Policy: &meta.Policy{Retain: 2}})
	f := newFile(c, "f")
	var base meta.ContentID
	for range 5 {
		p := push(c, 1, f, base, votes(c, 1, 2))
		c.Do(1, p)
		base = p.Session
	}
	vs, _ := c.DB.Versions(f)
	if len(vs) != 3 || vs[0].Version != 5 || vs[2].Version != 3 || vs[1].State != meta.ContentRetained {
		t.Fatalf("%+v", vs)
	}
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	if _, n := c.DB.StatFS(); n != 0 {
		t.Fatalf("%d bytes live", n)
	}
}

func TestEmptyFileAndInline(t *testing.T) {
	c := metatest.New(t, 3)
	f := newFile(c, "f")
	res := c.Do(1, &meta.Publish{Ino: f, Session: c.Session(1)})
	if res.Version != 1 || !res.Inode.Content.IsZero() || !holds(t, c, 3, res.Inode.Content) {
		t.Fatalf("%+v", res)
	}
	res = c.Inline(1, f, []byte("hello"))
	if b, err := c.DB.InlineBytes(res.Inode.Content); err != nil || string(b) != "hello" || len(res.Owed) != 0 {
		t.Fatal(b, err, res.Owed)
	}
	c.Do(1, &meta.Publish{Ino: f, Session: c.Session(1), Base: res.Inode.Content})
	if _, err := c.DB.InlineBytes(res.Inode.Content); err != meta.ErrNotFound {
		t.Fatal(err)
	}
	wantErrno(t, c.Propose(1, &meta.Publish{Ino: f, Session: c.Session(1), Size: 3, Inline: []byte("four")}),
		syscall.EINVAL)
	wantErrno(t, c.Propose(1, &meta.Publish{Ino: f, Session: c.Session(1), Size: 5000, Inline: make([]byte, 5000)}),
		syscall.E2BIG)
	// O_TMPFILE: inode and name with the publish; attributes ride along.
	p := &meta.Publish{LinkParent: meta.RootIno, LinkName: "tmp", Session: c.Session(1), Size: 1, Inline: []byte("x")}
	p.Attr = meta.AttrPatch{Mask: meta.AttrMode | meta.AttrMtime, Mode: 0o640, Mtime: 12345,
		SetXattr: map[string][]byte{"user.k": []byte("v")}}
	res = c.Do(1, p)
	i, err := c.DB.Lookup(meta.RootIno, "tmp", meta.Lease{})
	if err != nil || i.Mode != 0o640 || i.Mtime != 12345 || i.Xattrs != 1 || i.Version != 1 || i != res.Inode {
		t.Fatalf("%+v %v", i, err)
	}
	p.Session = c.Session(1)
	wantErrno(t, c.Propose(1, p), syscall.EEXIST)
}

// A file's capabilities go with a change of its bytes or owner, and stay with one of its mode.
func TestCapabilitiesGoWithBytesAndOwner(t *testing.T) {
	c := metatest.New(t, 1)
	f := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile, Mode: 0o755}).Ino
	caps := meta.AttrPatch{SetXattr: map[string][]byte{"security.capability": []byte("c")}}
	check := func(what string, want bool) {
		t.Helper()
		_, err := c.DB.Xattr(f, "security.capability")
		i, _ := c.DB.Inode(f)
		if (err == nil) != want || (i.Xattrs == 1) != want {
			t.Fatalf("after %s: %v, %d attributes; want it there: %v", what, err, i.Xattrs, want)
		}
	}
	first := &meta.Publish{Ino: f, Session: c.Session(1), Size: 5, Inline: []byte("bytes"), Attr: caps}
	base := c.Do(1, first).Inode.Content
	check("the first version, which brought it", true)
	c.Do(1, &meta.SetAttr{Ino: f, Patch: meta.AttrPatch{Mask: meta.AttrMode, Mode: 0o700}})
	check("chmod", true)
	c.Do(1, &meta.SetAttr{Ino: f, Patch: meta.AttrPatch{Mask: meta.AttrUID, UID: 7}})
	check("chown", false)
	c.Do(1, &meta.SetAttr{Ino: f, Patch: caps})
	c.Do(1, &meta.Publish{Ino: f, Session: c.Session(1), Base: base, Size: 4, Inline: []byte("else")})
	check("other bytes", false)
	loser, _ := c.DB.Inode(f)
	c.Do(1, &meta.Publish{Ino: f, Session: c.Session(1), Base: base, Size: 3, Inline: []byte("won")})
	c.Do(1, &meta.SetAttr{Ino: f, Patch: caps})
	c.Do(1, &meta.Restore{Ino: f, Content: loser.Content})
	check("older bytes", false)
}

func TestExactlyOnce(t *testing.T) {
	c := metatest.New(t, 1)
	l := c.Lease(1)
	db := c.DB
	index := db.Index()
	apply := func(seq, acked uint64, op meta.Op) meta.Result {
		index++
		e := meta.Entry{Node: 1, Incarnation: l.Incarnation, Seq: seq, Acked: acked, Generation: meta.FirstGeneration, Op: op}
		res, events, err := db.Apply(index, 0, meta.EncodeEntry(e))
		if err != nil {
			t.Fatal(err)
		}
		if res.Duplicate && len(events) > 0 {
			t.Fatal("events of a duplicate")
		}
		return res
	}
	mk := &meta.Create{Parent: meta.RootIno, Name: "d", Kind: meta.KindDir}
	first := apply(3, 0, mk)
	again := apply(3, 0, mk)
	if !again.Duplicate || again.Errno != 0 {
		t.Fatalf("%+v", again)
	}
	again.Duplicate = false
	if diff := cmp.Diff(first, again); diff != "" {
		t.Fatal(diff)
	}
	if res := apply(1, 0, mk); res.Errno != syscall.EEXIST || res.Duplicate {
		t.Fatalf("%+v", res)
	}
	if res := apply(1, 0, mk); res.Errno != syscall.EEXIST || !res.Duplicate {
		t.Fatalf("%+v", res)
	}
	apply(4000, 3, &meta.Expire{})
	if res := apply(3, 0, mk); res.Errno != syscall.ESTALE || !res.Duplicate {
		t.Fatalf("acknowledged: %+v", res)
	}
	wantErrno(t, apply(4+4096, 3, mk), syscall.EAGAIN)
	wantErrno(t, apply(3+4096, 3, mk), syscall.EEXIST)
	wantErrno(t, apply(0, 0, mk), syscall.EINVAL)
	if res, _, err := db.Apply(index, 0, nil); err != nil || !res.Duplicate {
		t.Fatal("an old index", res, err)
	}
}

func TestBacklog(t *testing.T) {
	c := metatest.New(t, 3)
	f, g, h := newFile(c, "f"), newFile(c, "g"), newFile(c, "h")
	pf := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2, 3))
	c.Do(1, pf)
	c.Do(1, &meta.Down{Node: 3, Incarnation: 1, Reason: "silent"})
	pg := push(c, 1, g, meta.ContentID{}, votes(c, 1, 2))
	res := c.Do(1, pg)
	if diff := cmp.Diff([]meta.NodeID{3}, res.Owed); diff != "" {
		t.Fatal(diff)
	}
	if !holds(t, c, 3, pf.Session) || holds(t, c, 3, pg.Session) {
		t.Fatal("a down node holds what it had")
	}
	if l := owed(t, c, 3); len(l) != 1 || l[0].Content != pg.Session || l[0].Reason != meta.OwedDown {
		t.Fatalf("%+v", l)
	}
	c.Boot(3)
	ph := push(c, 1, h, meta.ContentID{}, votes(c, 1, 2, 3))
	c.Do(1, ph)
	if holds(t, c, 3, pg.Session) || !holds(t, c, 3, ph.Session) || !holds(t, c, 3, pf.Session) {
		t.Fatal("after boot")
	}
	if n, _ := c.DB.Node(3); len(n.Backlog) != 2 {
		t.Fatalf("%+v", n.Backlog)
	}
	l := owed(t, c, 3)
	if len(l) != 1 || l[0].Content != pg.Session {
		t.Fatalf("%+v", l)
	}
	c.Do(3, &meta.Held{Node: 3, UpTo: l[0].Published, View: c.DB.View()})
	if !holds(t, c, 3, pg.Session) || len(owed(t, c, 3)) != 0 {
		t.Fatal("after Held up to there")
	}
	// A new node lacks all; in steps it catches up.
	n4 := c.Join("node4")
	if len(owed(t, c, n4)) != 3 {
		t.Fatal("joined, not booted")
	}
	c.Boot(n4)
	l = owed(t, c, n4)
	if len(l) != 3 || l[0].Content != pf.Session || l[2].Content != ph.Session || l[0].Reason != meta.OwedJoined {
		t.Fatalf("%+v", l)
	}
	if two, _ := c.DB.OwedTo(n4, l[0].Published, 1); len(two) != 1 || two[0].Content != pg.Session {
		t.Fatalf("%+v", two)
	}
	c.Do(n4, &meta.Held{Node: n4, UpTo: l[1].Published})
	if len(owed(t, c, n4)) != 1 || !holds(t, c, n4, pg.Session) || holds(t, c, n4, ph.Session) {
		t.Fatal("in the middle")
	}
	c.Do(1, &meta.Evict{Node: n4})
	if holds(t, c, n4, pg.Session) || len(owed(t, c, n4)) != 0 {
		t.Fatal("evicted")
	}
	if hs, _ := c.DB.Holders(ph.Session); len(hs) != 3 {
		t.Fatal(hs)
	}
}

func TestCopies(t *testing.T) {
	c := metatest.New(t, 4)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2}})
	f := newFile(c, "f")
	i := mustInode(t, c.DB, f)
	members, _ := c.DB.Members(i.Policy, f)
	if len(members) != 2 {
		t.Fatal(members)
	}
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2, 3, 4))
	c.Do(1, p)
	if hs, _ := c.DB.Holders(p.Session); !cmp.Equal(hs, members) {
		t.Fatal(hs, members)
	}
	// A member goes down: a substitute is placed for new contents only.
	down := members[0]
	proposer := members[1]
	c.Do(proposer, &meta.Down{Node: down, Incarnation: 1})
	with, _ := c.DB.Members(i.Policy, f)
	if len(with) != 3 {
		t.Fatal(with)
	}
	for _, n := range with {
		if n != down && len(owed(t, c, n)) != 0 {
			t.Fatal("a restart moves old contents")
		}
	}
	// Evicted: the next in order looks, gets it, says so.
	c.Do(proposer, &meta.Evict{Node: down})
	now, _ := c.DB.Members(i.Policy, f)
	if len(now) != 2 {
		t.Fatal(now)
	}
	sub := now[0] + now[1] - proposer
	if holds(t, c, sub, p.Session) {
		t.Fatal("believed because another left")
	}
	l := owed(t, c, sub)
	if len(l) != 1 {
		t.Fatal(l)
	}
	wantErrno(t, c.Propose(sub, &meta.Held{Node: sub, UpTo: l[0].Published, View: 1}), 0)
	if len(owed(t, c, sub)) != 1 {
		t.Fatal("an older look settles nothing")
	}
	c.Do(sub, &meta.Held{Node: sub, Contents: []meta.ContentID{p.Session}, UpTo: l[0].Published, View: c.DB.View()})
	if !holds(t, c, sub, p.Session) || len(owed(t, c, sub)) != 0 {
		t.Fatal("after Held")
	}
}

// Where members have no room, nodes that the writer asked for them are members too. How many copies are needed is as
// before.
func TestOthersStandInForMembersWithoutRoom(t *testing.T) {
	c := metatest.New(t, 4)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2}})
	f := newFile(c, "f")
	policy := mustInode(t, c.DB, f).Policy
	members, _ := c.DB.Members(policy, f)
	full := members[:1]
	beside, _, err := c.DB.PlaceNew(policy, f, full)
	if err != nil || len(beside) != 3 {
		t.Fatal(beside, err)
	}
	stand := without(without(beside, members[0]), members[1])[0]
	lacking := func(of ...meta.Missed) *meta.Publish {
		p := push(c, 1, f, meta.ContentID{}, votes(c, members[1]))
		p.Missing = append([]meta.Missed{{Node: full[0], Reason: meta.OwedFull}}, of...)
		return p
	}
	p := lacking(meta.Missed{Node: stand, Reason: meta.OwedSlow})
	wantErrno(t, c.Propose(1, p), syscall.EIO) // who stands in has no copy
	p = lacking()
	p.Votes.Add(stand)
	res := c.Do(1, p)
	if !slices.Equal(res.Owed, full) || !holds(t, c, stand, p.Session) || !holds(t, c, members[1], p.Session) ||
		holds(t, c, full[0], p.Session) {
		t.Errorf("owed to %v", res.Owed)
	}
	if l := owed(t, c, full[0]); len(l) != 1 || l[0].Reason != meta.OwedFull {
		t.Errorf("owed: %+v", l)
	}
	rel := &meta.Release{Node: stand, Contents: []meta.ContentID{p.Session}}
	c.Do(stand, rel)
	if !holds(t, c, stand, p.Session) {
		t.Error("let go before the member has it")
	}
	c.Do(full[0], &meta.Held{Node: full[0], Contents: []meta.ContentID{p.Session}, View: c.DB.View()})
	c.Do(stand, rel)
	if holds(t, c, stand, p.Session) || !holds(t, c, full[0], p.Session) {
		t.Error("not let go")
	}
}

// A copy counts wherever the policy allows it: the node that has it stood in for a member that is back, or the inode
// had no number when the bytes were sent. It stands in for a member that has none; other nodes let their copies go.
func TestCopiesBesideTheMembersCount(t *testing.T) {
	c := metatest.New(t, 1) // without label
	for i := range 5 {
		c.Boot(c.JoinWith(fmt.Sprintf("d%d", i), map[string]string{"kind": "disk"}))
	}
	disks := &meta.Policy{Placement: meta.PlaceCopies, Copies: 2, Labels: map[string]string{"kind": "disk"}}
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: disks})
	f := newFile(c, "f")
	policy := mustInode(t, c.DB, f).Policy
	members, needed, err := c.DB.PlaceNew(policy, f, nil)
	if err != nil || len(members) != 2 || needed != 2 {
		t.Fatal(members, needed, err)
	}
	others := []meta.NodeID{2, 3, 4, 5, 6}
	if all, needed, err := c.DB.PlaceNew(policy, 0, nil); err != nil || needed != 2 || !slices.Equal(all, others) {
		t.Errorf("an inode without number may be on %v, %d are needed: %v", all, needed, err)
	}
	others = without(without(others, members[0]), members[1])
	wantErrno(t, c.Propose(1, push(c, 1, f, meta.ContentID{}, votes(c, others[0]))), syscall.EIO)
	wantErrno(t, c.Propose(1, push(c, 1, f, meta.ContentID{}, votes(c, others[0], 1))), syscall.EIO) // not a disk
	late := push(c, 1, f, meta.ContentID{}, votes(c, others[0], others[1]))
	c.Do(members[0], &meta.Down{Node: others[1], Incarnation: 1})
	c.Boot(others[1])
	wantErrno(t, c.Propose(1, late), syscall.EIO) // of an incarnation that ended

	p := push(c, 1, f, meta.ContentID{}, votes(c, members[0], others[0], others[1], others[2]))
	res := c.Do(1, p)
	holders, err := c.DB.Holders(p.Session)
	if want := sorted(members[0], others[0]); err != nil || !slices.Equal(holders, want) {
		t.Errorf("held by %v, want %v: %v", holders, want, err)
	}
	if !slices.Equal(res.Owed, members[1:]) || len(owed(t, c, members[1])) != 1 {
		t.Errorf("owed to %v, want %v", res.Owed, members[1:])
	}
	q := push(c, 1, f, p.Session, votes(c, others[0], others[1], others[2]))
	c.Do(1, q)
	if holders, err = c.DB.Holders(q.Session); err != nil || !slices.Equal(holders, others[:2]) {
		t.Errorf("held by %v, want %v: %v", holders, others[:2], err)
	}
}

func sorted(list ...meta.NodeID) []meta.NodeID {
	slices.Sort(list)
	return list
}

func without(list []meta.NodeID, n meta.NodeID) []meta.NodeID {
	return slices.DeleteFunc(slices.Clone(list), func(m meta.NodeID) bool { return m == n })
}

func TestRelease(t *testing.T) {
	c := metatest.New(t, 3)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 1, MinCopies: 1}})
	f := newFile(c, "f")
	i := mustInode(t, c.DB, f)
	members, _ := c.DB.Members(i.Policy, f)
	other := members[0]%3 + 1
	c.Do(other, &meta.Down{Node: members[0], Incarnation: 1})
	with, _ := c.DB.Members(i.Policy, f)
	sub := with[0] + with[1] - members[0]
	p := push(c, other, f, meta.ContentID{}, votes(c, sub))
	if res := c.Propose(other, p); res.Errno == syscall.ESTALE { // reserved by node 1, which may be another
		c.Do(other, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile})
		t.Skip("the reservation belongs to the node that went down")
	}
	rel := &meta.Release{Node: sub, Contents: []meta.ContentID{p.Session}}
	c.Do(sub, rel)
	if !holds(t, c, sub, p.Session) {
		t.Fatal("released before the member holds")
	}
	c.Boot(members[0])
	c.Do(members[0], &meta.Held{Node: members[0], Contents: []meta.ContentID{p.Session}, UpTo: c.DB.Index()})
	c.Do(sub, rel)
	if holds(t, c, sub, p.Session) || !holds(t, c, members[0], p.Session) {
		t.Fatal("not released")
	}
	// A report that was proposed before a release may come after it: the content may be deleted by then.
	late := func(seq uint64, op meta.Op) meta.Result {
		e := meta.Entry{Node: sub, Incarnation: 1, Seq: seq, Generation: meta.FirstGeneration, Op: op}
		res, _, err := c.DB.Apply(c.DB.Index()+1, 1, meta.EncodeEntry(e))
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	wantErrno(t, late(100, rel), 0)
	wantErrno(t, late(99, &meta.Held{Node: sub, Contents: []meta.ContentID{p.Session}}), syscall.EAGAIN)
	if holds(t, c, sub, p.Session) {
		t.Fatal("an old report is believed after a release")
	}
}

// A join that is asked again is known by its key, also when the token is used up; another key is another machine.
func TestJoinAskedAgain(t *testing.T) {
	c := metatest.New(t, 1)
	once, often, key, other := [32]byte{1}, [32]byte{2}, [32]byte{8}, [32]byte{9}
	c.Do(1, &meta.AddToken{Hash: once, Expires: 1 << 62})
	c.Do(1, &meta.AddToken{Hash: often, Expires: 1 << 62, Uses: 9})
	first := c.Do(1, &meta.Join{Name: "b", Addr: "b:1", TokenHash: once, KeyHash: key})
	again := c.Do(1, &meta.Join{Name: "b", Addr: "b:2", TokenHash: once, KeyHash: key})
	if again.Node != first.Node || !again.Existed {
		t.Fatalf("asked again: %+v, first %+v", again, first)
	}
	wantErrno(t, c.Propose(1, &meta.Join{Name: "b", Addr: "b:1", TokenHash: once, KeyHash: other}), syscall.EALREADY)
	wantErrno(t, c.Propose(1, &meta.Join{Name: "b", Addr: "b:1", TokenHash: often, KeyHash: other}), syscall.EEXIST)
	second := c.Do(1, &meta.Join{Name: "c", TokenHash: often, KeyHash: other})
	if again := c.Do(1, &meta.Join{Name: "c", TokenHash: often, KeyHash: other}); again.Node != second.Node ||
		!again.Existed {
		t.Fatalf("asked again: %+v, first %+v", again, second)
	}
	if res := c.Do(1, &meta.Join{Name: "d", TokenHash: often, KeyHash: [32]byte{7}}); res.Node != second.Node+1 {
		t.Fatalf("one join was counted twice: %+v", res)
	}
}

// An expired token is distinguished from an unknown one for a day; then it is forgotten.
func TestTokensAreForgotten(t *testing.T) {
	c := metatest.New(t, 1)
	now := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "d", Kind: meta.KindDir}).Inode.Ctime
	for i, expires := range []int64{now, 1 << 62} {
		c.Do(1, &meta.AddToken{Hash: [32]byte{byte(i + 1)}, Expires: expires})
	}
	expire := func(after time.Duration) {
		t.Helper()
		e := meta.Entry{Generation: meta.FirstGeneration, Op: &meta.Expire{}}
		if _, _, err := c.DB.Apply(c.DB.Index()+1, now+int64(after), meta.EncodeEntry(e)); err != nil {
			t.Fatal(err)
		}
	}
	known := func(i byte) bool { _, _, err := meta.Token(c.DB, [32]byte{i}); return err == nil }
	expire(23 * time.Hour)
	if !known(1) || !known(2) {
		t.Fatal("a token was forgotten too early")
	}
	expire(25 * time.Hour)
	if known(1) || !known(2) {
		t.Fatalf("the old token is known: %v, the other: %v", known(1), known(2))
	}
}

// The address of a node that is up is no other's. The token of the refused join is good for the next one.
func TestJoinAtTheAddressOfALiveNode(t *testing.T) {
	c := metatest.New(t, 2)
	token := [32]byte{7}
	c.Do(1, &meta.AddToken{Hash: token, Expires: 1 << 62, Replace: true, Uses: 1})
	join := func(name, addr string, replace bool) *meta.Join {
		return &meta.Join{Name: name, Addr: addr, TokenHash: token, Replace: replace}
	}
	view := c.DB.View()
	wantErrno(t, c.Propose(1, join("new", "node2:7400", false)), syscall.EADDRINUSE)
	wantErrno(t, c.Propose(1, join("new", "Node2:7400", false)), syscall.EADDRINUSE)
	wantErrno(t, c.Propose(1, join("node1", "node2:7400", true)), syscall.EADDRINUSE)
	if nodes, err := c.DB.Nodes(); err != nil || len(nodes) != 2 || c.DB.View() != view {
		t.Errorf("%d nodes, view %d, %v", len(nodes), c.DB.View(), err)
	}
	c.Do(1, &meta.Down{Node: 2, Incarnation: c.Lease(2).Incarnation})
	c.Do(1, join("new", "node2:7400", false)) // its machine may be a new one
}

// A node that is replaced may keep its address.
func TestReplacedNodeKeepsItsAddress(t *testing.T) {
	c := metatest.New(t, 2)
	token := [32]byte{7}
	c.Do(1, &meta.AddToken{Hash: token, Expires: 1 << 62, Replace: true, Uses: 1})
	if res := c.Do(1, &meta.Join{Name: "node2", Addr: "node2:7400", TokenHash: token, Replace: true}); res.Node != 2 {
		t.Errorf("node %d", res.Node)
	}
}

func TestJoinTokens(t *testing.T) {
	c := metatest.New(t, 1)
	tok := [32]byte{1}
	j := &meta.Join{Name: "b", TokenHash: tok}
	wantErrno(t, c.Propose(1, &meta.Join{Name: "b"}), syscall.EACCES)
	wantErrno(t, c.Propose(1, j), syscall.EACCES)
	c.Do(1, &meta.AddToken{Hash: tok, Expires: 1 << 62})
	c.Do(1, &meta.AddToken{Hash: [32]byte{2}, Expires: 1})
	wantErrno(t, c.Propose(1, &meta.AddToken{Hash: tok}), syscall.EEXIST)
	wantErrno(t, c.Propose(1, &meta.Join{Name: "b", TokenHash: [32]byte{2}}), syscall.ETIMEDOUT)
	if res := c.Do(1, j); res.Node != 2 {
		t.Fatalf("%+v", res)
	}
	if res := c.Do(1, j); res.Node != 2 || !res.Existed {
		t.Fatalf("asked again: %+v", res)
	}
	wantErrno(t, c.Propose(1, &meta.Join{Name: "c", TokenHash: tok}), syscall.EALREADY)
	c.Boot(2)
	wantErrno(t, c.Propose(1, j), syscall.EALREADY)
	c.Do(1, &meta.AddToken{Hash: [32]byte{3}, Expires: 1 << 62})
	wantErrno(t, c.Propose(1, &meta.Join{Name: "b", TokenHash: [32]byte{3}}), syscall.EEXIST)
	wantErrno(t, c.Propose(1, &meta.Join{Name: "b", TokenHash: [32]byte{3}, Replace: true}), syscall.EPERM)
	if _, used, err := meta.Token(c.DB, [32]byte{3}); err != nil || used {
		t.Fatal(used, err)
	}
	f := newFile(c, "f")
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))
	c.Do(1, p)
	was, err := c.DB.Node(2)
	if err != nil {
		t.Fatal(err)
	}
	c.Do(1, &meta.AddToken{Hash: [32]byte{4}, Expires: 1 << 62, Replace: true})
	if res := c.Do(1, &meta.Join{Name: "b", TokenHash: [32]byte{4}, Replace: true}); res.Node != 2 {
		t.Fatalf("%+v", res)
	}
	// A boot of the disk that was replaced was on its way: it must not take the place of the new one.
	wantErrno(t, c.ProposeAs(meta.Lease{Node: 2}, &meta.Boot{Node: 2, Store: was.Store, Nonce: 77}), syscall.EEXIST)
	if holds(t, c, 2, p.Session) || len(owed(t, c, 2)) != 1 {
		t.Fatal("a replaced node holds nothing")
	}
	var other [16]byte
	other[0] = 9
	if res := c.Propose(2, &meta.Boot{Node: 2, Store: other, Nonce: 7}); res.Errno != syscall.ESTALE {
		t.Fatal(res) // a boot is proposed without an incarnation
	}
	boot := c.ProposeAs(meta.Lease{Node: 2}, &meta.Boot{Node: 2, Store: other, Nonce: 7})
	if boot.Errno != 0 || boot.Incarnation != 2 {
		t.Fatalf("%+v", boot)
	}
	if again := c.ProposeAs(meta.Lease{Node: 2}, &meta.Boot{Node: 2, Store: other, Nonce: 7}); again.Incarnation != 2 {
		t.Fatalf("%+v", again)
	}
	c.Do(1, &meta.Down{Node: 2, Incarnation: 2})
	if again := c.ProposeAs(meta.Lease{Node: 2}, &meta.Boot{Node: 2, Store: other, Nonce: 7}); again.Incarnation != 2 {
		t.Fatalf("%+v: a boot that comes twice made two incarnations, the process would take itself for cloned", again)
	}
	if n, err := c.DB.Node(2); err != nil || n.State != meta.NodeDown {
		t.Fatalf("%+v, %v: a boot that comes again ended a later down", n, err)
	}
	if boot := c.ProposeAs(meta.Lease{Node: 2}, &meta.Boot{Node: 2, Store: other, Nonce: 8}); boot.Incarnation != 3 {
		t.Fatalf("%+v", boot)
	}
	wantErrno(t, c.ProposeAs(meta.Lease{Node: 2}, &meta.Boot{Node: 2, Store: [16]byte{8}}), syscall.EEXIST)
}

// An orphan is kept for days, so that somebody can still ask for it, and no longer.
func TestOrphanOutlivesTheSweeps(t *testing.T) {
	c := metatest.New(t, 2)
	f := newFile(c, "f")
	base := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))
	c.Do(1, base)
	c.Do(2, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	p := push(c, 1, f, base.Session, votes(c, 1, 2))
	c.Do(1, p)
	for day := range 7 {
		c.Do(1, &meta.Expire{})
		if _, err := c.DB.Content(p.Session); err != nil {
			t.Fatalf("the orphan after %d days: %v", day, err)
		}
		c.Advance(24 * 3600 * 1e9)
	}
	c.Do(1, &meta.Expire{})
	if _, err := c.DB.Content(p.Session); err != meta.ErrNotFound {
		t.Fatalf("the orphan after a week: %v", err)
	}
}

// An operation that fails half way has changed nothing: here a publish has made its inode and name before its votes
// are counted.
func TestFailedOperationHasNoEffect(t *testing.T) {
	c := metatest.New(t, 3)
	inodes, _ := c.DB.StatFS()
	p := push(c, 1, 0, meta.ContentID{}, votes(c, 1))
	p.LinkParent, p.LinkName = meta.RootIno, "f"
	c.Events()
	wantErrno(t, c.Propose(1, p), syscall.EIO)
	if _, err := c.DB.Lookup(meta.RootIno, "f", c.Lease(1)); err != meta.ErrNotFound {
		t.Fatalf("the name of a publish that failed: %v", err)
	}
	if now, _ := c.DB.StatFS(); now != inodes {
		t.Fatalf("%d inodes after a publish that failed, %d before", now, inodes)
	}
	if ev := c.Events(); len(ev) != 0 {
		t.Fatalf("events of a publish that failed: %+v", ev)
	}
	p.Votes = votes(c, 1, 2)
	if res := c.Do(1, p); res.Version != 1 {
		t.Fatalf("%+v", res)
	}
}

// A node loses a content that it has voted for and that is not published yet: the report is refused, so that the node
// repeats it. A report that was taken would be forgotten, and the publish after it would count the vote.
func TestLossBeforeThePublishIsRefused(t *testing.T) {
	c := metatest.New(t, 3)
	f := newFile(c, "f")
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2, 3))
	loss := &meta.Unheld{Node: 3, Contents: []meta.ContentID{p.Session}, Reason: meta.OwedLost}
	wantErrno(t, c.Propose(3, loss), syscall.ENOENT)
	c.Do(1, p)
	c.Do(3, loss)
	if holds(t, c, 3, p.Session) || len(owed(t, c, 3)) != 1 {
		t.Fatal("the loss is not known once the content is published")
	}
	aborted := c.Session(1)
	c.Do(1, &meta.Abort{Session: aborted})
	c.Do(3, &meta.Unheld{Node: 3, Contents: []meta.ContentID{aborted}, Reason: meta.OwedLost}) // nothing will come of it
}

// A substitute is let go only when every member has what it holds.
func TestReleaseWaitsForEveryMember(t *testing.T) {
	c, f, p, members := copies(t, 3, 1)
	home := members[0]
	writer := home%3 + 1
	c.Do(writer, &meta.Down{Node: home, Incarnation: c.Lease(home).Incarnation})
	with, err := c.DB.Members(mustInode(t, c.DB, f).Policy, f)
	if err != nil || len(with) != 2 {
		t.Fatalf("members %v, %v: wanted a substitute", with, err)
	}
	sub := with[0] + with[1] - home
	q := push(c, writer, f, p.Session, votes(c, sub))
	c.Do(writer, q)
	c.Boot(home)
	release := &meta.Release{Node: sub, Contents: []meta.ContentID{q.Session}}
	c.Do(sub, release)
	if !holds(t, c, sub, q.Session) {
		t.Fatal("the only copy is let go")
	}
	c.Do(home, &meta.Held{Node: home, Contents: []meta.ContentID{q.Session}, UpTo: c.DB.Index()})
	c.Do(sub, release)
	if holds(t, c, sub, q.Session) || !holds(t, c, home, q.Session) {
		t.Fatal("the substitute is not let go")
	}
}

// A published file is everybody's: its writer's reservation is over, in the inode, in the name, and when the writer
// is fenced.
func TestPublishEndsTheReservation(t *testing.T) {
	c := metatest.New(t, 2)
	f := newFile(c, "f")
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))
	if res := c.Do(1, p); res.Inode.Reserved != (meta.Lease{}) {
		t.Fatalf("reserved for %v after its publish", res.Inode.Reserved)
	}
	if i, err := c.DB.Lookup(meta.RootIno, "f", c.Lease(2)); err != nil || i.Ino != f || i.Reserved != (meta.Lease{}) {
		t.Fatalf("another node sees %+v, %v", i, err)
	}
	if res := c.Do(2, push(c, 2, f, p.Session, votes(c, 1, 2))); res.Version != 2 || res.Conflict {
		t.Fatalf("another node's publish: %+v", res)
	}
	c.Boot(1)
	if i := mustInode(t, c.DB, f); i.Version != 2 {
		t.Fatalf("after the writer's fence: %+v", i)
	}
}

// Proposals of a new incarnation are counted from 1 again: what the incarnation before had proposed under these
// numbers, and what it had acknowledged, says nothing about them.
func TestBootBeginsANewWindow(t *testing.T) {
	c := metatest.New(t, 1)
	propose := func(l meta.Lease, seq, acked uint64, name string) meta.Result {
		op := &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindDir, Mode: 0o755}
		e := meta.Entry{Node: l.Node, Incarnation: l.Incarnation, Seq: seq, Acked: acked, Generation: meta.FirstGeneration,
			Op: op}
		res, _, err := c.DB.Apply(c.DB.Index()+1, int64(seq), meta.EncodeEntry(e))
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	life := c.Lease(1)
	for n, names := range [][3]string{{"a", "b", "c"}, {"d", "e", "f"}} {
		for i, name := range names {
			res := propose(life, uint64(i)+1, uint64(min(i, 1)), name)
			wantErrno(t, res, 0)
			if i, err := c.DB.Lookup(meta.RootIno, name, life); err != nil || res.Duplicate || res.Ino != i.Ino {
				t.Fatalf("life %d makes %s: %+v, %v", n, name, res, err)
			}
		}
		if n == 0 {
			boot := meta.Entry{Node: 1, Generation: meta.FirstGeneration, Op: &meta.Boot{Node: 1, Store: [16]byte{15: 1}}}
			res, _, err := c.DB.Apply(c.DB.Index()+1, 9, meta.EncodeEntry(boot))
			if err != nil || res.Errno != 0 {
				t.Fatal(res.Errno, err)
			}
			life.Incarnation = res.Incarnation
		}
	}
}
