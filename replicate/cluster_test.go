package replicate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errNoSuchNode = errors.New("no route to node")

// cluster is N nodes in one process: one shared log, calls by function, contents on disk.
type cluster struct {
	t      testing.TB
	dir    string
	hub    *groupHub
	labels func(id meta.NodeID) map[string]string // of nodes that join

	logMu   sync.Mutex // orders entries
	entries [][]byte
	times   []int64

	mu     sync.Mutex
	noWork bool // nobody leads catch-up
	nodes  map[meta.NodeID]*testNode
	calls  func(from, to meta.NodeID, kind Kind) error // fault injection; may be nil
}

// testNode is one node of a cluster, over its restarts.
type testNode struct {
	c   *cluster
	id  meta.NodeID
	dir string

	mu      sync.Mutex
	db      *meta.DB
	lease   meta.Lease
	seq     uint64
	up      bool
	store   *content.Store
	rep     *Replicator
	point   func(string)
	propose func(op meta.Op) error // fault injection; may be nil
	fault   func(string) error     // the same, for calls of the store by their names; may be nil
	tuning  Tuning
	groups  Groups
	full    bool  // the store takes nothing
	peers   Peers // nodePeers when nil
}

func testTuning() Tuning {
	return Tuning{
		Silent: 600 * time.Millisecond, Stalled: 500 * time.Millisecond, Stuck: 5 * time.Second,
		CatchUpEvery: 50 * time.Millisecond, DeleteAfter: time.Hour, KeepFenced: 3 * time.Second,
	}
}

// newCluster makes a cluster with n nodes up. The first voters of them vote.
func newCluster(t testing.TB, n, voters int) *cluster {
	t.Helper()
	return newClusterWith(t, n, voters, func(id meta.NodeID) map[string]string {
		return map[string]string{"rack": fmt.Sprint(id % 2)}
	})
}

// newClusterWith is newCluster with labels for the nodes.
func newClusterWith(t testing.TB, n, voters int, labels func(id meta.NodeID) map[string]string) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), nodes: make(map[meta.NodeID]*testNode), hub: newGroupHub(), labels: labels}
	t.Cleanup(c.close) // before the directory goes
	for i := 1; i <= n; i++ {
		c.join(meta.NodeID(i))
	}
	var list []meta.NodeID
	for i := 1; i <= voters; i++ {
		list = append(list, meta.NodeID(i))
	}
	c.must(1, &meta.SetVoters{Voters: list})
	return c
}

// join adds a node to the log and starts it.
func (c *cluster) join(id meta.NodeID) *testNode {
	c.t.Helper()
	n := &testNode{c: c, id: id, dir: filepath.Join(c.dir, fmt.Sprintf("store%d", id)), db: meta.OpenMemory(),
		tuning: testTuning()}
	n.groups = &hubEnd{hub: c.hub, node: id}
	c.logMu.Lock()
	for i, data := range c.entries {
		if _, _, err := n.db.Apply(uint64(i+1), c.times[i], data); err != nil {
			c.t.Fatal(err)
		}
	}
	c.mu.Lock()
	c.nodes[id] = n
	c.mu.Unlock()
	c.logMu.Unlock()
	join := &meta.Join{Name: fmt.Sprintf("n%d", id), Addr: fmt.Sprintf("10.0.0.%d:7400", id), Labels: c.labels(id)}
	proposer := id
	if id > 1 {
		join.TokenHash = [32]byte{byte(id)}
		proposer = 1
		c.must(1, &meta.AddToken{Hash: join.TokenHash, Expires: 1 << 62})
	}
	if res := c.must(proposer, join); res.Node != id {
		c.t.Fatalf("join gave number %d, not %d", res.Node, id)
	}
	n.start()
	return n
}

// must proposes directly, as an operator would.
func (c *cluster) must(node meta.NodeID, op meta.Op) meta.Result {
	c.t.Helper()
	res, err := c.node(node).append(op)
	if err != nil || res.Errno != 0 {
		c.t.Fatalf("%T: %v, errno %v", op, err, res.Errno)
	}
	return res
}

func (c *cluster) node(id meta.NodeID) *testNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id]
}

func (c *cluster) all() (out []*testNode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 1; i <= len(c.nodes); i++ {
		out = append(out, c.nodes[meta.NodeID(i)])
	}
	return out
}

func (c *cluster) close() {
	for _, n := range c.all() {
		n.stop()
		if err := n.db.Close(); err != nil {
			c.t.Error(err)
		}
	}
}

// append orders an operation and applies it on every node; nodes that are down apply it too, unseen.
func (n *testNode) append(op meta.Op) (meta.Result, error) {
	c := n.c
	c.logMu.Lock()
	defer c.logMu.Unlock()
	n.mu.Lock()
	n.seq++
	e := meta.Entry{Node: n.id, Incarnation: n.lease.Incarnation, Seq: n.seq, Acked: n.seq - 1,
		Generation: n.db.Generation(), Op: op}
	n.mu.Unlock()
	data := meta.EncodeEntry(e)
	c.entries = append(c.entries, data)
	c.times = append(c.times, int64(len(c.entries))*1000)
	var mine meta.Result
	for _, m := range c.all() {
		res, events, err := m.db.Apply(uint64(len(c.entries)), c.times[len(c.times)-1], data)
		if err != nil {
			return meta.Result{}, err
		}
		if m == n {
			mine = res
		}
		m.mu.Lock()
		rep, up := m.rep, m.up
		m.mu.Unlock()
		if up && rep != nil {
			rep.Applied(events)
		}
	}
	return mine, nil
}

// start boots the node: a new incarnation over the same store.
func (n *testNode) start() {
	n.c.t.Helper()
	opt := content.Options{}
	if n.full {
		opt.ReserveBytes = 1 << 60
	}
	store, err := content.Open(n.dir, opt)
	if err != nil {
		n.c.t.Fatal(err)
	}
	n.mu.Lock()
	n.seq, n.lease = 0, meta.Lease{Node: n.id}
	n.mu.Unlock()
	res, err := n.append(&meta.Boot{Node: n.id, Store: [16]byte{byte(n.id)}, Addr: "10.0.0.1:1", Nonce: rand.Uint64()})
	if err != nil || res.Errno != 0 {
		n.c.t.Fatalf("boot: %v, errno %v", err, res.Errno)
	}
	n.mu.Lock()
	n.lease = meta.Lease{Node: n.id, Incarnation: res.Incarnation}
	n.store = store
	n.up = true
	n.mu.Unlock()
	rep, err := New(n.config())
	if err != nil {
		n.c.t.Fatal(err)
	}
	n.mu.Lock()
	n.rep = rep
	n.mu.Unlock()
}

func (n *testNode) config() Config {
	level := slog.LevelError
	if os.Getenv("RDMCFS_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("node", n.id)
	var peers Peers = nodePeers{n}
	if n.peers != nil {
		peers = n.peers
	}
	return Config{
		Self: n.self, Names: n.db, Log: nodeLog{n}, Peers: peers, Groups: n.groups, Store: testStore{n.store, n},
		IsLeader: func() bool { return n.c.leads(n.id) }, Logger: logger, Tuning: n.tuning,
		Point: func(name string) {
			n.mu.Lock()
			f := n.point
			n.mu.Unlock()
			if f != nil {
				f(name)
			}
		},
	}
}

// testStore is a node's store, some of whose calls may fail.
type testStore struct {
	*content.Store
	n *testNode
}

func (s testStore) fails(call string) error {
	s.n.mu.Lock()
	fault := s.n.fault
	s.n.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(call)
}

func (s testStore) Merge(ctx context.Context, id content.ID) error {
	if err := s.fails("merge"); err != nil {
		return err
	}
	return s.Store.Merge(ctx, id)
}

func (s testStore) Commit(id content.ID) error {
	if err := s.fails("commit"); err != nil {
		return err
	}
	return s.Store.Commit(id)
}

func (s testStore) Mend(ctx context.Context, id content.ID, i int64, p []byte) error {
	if err := s.fails("mend"); err != nil {
		return err
	}
	return s.Store.Mend(ctx, id, i, p)
}

func (n *testNode) self() meta.Lease {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lease
}

func (n *testNode) isUp() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.up
}

// cut takes the node off the network and the log: what a kill -9 looks like to the others.
func (n *testNode) cut() {
	n.mu.Lock()
	n.up = false
	n.mu.Unlock()
	n.c.hub.cut(n.id)
}

// stop ends the node's process.
func (n *testNode) stop() {
	n.cut()
	n.mu.Lock()
	rep, store := n.rep, n.store
	n.rep, n.store = nil, nil
	n.mu.Unlock()
	if rep == nil {
		return
	}
	if err := rep.Close(); err != nil {
		n.c.t.Error(err)
	}
	if err := store.Close(); err != nil {
		n.c.t.Error(err)
	}
}

// declareDown is what the leader proposes when a lease ran out.
func (c *cluster) declareDown(id meta.NodeID) {
	c.t.Helper()
	rec, err := c.node(id).db.Node(id)
	if err != nil {
		c.t.Fatal(err)
	}
	c.must(c.leader(), &meta.Down{Node: id, Incarnation: rec.Incarnation, Reason: "test"})
}

// leader is the lowest node that is up.
func (c *cluster) leader() meta.NodeID {
	for _, n := range c.all() {
		if n != nil && n.isUp() {
			return n.id
		}
	}
	return 0
}

// setLeaderless stops the handing out of catch-up work; setLeader goes on with it.
func (c *cluster) setLeaderless() { c.setNoWork(true) }

func (c *cluster) setLeader() { c.setNoWork(false) }

func (c *cluster) setNoWork(v bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noWork = v
}

func (c *cluster) leads(id meta.NodeID) bool {
	c.mu.Lock()
	noWork := c.noWork
	c.mu.Unlock()
	return !noWork && c.leader() == id
}

// nodeLog is the Log of a node.
type nodeLog struct{ n *testNode }

func (l nodeLog) Propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	l.n.mu.Lock()
	up, hook := l.n.up, l.n.propose
	l.n.mu.Unlock()
	if !up {
		return meta.Result{}, errors.New("log: no quorum")
	}
	if hook != nil {
		if err := hook(op); err != nil {
			return meta.Result{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return meta.Result{}, err
	}
	return l.n.append(op)
}

func (l nodeLog) Barrier(ctx context.Context, index uint64) (behind []meta.NodeID, err error) {
	nodes, err := l.n.db.Nodes()
	for _, rec := range nodes {
		if rec.State == meta.NodeUp && !l.n.c.node(rec.ID).isUp() {
			behind = append(behind, rec.ID)
		}
	}
	return behind, err
}

// nodePeers is the Peers of a node: the other's Handle, called directly. As with internal/control no node can call
// itself.
type nodePeers struct{ n *testNode }

func (p nodePeers) Call(ctx context.Context, to meta.NodeID, kind Kind, payload []byte) ([]byte, error) {
	if !p.n.isUp() || to == p.n.id {
		return nil, errNoSuchNode
	}
	p.n.c.mu.Lock()
	hook := p.n.c.calls
	p.n.c.mu.Unlock()
	if hook != nil {
		hooked := make(chan error, 1)
		go func() { hooked <- hook(p.n.id, to, kind) }()
		select {
		case err := <-hooked:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	other := p.n.c.node(to)
	other.mu.Lock()
	rep, up := other.rep, other.up
	other.mu.Unlock()
	if !up || rep == nil {
		return nil, errNoSuchNode
	}
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	request := bytes.Clone(payload)
	go func() {
		b, err := rep.Handle(ctx, p.n.id, kind, request)
		done <- result{b, err}
	}()
	r := <-done
	if !other.isUp() { // its answer never left
		return nil, errNoSuchNode
	}
	return r.b, r.err
}

// setCalls installs a fault for calls.
func (c *cluster) setCalls(f func(from, to meta.NodeID, kind Kind) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = f
}

// create makes a file on a node.
func (c *cluster) create(node meta.NodeID, name string) meta.Ino {
	c.t.Helper()
	return c.must(node, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindFile, Mode: 0o644}).Inode.Ino
}

// neverComes is how long tests wait for what has no bound of its own; with many of them and the race detector, pushes
// may take half of it.
const neverComes = time.Minute

// publish pushes bytes as a new version of an inode.
func (n *testNode) publish(ino meta.Ino, base meta.ContentID, b []byte) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), neverComes)
	defer cancel()
	return n.rep.Publish(ctx, Push{
		Ino: ino, Path: "/f", Base: base, Size: int64(len(b)), Source: bytes.NewReader(b), Data: []Extent{{0, int64(len(b))}},
	})
}

// wantBytes checks that a node reads these bytes as the content.
func (n *testNode) wantBytes(id meta.ContentID, want []byte) {
	n.c.t.Helper()
	if err := n.checkBytes(id, want); err != nil {
		n.c.t.Errorf("node %d: %v", n.id, err)
	}
}

func (n *testNode) checkBytes(id meta.ContentID, want []byte) error {
	r, err := n.rep.OpenContent(context.Background(), id)
	if err != nil {
		return err
	}
	defer r.Close()
	got := make([]byte, r.Size())
	if _, err := r.ReadAt(got, 0); err != nil && err != io.EOF {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("content %v: %d bytes differ from the %d written", id, len(got), len(want))
	}
	return nil
}

// heldHere reports whether the store of a node has the content committed.
func (n *testNode) heldHere(id meta.ContentID) bool {
	n.mu.Lock()
	store := n.store
	n.mu.Unlock()
	if store == nil {
		return false
	}
	state, ok := store.State(storeID(id))
	return ok && state == content.Committed
}

// eventually waits for a condition; tests fail when it does not come.
func (c *cluster) eventually(what string, ok func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(neverComes)
	for !ok() {
		if time.Now().After(deadline) {
			c.t.Fatalf("never: %s", what)
		}
		timer := time.NewTimer(5 * time.Millisecond)
		<-timer.C
	}
}

// settled waits until every up node in the placement of a content has it committed and nothing is owed.
func (c *cluster) settled() {
	c.t.Helper()
	c.eventually("nothing owed", func() bool {
		for _, n := range c.all() {
			if !n.isUp() {
				continue
			}
			if count, _, err := n.db.OwedCount(n.id); err != nil || count > 0 {
				return false
			}
		}
		return true
	})
}

func randomBytes(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 7))
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		v := r.Uint64()
		for k := range 8 {
			b[i+k] = byte(v >> (8 * k))
		}
	}
	return b
}

func (n *testNode) replicator() *Replicator {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rep
}

// damage flips a byte in the data file of a content.
func damage(t *testing.T, dir string, id meta.ContentID) {
	t.Helper()
	flip(t, dir, id.String()+".data", 1<<20+5)
}

// damageSidecar flips a byte in the sidecar of a content.
func damageSidecar(t *testing.T, dir string, id meta.ContentID) {
	t.Helper()
	flip(t, dir, id.String()+".meta", 40)
}

func flip(t *testing.T, dir, name string, off int64) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "held", "*", name))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", name, found, err)
	}
	f, err := os.OpenFile(found[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x55
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}
