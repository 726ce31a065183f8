package newnames

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// world is nodes over one state: all have applied the same entries.
type world struct {
	t     *testing.T
	c     *metatest.Cluster
	order sync.Mutex // of entries and their effects
	nodes []*testNode
	mu    sync.Mutex
	ops   map[string]int // what the log was asked, by type
}

type testNode struct {
	*Holder
	w  *world
	id meta.NodeID

	mu    sync.Mutex
	lease meta.Lease
	shown []meta.Event // what the mounts heard of
	still bool         // no quorum confirms anything
	open  int          // operations whose outcome is unknown
}

func newWorld(t *testing.T, n int) *world {
	w := &world{t: t, c: metatest.New(t, n), ops: map[string]int{}}
	for i := range n {
		tn := &testNode{w: w, id: meta.NodeID(i + 1)}
		tn.lease = w.c.Lease(tn.id)
		tn.Holder = New(t.Context(), Config{State: w.c.DB.(*meta.DB), Self: tn.self, Log: tn.log, Now: time.Now,
			Confirm: tn.confirm, Awake: func() time.Duration { return 0 }, Settled: tn.isSettled,
			Settle: tn.settle, Changed: tn.show, Logger: slog.New(slog.DiscardHandler)})
		w.nodes = append(w.nodes, tn)
	}
	return w
}

func (n *testNode) self() meta.Lease {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lease
}

func (n *testNode) confirm(context.Context, meta.Lease) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.still {
		return errors.New("no quorum")
	}
	return nil
}

func (n *testNode) isSettled() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.open == 0
}

func (n *testNode) settle(context.Context) error {
	if !n.isSettled() {
		return errors.New("not settled")
	}
	return nil
}

// unsure notes that one outcome more, or less, is unknown.
func (n *testNode) unsure(by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open += by
}

func (n *testNode) show(events []meta.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shown = append(n.shown, events...)
}

func (n *testNode) log(ctx context.Context, op meta.Op) (meta.Result, error) {
	if err := ctx.Err(); err != nil {
		return meta.Result{}, err
	}
	return n.w.apply(n, func() meta.Result { return n.w.c.ProposeAs(n.self(), op) }, op), nil
}

func (w *world) apply(n *testNode, do func() meta.Result, op meta.Op) meta.Result {
	w.mu.Lock()
	w.ops[fmt.Sprintf("%T", op)]++
	w.mu.Unlock()
	w.order.Lock()
	defer w.order.Unlock()
	res := do()
	events := w.c.Events()
	for _, x := range w.nodes {
		x.show(append(slices.Clone(events), x.Applied(events)...))
	}
	return res
}

// fence ends the incarnation of a node, which boots again.
func (w *world) fence(n *testNode) {
	down := &meta.Down{Node: n.id, Incarnation: n.self().Incarnation}
	other := w.nodes[int(n.id)%len(w.nodes)]
	w.apply(n, func() meta.Result { return w.c.ProposeAs(other.self(), down) }, down)
	w.order.Lock()
	defer w.order.Unlock()
	lease := w.c.Boot(n.id)
	events := w.c.Events()
	for _, x := range w.nodes {
		x.show(append(slices.Clone(events), x.Applied(events)...))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lease = lease
}

func (w *world) count(op meta.Op) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ops[fmt.Sprintf("%T", op)]
}

func (n *testNode) do(op meta.Op) meta.Result {
	res, err := n.Propose(n.w.t.Context(), op, n.log)
	if err != nil {
		n.w.t.Errorf("node %d: %T: %v", n.id, op, err)
	}
	return res
}

func (n *testNode) create(dir meta.Ino, name string) meta.Result {
	return n.do(&meta.Create{Parent: dir, Name: name, Kind: meta.KindFile, Mode: 0o640, Excl: true,
		Cred: meta.Cred{UID: 5, GID: 6}})
}

func (n *testNode) mkdir(dir meta.Ino, name string) meta.Ino {
	return n.do(&meta.Create{Parent: dir, Name: name, Kind: meta.KindDir, Mode: 0o755}).Ino
}

// publish publishes an empty file.
func (n *testNode) publish(ino meta.Ino) meta.Result {
	n.w.order.Lock()
	id := n.w.c.Session(n.id)
	n.w.order.Unlock()
	return n.do(&meta.Publish{Ino: ino, Session: id})
}

// held is a directory whose names a node gives.
func (n *testNode) held(name string) meta.Ino {
	dir := n.mkdir(meta.RootIno, name)
	for i := range 2 {
		n.publish(n.create(dir, fmt.Sprint("first", i)).Ino)
	}
	n.w.eventually("the directory is delegated", func() bool {
		l, err := n.cfg.State.NamesHolder(dir)
		n.Holder.mu.Lock()
		defer n.Holder.mu.Unlock()
		return err == nil && l == n.self() && n.numbers != (numbers{}) && n.trustedLocked(l)
	})
	return dir
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("never: %s", what)
		}
	}
}

// A new file takes one entry, and is seen as before: by the node that makes it at once, by all after its publish.
func TestNewFileTakesOneEntry(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	dir := a.held("d")
	creates, publishes := w.count(&meta.Create{}), w.count(&meta.Publish{})
	for i := range 100 {
		name := fmt.Sprint("f", i)
		res := a.create(dir, name)
		if res.Errno != 0 || res.Inode.Mode != 0o640 || res.Inode.Reserved != a.self() || res.Inode.Policy == 0 {
			t.Fatalf("created: %+v", res)
		}
		seen, err := a.View().Lookup(dir, name, a.self())
		if err != nil || seen != res.Inode {
			t.Fatalf("seen here: %+v, %v", seen, err)
		}
		if list, _ := a.View().ReadDir(dir, "", 1000, a.self()); !slices.Contains(list, meta.Dirent{Name: name, Ino: res.Ino,
			Kind: meta.KindFile}) {
			t.Fatal("not in the list here")
		}
		if _, err := b.View().Lookup(dir, name, b.self()); !errors.Is(err, meta.ErrNotFound) {
			t.Fatalf("seen elsewhere before its publish: %v", err)
		}
		if again := a.create(dir, name); again.Errno != syscall.EEXIST {
			t.Fatalf("made twice: %+v", again)
		}
		if pub := a.publish(res.Ino); pub.Errno != 0 || pub.Ino != res.Ino || pub.Inode.UID != 5 || pub.Inode.GID != 6 ||
			pub.Inode.Mode != 0o640 {
			t.Fatalf("published: %+v", pub)
		}
		if rec, err := b.View().Lookup(dir, name, b.self()); err != nil || rec.Ino != res.Ino {
			t.Fatalf("after its publish elsewhere: %+v, %v", rec, err)
		}
	}
	if n := w.count(&meta.Create{}) - creates; n != 0 {
		t.Errorf("%d creates went to the log", n)
	}
	if n := w.count(&meta.Publish{}) - publishes; n != 100 {
		t.Errorf("%d publishes, want 100", n)
	}
	if n := a.Pending(); n != 0 {
		t.Errorf("%d files are left pending", n)
	}
}

// A name that stands is not made again, whether a file or a directory has it.
func TestNameThatStandsIsNotMadeAgain(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	dir := a.held("d")
	file := a.create(dir, "file").Ino
	a.publish(file)
	for name, ino := range map[string]meta.Ino{"file": file, "sub": a.mkdir(dir, "sub")} {
		if res := a.create(dir, name); res.Errno != syscall.EEXIST {
			t.Errorf("%s is made again: %+v", name, res)
		}
		open := &meta.Create{Parent: dir, Name: name, Kind: meta.KindFile, Mode: 0o640}
		if res := a.do(open); name == "file" && (res.Errno != 0 || !res.Existed || res.Ino != ino) {
			t.Errorf("an open that may make %s: %+v", name, res)
		}
		for _, n := range []*testNode{a, b} {
			if rec, err := n.View().Lookup(dir, name, n.self()); err != nil || rec.Ino != ino {
				t.Errorf("%s is %d at node %d: %v", name, rec.Ino, n.id, err)
			}
		}
	}
}

// O_EXCL lets in one, whoever gives the names; the other node's create ends the delegation.
func TestAnotherNodeMakesANameThere(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	dir := a.held("d")
	pending := a.create(dir, "lock")
	if res := b.create(dir, "lock"); res.Errno != syscall.EEXIST {
		t.Fatalf("two nodes have made one name: %+v", res)
	}
	if res := b.create(dir, "other"); res.Errno != 0 {
		t.Fatal(res.Errno)
	}
	if pub := a.publish(pending.Ino); pub.Errno != 0 || pub.Ino != pending.Ino || pub.Orphan {
		t.Fatalf("published: %+v", pub)
	}
	if res := a.create(dir, "other"); res.Errno != syscall.EEXIST {
		t.Fatalf("made over another node's reserved name: %+v", res)
	}
	for i := range 5 {
		a.create(dir, fmt.Sprint("more", i))
	}
	if l, _ := a.cfg.State.NamesHolder(dir); l != (meta.Lease{}) {
		t.Error("it asked again at once")
	}
}

// Everything else that concerns a pending file finds it in the log.
func TestOperationsOnPendingFiles(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	gone := a.create(dir, "gone").Ino
	if res := a.do(&meta.Unlink{Parent: dir, Name: "gone", Ino: gone + 1}); res.Errno != syscall.ESTALE {
		t.Errorf("unlink of another inode: %v", res.Errno)
	}
	if res := a.do(&meta.Unlink{Parent: dir, Name: "gone"}); res.Removed != gone {
		t.Errorf("unlink: %+v", res)
	}
	if pub := a.publish(gone); !pub.Orphan {
		t.Errorf("the publish of a removed file: %+v", pub)
	}
	f := a.create(dir, "f").Ino
	if res := a.do(&meta.Create{Parent: dir, Name: "f", Kind: meta.KindDir}); res.Errno != syscall.EEXIST {
		t.Errorf("mkdir over it: %v", res.Errno)
	}
	g := a.create(dir, "g").Ino
	if res := a.do(&meta.Rename{OldParent: dir, OldName: "g", NewParent: meta.RootIno, NewName: "h"}); res.Errno != 0 {
		t.Errorf("rename: %v", res.Errno)
	}
	if rec, err := a.View().Lookup(meta.RootIno, "h", a.self()); err != nil || rec.Ino != g {
		t.Errorf("renamed: %+v, %v", rec, err)
	}
	if res := a.do(&meta.Rmdir{Parent: meta.RootIno, Name: "d"}); res.Errno != syscall.ENOTEMPTY {
		t.Errorf("rmdir above it: %v", res.Errno)
	}
	empty := a.mkdir(dir, "empty")
	a.create(empty, "e")
	if res := w.nodes[1].do(&meta.Rmdir{Parent: dir, Name: "empty"}); res.Errno != syscall.ENOTEMPTY {
		t.Errorf("rmdir by another node above a pending file: %v", res.Errno)
	}
	for _, ino := range []meta.Ino{f, g} {
		if pub := a.publish(ino); pub.Errno != 0 || pub.Ino != ino || pub.Orphan {
			t.Errorf("publish: %+v", pub)
		}
	}
}

// G5: what a fenced incarnation has made has lost its name, and the mounts hear of it.
func TestFenceTakesPendingNames(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	dir := a.held("d")
	f := a.create(dir, "f")
	w.fence(a)
	if _, err := a.View().Lookup(dir, "f", a.self()); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("it is still there: %v", err)
	}
	if !slices.ContainsFunc(a.shown, func(e meta.Event) bool { return e.Kind == meta.EventRemoved && e.Ino == f.Ino }) {
		t.Error("the mounts do not hear of it")
	}
	if res := b.create(dir, "f"); res.Errno != 0 {
		t.Errorf("another node makes the name: %v", res.Errno)
	}
	if pub := a.publish(f.Ino); !pub.Orphan {
		t.Errorf("published: %+v", pub)
	}
}

// A file that is removed while its first publish is ordered does not come back by it.
func TestUnlinkBesideTheFirstPublish(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	f := a.create(dir, "f")
	ordering, goOn := make(chan struct{}), make(chan struct{})
	slow := func(ctx context.Context, op meta.Op) (meta.Result, error) {
		close(ordering)
		<-goOn
		return a.log(ctx, op)
	}
	published := make(chan error)
	go func() {
		_, err := a.Propose(t.Context(), &meta.Publish{Ino: f.Ino, Session: w.c.Session(1)}, slow)
		published <- err
	}()
	<-ordering
	removed := make(chan meta.Result)
	go func() { removed <- a.do(&meta.Unlink{Parent: dir, Name: "f"}) }()
	w.eventually("the unlink is under way, or over", func() bool {
		a.Holder.mu.Lock()
		defer a.Holder.mu.Unlock()
		return a.busy[name{dir, "f"}] > 0 || a.byIno[f.Ino] == nil
	})
	close(goOn)
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	if res := <-removed; res.Errno != 0 || res.Removed != f.Ino {
		t.Errorf("unlink: %+v", res)
	}
	if _, err := a.View().Lookup(dir, "f", a.self()); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("it is there again: %v", err)
	}
}

// A publish and the removal by another node, applied together, leave nothing behind.
func TestPublishAndRemovalInOneBatch(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	dir := a.held("d")
	f := a.create(dir, "f")
	together := func(_ context.Context, op meta.Op) (meta.Result, error) {
		var res meta.Result
		w.apply(a, func() meta.Result {
			res = w.c.ProposeAs(a.self(), op)
			return w.c.ProposeAs(b.self(), &meta.Unlink{Parent: dir, Name: "f"})
		}, op)
		return res, nil
	}
	pub := &meta.Publish{Ino: f.Ino, Session: w.c.Session(1)}
	if res, err := a.Propose(t.Context(), pub, together); err != nil || res.Errno != 0 {
		t.Fatal(res, err)
	}
	if _, err := a.View().Lookup(dir, "f", a.self()); !errors.Is(err, meta.ErrNotFound) || a.Pending() != 0 {
		t.Errorf("it is still here: %v, %d pending", err, a.Pending())
	}
	if again := a.publish(f.Ino); !again.Orphan {
		t.Errorf("its next publish brings it back: %+v", again)
	}
	if res := b.create(dir, "f"); res.Errno != 0 {
		t.Errorf("the name is not free: %v", res.Errno)
	}
}

// A publish that waits until the outcome of the one before is known does not bring the file back if it was removed
// meanwhile.
func TestPublishAfterOneOfUnknownOutcome(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	dir := a.held("d")
	f := a.create(dir, "f")
	var first meta.Op
	silent := func(_ context.Context, op meta.Op) (meta.Result, error) {
		first = op
		a.unsure(1)
		return meta.Result{}, errors.New("unknown")
	}
	if _, err := a.Propose(t.Context(), &meta.Publish{Ino: f.Ino, Session: w.c.Session(1)}, silent); err == nil {
		t.Fatal("the log was silent, and nobody says so")
	}
	waits, known := make(chan struct{}, 2), make(chan struct{})
	a.cfg.Settle = func(context.Context) error {
		if !a.isSettled() {
			waits <- struct{}{}
			<-known
		}
		return nil
	}
	done := make(chan meta.Result)
	go func() {
		res, err := a.Propose(t.Context(), &meta.Publish{Ino: f.Ino, Session: w.c.Session(1)},
			func(ctx context.Context, op meta.Op) (meta.Result, error) {
				if err := a.cfg.Settle(ctx); err != nil { // nothing is ordered before
					return meta.Result{}, err
				}
				return a.log(ctx, op)
			})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	<-waits
	if res, err := a.log(t.Context(), first); err != nil || res.Errno != 0 {
		t.Fatal(res, err)
	}
	if res := b.do(&meta.Unlink{Parent: dir, Name: "f"}); res.Removed != f.Ino {
		t.Fatalf("unlink: %+v", res)
	}
	a.unsure(-1)
	close(known)
	if res := <-done; !res.Orphan {
		t.Errorf("published: %+v", res)
	}
	if _, err := a.View().Lookup(dir, "f", a.self()); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("it is there again: %v", err)
	}
}

// The same of a reservation whose outcome its proposer does not learn.
func TestReservationAndRemovalInOneBatch(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	f := a.create(dir, "f")
	together := func(ctx context.Context, op meta.Op) (meta.Result, error) {
		if _, ok := op.(*meta.Reserve); !ok {
			return a.log(ctx, op)
		}
		w.apply(a, func() meta.Result {
			w.c.ProposeAs(a.self(), op)
			return w.c.ProposeAs(a.self(), &meta.Unlink{Parent: dir, Name: "f"})
		}, op)
		return meta.Result{}, errors.New("unknown")
	}
	rename := &meta.Rename{OldParent: dir, OldName: "f", NewParent: dir, NewName: "g"}
	if _, err := a.Propose(t.Context(), rename, together); err == nil {
		t.Fatal("the file was reserved, and nobody knows")
	}
	if _, err := a.View().Lookup(dir, "f", a.self()); !errors.Is(err, meta.ErrNotFound) || a.Pending() != 0 {
		t.Errorf("it is still here: %v, %d pending", err, a.Pending())
	}
	if again := a.publish(f.Ino); !again.Orphan {
		t.Errorf("its next publish brings it back: %+v", again)
	}
}

// slowly is a log that says when an operation of the type of like has come, and holds it back.
func (n *testNode) slowly(like meta.Op) (log Log, came <-chan struct{}, goOn func()) {
	at, on := make(chan struct{}), make(chan struct{})
	return func(ctx context.Context, op meta.Op) (meta.Result, error) {
		if fmt.Sprintf("%T", op) == fmt.Sprintf("%T", like) {
			close(at)
			<-on
		}
		return n.log(ctx, op)
	}, at, func() { close(on) }
}

// A file that is made while an operation on its name is on its way to the log is not pending: the log decides which of
// the two has the name.
func TestFileBesideAnOperationOnItsName(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	mkdir := &meta.Create{Parent: dir, Name: "f", Kind: meta.KindDir, Excl: true}
	slow, came, goOn := a.slowly(mkdir)
	made := make(chan meta.Result)
	go func() {
		res, err := a.Propose(t.Context(), mkdir, slow)
		if err != nil {
			t.Error(err)
		}
		made <- res
	}()
	<-came
	file := a.create(dir, "f")
	if a.Pending() != 0 {
		t.Error("the file is pending")
	}
	goOn()
	if res := <-made; file.Errno != 0 || res.Errno != syscall.EEXIST {
		t.Errorf("the file: %v; the directory of the same name, which the log had later: %v", file.Errno, res.Errno)
	}
}

// What comes while a file is being reserved waits for that: an unlink is not undone, a publish makes no second name.
func TestOperationsBesideAReservation(t *testing.T) {
	for _, what := range []string{"unlink", "publish"} {
		w := newWorld(t, 2)
		a := w.nodes[0]
		dir := a.held("d")
		f := a.create(dir, "f")
		log, reserving, goOn := a.slowly(&meta.Reserve{})
		renamed := make(chan meta.Result)
		go func() {
			res, _ := a.Propose(t.Context(), &meta.Rename{OldParent: dir, OldName: "f", NewParent: dir, NewName: "g"}, log)
			renamed <- res
		}()
		<-reserving
		other := make(chan meta.Result)
		go func() {
			if what == "unlink" {
				other <- a.do(&meta.Unlink{Parent: dir, Name: "f"})
			} else {
				other <- a.publish(f.Ino)
			}
		}()
		select {
		case res := <-other:
			t.Fatalf("%s does not wait: %+v", what, res)
		case <-time.After(20 * time.Millisecond):
		}
		goOn()
		ren, res := <-renamed, <-other
		if what == "publish" && (ren.Errno != 0 || res.Errno != 0 || res.Orphan) {
			t.Errorf("rename %v, publish %+v", ren.Errno, res)
		}
		if what == "unlink" && (ren.Errno == 0) == (res.Errno == 0) {
			t.Errorf("rename %v, unlink %v", ren.Errno, res.Errno)
		}
		for _, of := range []string{"f", "g"} {
			rec, err := a.View().Lookup(dir, of, a.self())
			if there := err == nil; there != (of == "g" && ren.Errno == 0) || there && rec.Ino != f.Ino {
				t.Errorf("%s: after rename %v, %s is %+v, %v", what, ren.Errno, of, rec, err)
			}
		}
	}
}

// Nothing is answered here while an earlier outcome is unknown: it would overtake it.
func TestUnknownOutcomesComeFirst(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	f := a.create(dir, "f")
	creates, unlinks := w.count(&meta.Create{}), w.count(&meta.Unlink{})
	a.unsure(1)
	if _, err := a.Propose(t.Context(), &meta.Unlink{Parent: dir, Name: "f"}, a.log); err == nil {
		t.Error("an unlink did not wait")
	}
	a.create(dir, "g")
	if w.count(&meta.Create{}) == creates {
		t.Error("a create was answered here")
	}
	a.unsure(-1)
	if res := a.do(&meta.Unlink{Parent: dir, Name: "f"}); res.Removed != f.Ino || w.count(&meta.Unlink{}) != unlinks {
		t.Errorf("afterwards: %+v", res)
	}
}

// A file that the log refuses to reserve has lost its name: no program removed it.
func TestRefusedReservationIsALoss(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	f := a.create(dir, "f")
	mkdir := &meta.Create{Parent: dir, Name: "f", Kind: meta.KindDir}
	if res, err := a.log(t.Context(), mkdir); err != nil || res.Errno != 0 {
		t.Fatal(res, err)
	}
	w.nodes[1].create(dir, "other") // recalls
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.ContainsFunc(a.shown, func(e meta.Event) bool {
		return e.Kind == meta.EventRemoved && e.Ino == f.Ino && e.Lost
	}) {
		t.Error("the mounts do not hear that it lost its name")
	}
}

// The first publish brings what the file got when it was made, and then its attributes.
func TestFirstPublishKeepsModeAndPolicy(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	policy := func(p *meta.Policy) {
		if res, err := a.log(t.Context(), &meta.SetPolicy{Dir: dir, Policy: p}); err != nil || res.Errno != 0 {
			t.Fatal(res, err)
		}
	}
	policy(&meta.Policy{Placement: meta.PlaceCopies, Copies: 1})
	f := a.do(&meta.Create{Parent: dir, Name: "f", Kind: meta.KindFile, Mode: 0o6777, Cred: meta.Cred{UID: 5}})
	policy(&meta.Policy{Placement: meta.PlaceCopies, Copies: 2})
	w.order.Lock()
	id := w.c.Session(1)
	w.order.Unlock()
	chown := meta.AttrPatch{Mask: meta.AttrKillPriv | meta.AttrUID, UID: 9}
	res := a.do(&meta.Publish{Ino: f.Ino, Session: id, Attr: chown})
	if res.Errno != 0 || res.Inode.Mode != 0o777 || res.Inode.UID != 9 || res.Inode.Policy != f.Inode.Policy {
		t.Errorf("published: %+v, made as %+v", res, f.Inode)
	}
}

// A reservation of an ended incarnation takes no name from the next one.
func TestReservationEndsWithItsIncarnation(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	f := a.create(dir, "f")
	fenced := func(ctx context.Context, op meta.Op) (meta.Result, error) {
		if _, is := op.(*meta.Reserve); is && a.self().Incarnation == f.Inode.Reserved.Incarnation {
			w.fence(a) // the proposer proposes again under the next incarnation
		}
		return a.log(ctx, op)
	}
	_, _ = a.Propose(t.Context(), &meta.SetAttr{Ino: f.Ino}, fenced)
	if res := a.create(dir, "f"); res.Errno != 0 {
		t.Errorf("its own reservation took the name: %v", res.Errno)
	}
}

// A directory that takes the place of the one that was looked up is recalled, too.
func TestAnotherDirectoryTakesThePlace(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	held := a.held("d")
	top := b.mkdir(meta.RootIno, "top")
	b.mkdir(top, "x")
	a.mkdir(held, "sub") // delegated, too
	tries := 0
	log := func(ctx context.Context, op meta.Op) (meta.Result, error) {
		if _, is := op.(*meta.Rmdir); is {
			if tries++; tries == 1 {
				a.do(&meta.Rename{OldParent: held, OldName: "sub", NewParent: top, NewName: "x"})
			}
		}
		return b.log(ctx, op)
	}
	res, err := b.Propose(t.Context(), &meta.Rmdir{Parent: top, Name: "x"}, log)
	if err != nil || res.Errno != 0 || tries > 10 {
		t.Errorf("%v, %v, tried %d times", res.Errno, err, tries)
	}
}

// The first recall of a tree returns what its holder does not use.
func TestIdleDirectoriesAreReturnedTogether(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	top := a.held("d")
	for i := range 50 {
		a.mkdir(top, fmt.Sprint("sub", i))
	}
	b.create(top, "f")
	recalls := w.count(&meta.RecallNames{})
	for i := range 50 {
		if res := b.do(&meta.Rmdir{Parent: top, Name: fmt.Sprint("sub", i)}); res.Errno != 0 {
			t.Fatal(res.Errno)
		}
	}
	if n := w.count(&meta.RecallNames{}) - recalls; n > 1 {
		t.Errorf("%d recalls for 50 idle directories", n)
	}
}

// A node that stood still makes no name by itself, whatever it still knows.
func TestNodeThatStoodStillMakesNoNames(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	a.mu.Lock()
	a.still = true
	a.mu.Unlock()
	a.Holder.mu.Lock()
	a.trust.began = a.trust.began.Add(-freshFor)
	a.Holder.mu.Unlock()
	before := w.count(&meta.Create{})
	a.create(dir, "f")
	if w.count(&meta.Create{}) == before {
		t.Error("it made a name that another node may have made")
	}
}

// Programs of three nodes make, publish, rename and remove files of the same names, and nodes are fenced. At each
// moment each name was made by one of them.
func TestManyNodesMakeNames(t *testing.T) {
	for seed := range uint64(4) {
		manyNodes(t, seed)
	}
}

func manyNodes(t *testing.T, seed uint64) {
	w := newWorld(t, 3)
	for _, n := range w.nodes {
		n.askAgain = time.Millisecond
	}
	dirs := []meta.Ino{w.nodes[0].mkdir(meta.RootIno, "a"), w.nodes[0].mkdir(meta.RootIno, "b")}
	var mu sync.Mutex
	owner := map[name]meta.Ino{}
	claim := func(at name, ino meta.Ino) {
		mu.Lock()
		defer mu.Unlock()
		if have := owner[at]; have != 0 {
			t.Errorf("seed %d: %v was made as %d while it was %d", seed, at, ino, have)
		}
		owner[at] = ino
	}
	// release takes a name from the model before it is removed, if nobody else does that.
	release := func(at name, ino meta.Ino) bool {
		mu.Lock()
		defer mu.Unlock()
		if owner[at] != ino {
			return false
		}
		delete(owner, at)
		return true
	}
	var standing [3]sync.RWMutex // held while a node is fenced
	var work sync.WaitGroup
	for i, n := range w.nodes {
		for k := range 3 {
			r := rand.New(rand.NewPCG(seed, uint64(10*i+k)))
			work.Go(func() {
				for range 150 {
					standing[i].RLock()
					at := name{dirs[r.IntN(10)/9], fmt.Sprint(i*r.IntN(2), "f", r.IntN(8))}
					res := n.create(at.dir, at.name)
					if res.Errno == 0 {
						claim(at, res.Ino)
						n.use(r, at, res.Ino, claim, release)
					} else if res.Errno != syscall.EEXIST {
						t.Errorf("seed %d: create: %v", seed, res.Errno)
					}
					standing[i].RUnlock()
				}
			})
		}
	}
	work.Go(func() {
		r := rand.New(rand.NewPCG(seed, 99))
		for range 10 {
			i := r.IntN(3)
			standing[i].Lock()
			w.fence(w.nodes[i])
			standing[i].Unlock()
			<-time.After(2 * time.Millisecond)
		}
	})
	work.Wait()
	t.Logf("seed %d: %v", seed, w.ops)
}

// use publishes a new file, mostly, and removes or renames it in the end.
func (n *testNode) use(
	r *rand.Rand, at name, ino meta.Ino, claim func(name, meta.Ino), release func(name, meta.Ino) bool,
) {
	if r.IntN(5) > 0 {
		if pub := n.publish(ino); pub.Errno != 0 || pub.Orphan || pub.Ino != ino {
			n.w.t.Errorf("publish of %v: %+v", at, pub)
		}
		if rec, err := n.cfg.State.Lookup(at.dir, at.name, meta.Lease{}); err != nil || rec.Ino != ino {
			n.w.t.Errorf("%v is published as %d, and shown as %d: %v", at, ino, rec.Ino, err)
		}
	}
	if r.IntN(4) == 0 {
		to := name{at.dir, fmt.Sprint("to", ino)}
		if !release(at, ino) {
			return
		}
		res := n.do(&meta.Rename{OldParent: at.dir, OldName: at.name, NewParent: to.dir, NewName: to.name, Flags: 1})
		if res.Errno != 0 {
			n.w.t.Errorf("rename of %v: %v", at, res.Errno)
		}
		at = to
		claim(at, ino)
	}
	if release(at, ino) {
		if res := n.do(&meta.Unlink{Parent: at.dir, Name: at.name, Ino: ino}); res.Errno != 0 || res.Removed != ino {
			n.w.t.Errorf("unlink of %v: %+v", at, res)
		}
	}
}

// A snapshot takes no name from a file whose publish was refused: no program has removed it.
func TestSnapshotAfterARefusedPublish(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	f := a.create(dir, "f")
	id := w.c.Session(1)
	if res := a.do(&meta.Publish{Ino: f.Ino, Session: id, Size: 1}); res.Errno != syscall.EIO {
		t.Fatalf("published without a vote: %+v", res)
	}
	if res, err := a.log(t.Context(), &meta.Abort{Session: id}); err != nil || res.Errno != 0 {
		t.Fatal(res, err)
	}
	a.Restored()
	if rec, err := a.View().Lookup(dir, "f", a.self()); err != nil || rec.Ino != f.Ino {
		t.Errorf("it is gone: %v", err)
	}
	if pub := a.publish(f.Ino); pub.Orphan || pub.Errno != 0 {
		t.Errorf("its next publish: %+v", pub)
	}
}

// A removal of a pending file, which has its directory locked, waits neither long for an outcome that is not known nor
// for a publish that is not answered.
func TestRemovalDoesNotWaitLong(t *testing.T) {
	for _, what := range []string{"outcome", "publish"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			a := w.nodes[0]
			f := a.create(a.held("d"), "f")
			answer, published := make(chan struct{}), make(chan struct{})
			if what == "outcome" {
				a.unsure(1)
				a.cfg.Settle = func(ctx context.Context) error {
					select {
					case <-answer:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				close(published)
			} else {
				go func() {
					defer close(published)
					_, _ = a.Propose(t.Context(), &meta.Publish{Ino: f.Ino, Session: w.c.Session(1)},
						func(context.Context, meta.Op) (meta.Result, error) {
							<-answer
							return meta.Result{}, errors.New("unknown")
						})
				}()
				synctest.Wait()
			}
			late := time.AfterFunc(time.Minute, func() { close(answer) })
			began := time.Now()
			_, err := a.Propose(t.Context(), &meta.Unlink{Parent: f.Inode.Parent, Name: "f"}, a.log)
			if took := time.Since(began); err == nil || took > 10*time.Second {
				t.Errorf("%s: %v after %v", what, err, took)
			}
			if late.Stop() {
				close(answer)
			}
			<-published
		})
	}
}

// becomesUnknown makes an operation of a node end with an outcome that is not known: while the node looks whether there
// is one, just after it has looked, or otherwise a moment later. It returns when the operation is on its way.
func (n *testNode) becomesUnknown(op meta.Op) (ordered meta.Op, ended <-chan struct{}) {
	first, answer, over := make(chan meta.Op, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		_, _ = n.Propose(n.w.t.Context(), op, func(_ context.Context, op meta.Op) (meta.Result, error) {
			first <- op
			<-answer
			n.unsure(1)
			return meta.Result{}, errors.New("unknown")
		})
	}()
	ordered = <-first
	var once sync.Once
	n.cfg.Settled = func() bool {
		settled := n.isSettled()
		once.Do(func() {
			close(answer)
			select {
			case <-over:
			case <-time.After(50 * time.Millisecond): // it has to wait for this look
			}
		})
		return settled
	}
	time.AfterFunc(100*time.Millisecond, func() { once.Do(func() { close(answer) }) })
	return ordered, over
}

// settledLog orders nothing while an outcome is not known.
func (n *testNode) settledLog(ctx context.Context, op meta.Op) (meta.Result, error) {
	if !n.isSettled() {
		return meta.Result{}, errors.New("an earlier outcome is not known")
	}
	return n.log(ctx, op)
}

// A file that was removed does not come back by a publish whose outcome became unknown at that moment.
func TestRemovalBesideAPublishThatBecomesUnknown(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	f := a.create(dir, "f")
	publish, ended := a.becomesUnknown(&meta.Publish{Ino: f.Ino, Session: w.c.Session(1)})
	_, err := a.Propose(t.Context(), &meta.Unlink{Parent: dir, Name: "f"}, a.settledLog)
	<-ended
	if res, err := a.log(t.Context(), publish); err != nil || res.Errno != 0 {
		t.Fatal(res, err)
	}
	if _, there := a.View().Lookup(dir, "f", a.self()); err == nil && there == nil {
		t.Error("it was removed, and is there again")
	}
}

// A file is not made here beside a directory of its name whose outcome became unknown at that moment.
func TestFileBesideADirectoryThatBecomesUnknown(t *testing.T) {
	w := newWorld(t, 2)
	a := w.nodes[0]
	dir := a.held("d")
	_, ended := a.becomesUnknown(&meta.Create{Parent: dir, Name: "f", Kind: meta.KindDir, Excl: true})
	create := &meta.Create{Parent: dir, Name: "f", Kind: meta.KindFile, Excl: true}
	_, err := a.Propose(t.Context(), create, a.settledLog)
	<-ended
	if a.Pending() > 0 {
		t.Errorf("the file is pending: %v", err)
	}
}

// The birth time of a pending file is that which it has in the log, whether its publish or its reservation brings it.
func TestBirthTimeOfPendingFiles(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	dir := a.held("d")
	published, reserved := a.create(dir, "published"), a.create(dir, "reserved")
	a.publish(published.Ino)
	if res := a.do(&meta.Link{Ino: reserved.Ino, Parent: dir, Name: "link"}); res.Errno != syscall.EBUSY {
		t.Fatalf("a link of a file without a version: %v", res.Errno)
	}
	for _, was := range []meta.Result{published, reserved} {
		rec, err := b.cfg.State.Inode(was.Ino)
		if err != nil || rec.Btime == 0 || rec.Btime != was.Inode.Btime {
			t.Errorf("made at %d, in the log at %d: %v", was.Inode.Btime, rec.Btime, err)
		}
	}
}
