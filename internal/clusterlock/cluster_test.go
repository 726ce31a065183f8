package clusterlock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
)

// testCluster is a log that all nodes of a test share. It decides at once; the nodes hear of it as they like.
type testCluster struct {
	t     testing.TB
	mu    sync.Mutex
	db    *meta.DB
	index uint64
	nodes []*testNode
}

// testNode is a node with its locks.
type testNode struct {
	c     *testCluster
	id    meta.NodeID
	locks *Locks
	seq   map[meta.Lease]uint64

	mu        sync.Mutex
	lease     meta.Lease
	cut       bool // the log can't be reached
	deaf      bool // what is applied comes later, as a snapshot
	delay     func() time.Duration
	proposals int
	published int
	booted    chan struct{}
}

func newTestCluster(t testing.TB, nodes int) *testCluster {
	c := &testCluster{t: t, db: meta.OpenMemory()}
	for i := range nodes {
		join := &meta.Join{Name: string(rune('a' + i))}
		if i > 0 {
			join.TokenHash = [32]byte{byte(i)}
			c.apply(meta.Entry{Op: &meta.AddToken{Hash: join.TokenHash, Expires: 1 << 60}})
		}
		id := c.apply(meta.Entry{Op: join}).Node
		n := &testNode{c: c, id: id, seq: map[meta.Lease]uint64{}, booted: make(chan struct{})}
		n.locks = New(n, func(file uint64) bool { return file >= 1<<60 })
		c.nodes = append(c.nodes, n)
		n.boot()
		t.Cleanup(n.locks.Close)
	}
	return c
}

func (c *testCluster) apply(e meta.Entry) meta.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applyLocked(e)
}

func (c *testCluster) applyLocked(e meta.Entry) meta.Result {
	c.index++
	e.Generation = meta.FirstGeneration
	res, events, err := c.db.Apply(c.index, int64(c.index), meta.EncodeEntry(e))
	if err != nil {
		c.t.Errorf("apply %T: %v", e.Op, err)
	}
	for _, n := range c.nodes {
		n.mu.Lock()
		deaf := n.deaf
		n.mu.Unlock()
		if !deaf {
			n.locks.Apply(events)
		}
	}
	return res
}

// boot begins an incarnation, which fences the one before.
func (n *testNode) boot() {
	n.mu.Lock()
	nonce := uint64(n.lease.Incarnation) + 1
	n.mu.Unlock()
	res := n.c.apply(meta.Entry{Op: &meta.Boot{Node: n.id, Store: [16]byte{byte(n.id)}, Nonce: nonce}})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lease = meta.Lease{Node: n.id, Incarnation: res.Incarnation}
	close(n.booted)
	n.booted = make(chan struct{})
}

// fence declares the node down.
func (n *testNode) fence() {
	l := n.Self()
	n.c.apply(meta.Entry{Op: &meta.Down{Node: l.Node, Incarnation: l.Incarnation}})
}

// hear takes in what was applied since the node was deaf, as a snapshot.
func (n *testNode) hear() {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	n.mu.Lock()
	n.deaf = false
	n.mu.Unlock()
	n.locks.Restored()
}

func (n *testNode) setDeaf() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deaf = true
}

func (n *testNode) setCut(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = on
}

func (n *testNode) Self() meta.Lease {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lease
}

func (n *testNode) FileLocks(ino meta.Ino) (meta.FileLocks, error) { return n.c.db.FileLocks(ino) }

func (n *testNode) Alive(l meta.Lease) bool {
	rec, err := n.c.db.Node(l.Node)
	return err == nil && rec.State == meta.NodeUp && rec.Incarnation == l.Incarnation
}

func (n *testNode) Publish(context.Context, meta.Ino) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.published++
}

var errCut = errors.New("the log can't be reached")

func (n *testNode) Propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	if n.delay != nil && !pause(ctx, nil, n.delay()) {
		return meta.Result{}, ctx.Err()
	}
	for {
		n.mu.Lock()
		lease, booted, cut := n.lease, n.booted, n.cut
		n.mu.Unlock()
		if cut {
			return meta.Result{}, errCut
		}
		n.c.mu.Lock()
		n.mu.Lock()
		n.proposals++
		n.seq[lease]++
		e := meta.Entry{Node: lease.Node, Incarnation: lease.Incarnation, Seq: n.seq[lease], Acked: n.seq[lease] - 1, Op: op}
		n.mu.Unlock()
		res := n.c.applyLocked(e)
		n.c.mu.Unlock()
		if !res.Fenced {
			if n.delay != nil && !pause(ctx, nil, n.delay()) {
				return meta.Result{}, ctx.Err()
			}
			return res, nil
		}
		select {
		case <-booted:
		case <-ctx.Done():
			return meta.Result{}, ctx.Err()
		case <-time.After(5 * time.Second):
			return meta.Result{}, errCut
		}
	}
}

func (n *testNode) Confirm(ctx context.Context, l meta.Lease) error {
	if n.delay != nil && !pause(ctx, nil, n.delay()) {
		return ctx.Err()
	}
	n.mu.Lock()
	cut := n.cut
	n.mu.Unlock()
	switch {
	case cut:
		return errCut
	case !n.Alive(l):
		return ErrEnded
	}
	return nil
}

func (n *testNode) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proposals
}

// take is a call by a program.
func (n *testNode) take(t *testing.T, ino uint64, l filelock.Lock, wait bool) filelock.Answer {
	t.Helper()
	a, err := n.locks.Take(t.Context(), nil, ino, l, wait)
	if err != nil {
		t.Errorf("node %d takes %+v: %v", n.id, l, err)
	}
	return a
}

func (n *testNode) unlock(t *testing.T, ino uint64, l filelock.Lock) {
	n.locks.Unlock(t.Context(), ino, l)
}

func record(owner uint64, mode filelock.Mode, first, end uint64) filelock.Lock {
	return filelock.Lock{Kind: filelock.Record, Mode: mode, First: first, End: end,
		Owner: filelock.Owner{Space: 1, ID: owner}, Handle: owner}
}

func flock(owner uint64, mode filelock.Mode) filelock.Lock {
	l := record(owner, mode, 0, 1<<63-1)
	l.Kind = filelock.Flock
	return l
}

// Wait returns when nothing is on its way to the log any more, or ctx ends.
func (t *Locks) Wait(ctx context.Context) error {
	for {
		t.mu.Lock()
		var busy chan struct{}
		for _, f := range t.files {
			if f.idle != nil {
				busy = f.idle
			}
		}
		t.mu.Unlock()
		if busy == nil {
			return nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
