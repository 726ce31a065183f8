// Package metatest drives a namespace without a log or a network, for the tests of packages that need one.
//
//	c := metatest.New(t, 3)                       // three nodes, joined and up
//	res := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile, Mode: 0o644})
//	c.Inline(1, res.Ino, []byte("bytes"))         // publishes a small version
package metatest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// Cluster is one state machine with the proposers of several nodes. Its methods may be called concurrently.
type Cluster struct {
	tb testing.TB
	// DB is the state, as any of the nodes sees it.
	DB meta.StateMachine

	mu     sync.Mutex
	index  uint64
	now    int64
	seq    map[meta.Lease]uint64
	events []meta.Event
}

// New makes a cluster of n booted nodes over a database in memory.
func New(tb testing.TB, n int) *Cluster {
	tb.Helper()
	return Over(tb, meta.OpenMemory(), n)
}

// Over makes a cluster of n booted nodes over an empty database. There is no raft, so none of them votes until the test
// says with a SetVoters which do.
func Over(tb testing.TB, db meta.StateMachine, n int) *Cluster {
	tb.Helper()
	if db.Index() != 0 {
		tb.Fatalf("metatest: the database is at entry %d, and Over begins at 1: use Resume", db.Index())
	}
	c := newCluster(tb, db)
	for i := 1; i <= n; i++ {
		c.Join(fmt.Sprintf("node%d", i))
		c.Boot(meta.NodeID(i))
	}
	c.must(c.apply(meta.Entry{Op: &meta.SetVoters{}}))
	c.Events()
	return c
}

// Resume is a cluster over a database that another one filled with n nodes: each boots again, a day later.
func Resume(tb testing.TB, db meta.StateMachine, n int) *Cluster {
	tb.Helper()
	c := newCluster(tb, db)
	c.index = db.Index()
	c.Advance(24 * time.Hour.Nanoseconds())
	for i := 1; i <= n; i++ {
		c.Boot(meta.NodeID(i))
	}
	c.Events()
	return c
}

func newCluster(tb testing.TB, db meta.StateMachine) *Cluster {
	tb.Cleanup(func() { Consistent(tb, db) })
	return &Cluster{tb: tb, DB: db, now: 1_700_000_000_000_000_000, seq: map[meta.Lease]uint64{}}
}

// Consistent fails a test whose state does not fit together. A cluster ends with it. A state that was closed, or that a
// test has damaged and that nobody reads any more, is not looked at.
func Consistent(tb testing.TB, state meta.StateMachine) {
	tb.Helper()
	db, is := state.(*meta.DB)
	if !is || db.Distrusted() != nil {
		return
	}
	_, err := meta.Checks{DB: db}.Run(context.Background(), func(f meta.Fault) error {
		tb.Errorf("the state does not fit together: %+v", f)
		return nil
	}, func(uint64) {})
	if err != nil && !errors.Is(err, meta.ErrClosed) {
		tb.Errorf("check the state: %v", err)
	}
}

// Join adds a node of a name and returns its number.
func (c *Cluster) Join(name string) meta.NodeID {
	c.tb.Helper()
	return c.JoinWith(name, nil)
}

// JoinWith is Join with labels.
func (c *Cluster) JoinWith(name string, labels map[string]string) meta.NodeID {
	c.tb.Helper()
	join := &meta.Join{Name: name, Addr: name + ":7400", Labels: labels}
	if nodes, _ := c.DB.Nodes(); len(nodes) > 0 {
		copy(join.TokenHash[:], "token of "+name)
		c.must(c.apply(meta.Entry{Op: &meta.AddToken{Hash: join.TokenHash, Expires: 1 << 62, Replace: true}}))
	}
	return c.must(c.apply(meta.Entry{Op: join})).Node
}

// Boot begins a new incarnation of a node and returns its lease.
func (c *Cluster) Boot(n meta.NodeID) meta.Lease {
	c.tb.Helper()
	var store [16]byte
	binary.BigEndian.PutUint32(store[12:], uint32(n))
	res := c.must(c.apply(meta.Entry{Node: n, Op: &meta.Boot{Node: n, Store: store}}))
	return meta.Lease{Node: n, Incarnation: res.Incarnation}
}

// Lease is the present lease of a node.
func (c *Cluster) Lease(n meta.NodeID) meta.Lease {
	c.tb.Helper()
	node, err := c.DB.Node(n)
	if err != nil {
		c.tb.Fatalf("metatest: node %d: %v", n, err)
	}
	return meta.Lease{Node: n, Incarnation: node.Incarnation}
}

// Propose applies an operation of a node and returns its result, with whatever errno.
func (c *Cluster) Propose(n meta.NodeID, op meta.Op) meta.Result {
	c.tb.Helper()
	return c.ProposeAs(c.Lease(n), op)
}

// ProposeAs is Propose under a given, perhaps fenced, lease.
func (c *Cluster) ProposeAs(l meta.Lease, op meta.Op) meta.Result {
	c.tb.Helper()
	c.mu.Lock()
	c.seq[l]++
	seq := c.seq[l]
	c.mu.Unlock()
	return c.apply(meta.Entry{Node: l.Node, Incarnation: l.Incarnation, Seq: seq, Acked: seq - 1, Op: op})
}

// Do is Propose, and fails the test on an errno.
func (c *Cluster) Do(n meta.NodeID, op meta.Op) meta.Result {
	c.tb.Helper()
	return c.must(c.Propose(n, op))
}

// Session is a fresh content id of a node. It shares its numbers with nothing else.
func (c *Cluster) Session(n meta.NodeID) meta.ContentID {
	l := c.Lease(n)
	c.mu.Lock()
	defer c.mu.Unlock()
	key := meta.Lease{Node: n | 1<<31, Incarnation: l.Incarnation}
	c.seq[key]++
	return meta.ContentID{Node: n, Incarnation: l.Incarnation, Seq: c.seq[key]}
}

// Inline publishes bytes as the next version of a file, from its current one.
func (c *Cluster) Inline(n meta.NodeID, ino meta.Ino, data []byte) meta.Result {
	c.tb.Helper()
	i, err := c.DB.Inode(ino)
	if err != nil {
		c.tb.Fatalf("metatest: inode %d: %v", ino, err)
	}
	return c.Do(n, &meta.Publish{Ino: ino, Session: c.Session(n), Base: i.Content, Size: int64(len(data)), Inline: data})
}

// Advance moves the leader's clock.
func (c *Cluster) Advance(nanos int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += nanos
}

// Events takes the events since the last call.
func (c *Cluster) Events() []meta.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	events := c.events
	c.events = nil
	return events
}

func (c *Cluster) apply(e meta.Entry) meta.Result {
	c.tb.Helper()
	e.Generation = meta.FirstGeneration
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	c.now += 1000
	res, events, err := c.DB.Apply(c.index, c.now, meta.EncodeEntry(e))
	if err != nil {
		c.tb.Fatalf("metatest: apply %T at %d: %v", e.Op, c.index, err)
	}
	c.events = append(c.events, events...)
	return res
}

func (c *Cluster) must(res meta.Result) meta.Result {
	c.tb.Helper()
	if res.Errno != 0 {
		c.tb.Fatalf("metatest: entry %d: %v", res.Index, res.Errno)
	}
	return res
}
