package fstest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// Cluster is the namespace and the nodes.
type Cluster struct {
	db    meta.StateMachine
	nodes []*Node

	mu     sync.Mutex // held while one entry is applied and shown
	index  uint64
	seq    map[meta.Lease]uint64
	unseen func()
}

// Node is one node; it is an fs.Cluster.
type Node struct {
	c     *Cluster
	id    meta.NodeID
	store *content.Store

	mount    atomic.Pointer[fs.Mount]
	more     []*fs.Mount // its other mounts; guarded by c.mu
	siblings fs.Siblings
	sessions atomic.Uint64
	cutOff   atomic.Bool

	// Proposals and Publishes count what the file system asked for.
	Proposals, Publishes atomic.Int64

	mu      sync.Mutex
	pushes  []replicate.Push
	before  func(ctx context.Context, p replicate.Push) error
	skip    int
	after   func()
	inode   meta.Ino
	slow    func(op meta.Op) <-chan struct{}
	late    func(op meta.Op) <-chan struct{}
	unknown func(op meta.Op) <-chan struct{}
	// unsettled are closed when what unknown chose is applied.
	unsettled []chan struct{}
	instant   bool
	readOnly  bool
	other     io.ReaderAt

	afterInode  func()
	afterXattrs func()
}

var _ fs.Cluster = (*Node)(nil)

// New makes a cluster of n nodes that ends with the test.
func New(tb testing.TB, n int) *Cluster { return NewWith(tb, n, content.Options{}) }

// NewWith is New with stores of some options.
func NewWith(tb testing.TB, n int, opt content.Options) *Cluster {
	tb.Helper()
	c := &Cluster{db: meta.OpenMemory(), seq: map[meta.Lease]uint64{}}
	for i := 1; i <= n; i++ {
		join := &meta.Join{Name: fmt.Sprintf("node%d", i), Addr: fmt.Sprintf("node%d:7400", i)}
		if i > 1 {
			binary.BigEndian.PutUint32(join.TokenHash[:], uint32(i))
			c.must(tb, 0, &meta.AddToken{Hash: join.TokenHash, Expires: 1 << 62, Replace: true})
		}
		id := c.must(tb, 0, join).Node
		boot := &meta.Boot{Node: id}
		boot.Store[0] = byte(i)
		c.must(tb, id, boot)
		store, err := content.Open(tb.TempDir(), opt)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := store.Close(); err != nil {
				tb.Errorf("close store of node %d: %v", id, err)
			}
		})
		n := &Node{c: c, id: id, store: store}
		tb.Cleanup(func() { n.siblings.Close() })
		c.nodes = append(c.nodes, n)
	}
	return c
}

// Node gives a node by its number, from 1.
func (c *Cluster) Node(i int) *Node { return c.nodes[i-1] }

func (c *Cluster) must(tb testing.TB, node meta.NodeID, op meta.Op) meta.Result {
	tb.Helper()
	res, err := c.apply(meta.Lease{Node: node}, op)
	if err != nil || res.Errno != 0 {
		tb.Fatalf("apply %T: %v %v", op, err, res.Errno)
	}
	return res
}

// apply puts one operation through the namespace and shows its events to all mounts.
func (c *Cluster) apply(l meta.Lease, op meta.Op) (meta.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applyLocked(l, op)
}

func (c *Cluster) applyLocked(l meta.Lease, op meta.Op) (meta.Result, error) {
	c.index++
	c.seq[l]++
	e := meta.Entry{
		Node: l.Node, Incarnation: l.Incarnation, Seq: c.seq[l], Acked: c.seq[l] - 1,
		Generation: meta.FirstGeneration, Op: op,
	}
	res, events, err := c.db.Apply(c.index, time.Now().UnixNano(), meta.EncodeEntry(e))
	if err != nil {
		return res, err
	}
	if _, ok := op.(*meta.Publish); ok && c.unseen != nil {
		c.unseen()
		c.unseen = nil
	}
	for _, n := range c.nodes {
		if m := n.mount.Load(); m != nil {
			m.Apply(events)
		}
		for _, m := range n.more {
			m.Apply(events)
		}
		n.siblings.Apply(events)
	}
	return res, nil
}

// Attach makes a mount that a test has made itself the one of a node, which sees what is applied.
func (c *Cluster) Attach(i int, m *fs.Mount) { c.Node(i).mount.Store(m) }

// Unseen makes a function run once, when the next publish is applied and no kernel has been notified of it. The
// function must change nothing.
func (c *Cluster) Unseen(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unseen = f
}

// Store is the node's content store.
func (n *Node) Store() *content.Store { return n.store }

// Before makes a function run before each publish, which it can delay or fail.
func (n *Node) Before(f func(ctx context.Context, p replicate.Push) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.before = f
}

// Elsewhere makes damaged bytes in contents of stores be read from another holder, as the replicator does.
func (n *Node) Elsewhere(r io.ReaderAt) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.other = r
}

// elsewhere returns what was passed to Elsewhere.
func (n *Node) elsewhere() io.ReaderAt {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.other
}

// Instant makes publishes take no time: bytes beyond the inline limit are read and thrown away.
func (n *Node) Instant() { n.instant = true }

// CutOff makes publishes, and Show, end without knowing which nodes show what was changed.
func (n *Node) CutOff(on bool) { n.cutOff.Store(on) }

var errNoLeader = errors.New("no leader")

// ReadOnly makes proposals fail as they do without a quorum.
func (n *Node) ReadOnly(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.readOnly = on
}

// Pushes are all pushes so far.
func (n *Node) Pushes() []replicate.Push {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]replicate.Push(nil), n.pushes...)
}

// Self is the node's lease.
func (n *Node) Self() meta.Lease {
	rec, err := n.c.db.Node(n.id)
	if err != nil {
		return meta.Lease{Node: n.id}
	}
	return meta.Lease{Node: n.id, Incarnation: rec.Incarnation}
}

// Names is the shared namespace.
func (n *Node) Names() meta.Reader { return names{n.c.db, n} }

// ProposePatient implements fs.Cluster.
func (n *Node) ProposePatient(ctx context.Context, op meta.Op) (meta.Result, error) {
	return n.Propose(ctx, op)
}

// Settle implements fs.Cluster: it waits for the proposals that Unknown chose.
func (n *Node) Settle(ctx context.Context) (waited bool, err error) {
	n.mu.Lock()
	late := n.unsettled
	n.mu.Unlock()
	for _, applied := range late {
		select {
		case <-applied:
		case <-ctx.Done():
			return true, fs.ErrReadOnly
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unsettled = slices.DeleteFunc(n.unsettled, func(c chan struct{}) bool { return slices.Contains(late, c) })
	return len(late) > 0, nil
}

// Confirm implements fs.Cluster.
func (n *Node) Confirm(_ context.Context, l meta.Lease) error {
	switch {
	case n.cutOff.Load():
		return errNoLeader
	case n.Self() != l:
		return fs.ErrFenced
	}
	return nil
}

// TakesChanges implements fs.Cluster.
func (n *Node) TakesChanges(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.cutOff.Load():
		return errNoLeader
	case n.readOnly:
		return fs.ErrReadOnly
	}
	return nil
}

// Propose applies an operation at once, or when Slow lets it. Like the log, it then applies the operation even if the
// caller has not waited.
func (n *Node) Propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	n.mu.Lock()
	readOnly, slow, unknown := n.readOnly, n.slow, n.unknown
	n.mu.Unlock()
	if readOnly {
		return meta.Result{}, fs.ErrReadOnly
	}
	n.Proposals.Add(1)
	if unknown != nil {
		if wait := unknown(op); wait != nil {
			return meta.Result{}, n.putLate(op, wait)
		}
	}
	var wait <-chan struct{}
	if slow != nil {
		wait = slow(op)
	}
	if wait == nil {
		return n.put(op)
	}
	type answer struct {
		res meta.Result
		err error
	}
	done := make(chan answer, 1)
	go func() { // ends when the test lets the operation go on
		<-wait
		res, err := n.put(op)
		done <- answer{res, err}
	}()
	select {
	case a := <-done:
		return a.res, a.err
	case <-ctx.Done():
		return meta.Result{}, fmt.Errorf("%w: %w", fs.ErrUnknown, ctx.Err())
	}
}

// put applies an operation under the present incarnation, and again if that has just ended.
func (n *Node) put(op meta.Op) (res meta.Result, err error) {
	for range 5 {
		if res, err = n.c.apply(n.Self(), op); err != nil || !res.Fenced {
			break
		}
	}
	n.mu.Lock()
	late := n.late
	n.mu.Unlock()
	if late != nil {
		if wait := late(op); wait != nil {
			<-wait
		}
	}
	return res, err
}

// putLate applies an operation when wait is closed, as the log may do after the caller got the answer that the outcome
// is unknown.
func (n *Node) putLate(op meta.Op, wait <-chan struct{}) error {
	outcome, applied := make(chan meta.Result, 1), make(chan struct{})
	n.mu.Lock()
	n.unsettled = append(n.unsettled, applied)
	n.mu.Unlock()
	go func() { // ends when the test lets the operation go on
		defer close(outcome)
		defer close(applied)
		<-wait
		if res, err := n.put(op); err == nil {
			outcome <- res
		}
	}()
	return &fs.UnknownError{Err: fs.ErrUnknown, Outcome: outcome}
}

// Unknown makes the outcome of proposals unknown that f gives a channel for. They are applied when it is closed.
func (n *Node) Unknown(f func(op meta.Op) <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unknown = f
}

// Late makes the answers to proposals that are applied wait for the channel that f gives for them, if it gives one.
func (n *Node) Late(f func(op meta.Op) <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.late = f
}

// Slow makes proposals wait for the channel that f gives for them, if it gives one.
func (n *Node) Slow(f func(op meta.Op) <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.slow = f
}

// Fence ends the node's incarnation, as when it was silent for too long, and begins another. Nothing is applied in
// between: a node proposes nothing until it has the next one.
func (c *Cluster) Fence(tb testing.TB, i int) {
	tb.Helper()
	self := c.Node(i).Self()
	boot := &meta.Boot{Node: self.Node, Nonce: uint64(self.Incarnation) + 1}
	boot.Store[0] = byte(i)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, op := range []meta.Op{&meta.Down{Node: self.Node, Incarnation: self.Incarnation, Reason: "silent"}, boot} {
		if res, err := c.applyLocked(meta.Lease{}, op); err != nil || res.Errno != 0 {
			tb.Errorf("fence node %d: %T: %v %v", i, op, err, res.Errno)
		}
	}
}

// Show has nothing to wait for: an operation is applied on all nodes when it returns. Nobody says so while the node is
// cut off.
func (n *Node) Show(context.Context, uint64, bool) (behind []meta.NodeID, err error) {
	if n.cutOff.Load() {
		return nil, errNoLeader
	}
	return nil, nil
}

// Publish stores the bytes and applies the publish with this node's vote.
func (n *Node) Publish(ctx context.Context, p replicate.Push) (replicate.Outcome, error) {
	n.Publishes.Add(1)
	n.mu.Lock()
	n.pushes = append(n.pushes, p)
	before := n.before
	n.mu.Unlock()
	if before != nil {
		if err := before(ctx, p); err != nil {
			return replicate.Outcome{}, err
		}
	}
	self := n.Self()
	op := &meta.Publish{
		Ino: p.Ino, Session: meta.ContentID{Node: self.Node, Incarnation: self.Incarnation, Seq: n.sessions.Add(1)},
		Base: p.Base, Size: p.Size, Attr: p.Attr, LinkParent: p.LinkParent, LinkName: p.LinkName, Btime: p.Btime,
		Hint: p.Path,
	}
	if p.Allowed != nil {
		if err := p.Allowed(); err != nil {
			return replicate.Outcome{}, err
		}
	}
	if err := n.fill(ctx, p, op); err != nil {
		return replicate.Outcome{}, err
	}
	if p.Taken != nil {
		p.Taken()
	}
	res, err := n.Propose(ctx, op)
	if err != nil {
		return replicate.Outcome{}, err
	}
	out := replicate.Outcome{Result: res}
	if n.cutOff.Load() {
		out.Unseen = errNoLeader
	}
	if p.Size > 0 {
		out.Content = op.Session
	}
	return out, nil
}

// fill brings the bytes to where the entry says they are.
func (n *Node) fill(ctx context.Context, p replicate.Push, op *meta.Publish) error {
	switch {
	case p.Size == 0:
		return nil
	case p.Size <= meta.MaxInline:
		op.Inline = make([]byte, p.Size)
		_, err := p.Source.ReadAt(op.Inline, 0)
		return ignoreEOF(err)
	}
	op.Votes = meta.Votes{View: n.c.db.View()}
	for _, member := range n.c.nodes {
		op.Votes.Add(member.id) // they read it from this node's store
	}
	if n.instant {
		return drain(p)
	}
	id := content.ID(op.Session.Bytes())
	shape, err := n.shape(p)
	if err != nil {
		return err
	}
	root, err := n.store.Put(ctx, id, shape, p.Source)
	if err != nil {
		return err
	}
	op.Root = root
	return n.store.Commit(id)
}

// OpenContent opens a content from the log or from the store of any node that has it.
func (n *Node) OpenContent(_ context.Context, id meta.ContentID) (replicate.ContentReader, error) {
	if b, err := n.c.db.InlineBytes(id); err == nil {
		return inline(b), nil
	}
	for _, holder := range append([]*Node{n}, n.c.nodes...) {
		r, err := holder.store.Open(content.ID(id.Bytes()))
		if err == nil {
			return reader{r, n}, nil
		}
		if !errors.Is(err, content.ErrNotFound) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("fstest: open content %s: %w", id, meta.ErrNotFound)
}

// Unlink removes a name as another node would.
func (n *Node) Unlink(tb testing.TB, parent meta.Ino, name string) {
	tb.Helper()
	res, err := n.Propose(tb.Context(), &meta.Unlink{Parent: parent, Name: name})
	if err != nil || res.Errno != 0 {
		tb.Fatalf("unlink %s: %v %v", name, err, res.Errno)
	}
}

// EIO fails every publish it is given to Before as.
func EIO(context.Context, replicate.Push) error { return syscall.EIO }
