package consensus

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// toyState is a state machine's content: every command once, in order.
type toyState struct {
	Index    uint64
	Time     int64
	Digest   uint64 // over all commands, in order
	Count    uint64
	Repeated uint64
	Results  map[string]uint64 // by command: its place
}

func (s *toyState) clone() *toyState {
	c := *s
	c.Results = make(map[string]uint64, len(s.Results))
	for k, v := range s.Results {
		c.Results[k] = v
	}
	return &c
}

// toy is the state machine of the tests: a command is answered with its place; a repeated one with the place it had.
type toy struct {
	mu     sync.Mutex
	now    *toyState
	synced *toyState
	fail   error
	bad    int // so many snapshots more bring a state that is wrong
	// applying, if not nil, is called before commands are applied.
	applying func(entries []Entry)
	// restoring, if not nil, is called before a snapshot takes the place of the state.
	restoring func(index uint64)

	digests map[uint64]uint64
}

func newToy() *toy {
	return &toy{now: &toyState{Results: map[string]uint64{}}, synced: &toyState{Results: map[string]uint64{}}}
}

func (m *toy) Apply(entries []Entry) ([]any, error) {
	m.mu.Lock()
	applying := m.applying
	m.mu.Unlock()
	if applying != nil {
		applying(entries)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return nil, m.fail
	}
	results := make([]any, len(entries))
	for i, e := range entries {
		if e.Index != m.now.Index+1 {
			return nil, fmt.Errorf("toy: entry %d after %d", e.Index, m.now.Index)
		}
		m.now.Index = e.Index
		if e.Data == nil {
			m.note()
			continue
		}
		if e.Time <= m.now.Time {
			return nil, fmt.Errorf("toy: time of entry %d goes back", e.Index)
		}
		m.now.Time = e.Time
		results[i] = m.now.command(string(e.Data))
		m.note()
	}
	return results, nil
}

func (m *toy) note() {
	if m.digests == nil {
		m.digests = map[uint64]uint64{}
	}
	m.digests[m.now.Index] = m.now.Digest
}

func (s *toyState) command(c string) uint64 {
	if place, ok := s.Results[c]; ok {
		s.Repeated++
		return place
	}
	s.Count++
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, s.Digest)
	_, _ = io.WriteString(h, c)
	s.Digest = h.Sum64()
	s.Results[c] = s.Count
	return s.Count
}

func (m *toy) Applied() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.Index
}

func (m *toy) Synced() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced.Index
}

// digestAt knows the digests of what was applied in this life.
func (m *toy) digestAt(index uint64) (d [16]byte, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum, ok := m.digests[index]
	if index == m.now.Index {
		sum, ok = m.now.Digest, true
	}
	binary.LittleEndian.PutUint64(d[:], sum)
	return d, ok
}

func (m *toy) isWrong() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if errors.Is(m.fail, ErrStateWrong) {
		return m.fail
	}
	return nil
}

func (m *toy) Sync() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.synced = m.now.clone()
	return nil
}

func (m *toy) Snapshot() (io.ReadCloser, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(m.now); err != nil {
		return nil, 0, err
	}
	return io.NopCloser(&b), m.now.Index, nil
}

func (m *toy) Restore(index, _ uint64, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s := &toyState{}
	if err := gob.NewDecoder(bytes.NewReader(b)).Decode(s); err != nil {
		return err
	}
	if s.Index != index {
		return fmt.Errorf("toy: snapshot at %d, told %d", s.Index, index)
	}
	if s.Results == nil {
		s.Results = map[string]uint64{}
	}
	if m.restoring != nil {
		m.restoring(index)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now, m.synced = s, s.clone()
	if m.bad--; m.bad < 0 {
		m.bad, m.fail = 0, nil
	}
	return nil
}

// crash returns the state machine as it is after a crash now: back to what was synced.
func (m *toy) crash() *toy {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &toy{now: m.synced.clone(), synced: m.synced.clone()}
}

func (m *toy) state() toyState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *m.now
}

// testNode is a node of a test cluster, running or not.
type testNode struct {
	id       ID
	cfg      Config
	sm       *toy
	disk     *simfs.Disk // nil: the real file system
	node     *Node
	listener *pipes
	accepted sync.WaitGroup
	unknown  map[ID]bool // peers that the layer above does not know, and lets in as members of raft only
}

// shown makes its node's applied entries visible at once, as a node without a mount does.
type shown struct {
	*toy
	node atomic.Pointer[Node]
}

func (m *shown) show(index uint64) {
	if n := m.node.Load(); n != nil {
		n.SetVisible(index)
	}
}

func (m *shown) Apply(entries []Entry) ([]any, error) {
	results, err := m.toy.Apply(entries)
	m.show(m.toy.Applied())
	return results, err
}

func (m *shown) Restore(index, term uint64, r io.Reader) error {
	err := m.toy.Restore(index, term, r)
	m.show(m.toy.Applied())
	return err
}

// cluster is some nodes in one process, and the network between them.
type cluster struct {
	t        testing.TB
	tune     Tuning
	real     bool // on the real file system
	dir      string
	auto     bool
	mu       sync.Mutex // protects all below
	nodes    map[ID]*testNode
	cut      map[[2]ID]bool
	conns    map[net.Conn][2]ID
	down     map[ID]bool // as the members callback tells
	since    map[ID]time.Time
	out      map[ID]bool          // evicted, as it tells
	wrong    map[ID]time.Duration // how far a node's clock is ahead
	replaced map[ID]ID            // by whom: it listens where that one did
}

func fastTuning() Tuning {
	return Tuning{Tick: 20 * time.Millisecond, LeaderLost: 15 * time.Second, PolicyInterval: 50 * time.Millisecond,
		SyncInterval: 50 * time.Millisecond, SegmentBytes: 256 << 10, StaleAfter: time.Second,
		ClockInterval: 100 * time.Millisecond}
}

func newCluster(t testing.TB, n int, adjust func(c *cluster)) *cluster {
	c := &cluster{t: t, tune: fastTuning(), auto: true, nodes: map[ID]*testNode{}, cut: map[[2]ID]bool{},
		conns: map[net.Conn][2]ID{},
		down:  map[ID]bool{}, since: map[ID]time.Time{}, out: map[ID]bool{}, wrong: map[ID]time.Duration{}}
	if adjust != nil {
		adjust(c)
	}
	if c.real {
		c.dir = t.TempDir()
	}
	t.Cleanup(c.close)
	for i := range n {
		c.add(ID(i+1), i == 0)
	}
	for id := range c.nodes {
		c.start(id)
	}
	return c
}

func (c *cluster) identity(id ID) Identity {
	return Identity{Cluster: [16]byte{7}, Node: [16]byte{byte(id)}, Store: [16]byte{1}, Generation: 1, ID: id}
}

func (c *cluster) add(id ID, first bool) *testNode {
	tn := &testNode{id: id, sm: newToy()}
	if !c.real {
		tn.disk = simfs.New()
	}
	var opts CreateOptions
	if first {
		opts.Voters = []ID{id}
	}
	c.mu.Lock()
	c.nodes[id] = tn
	c.mu.Unlock()
	if err := Create(c.config(tn), opts); err != nil {
		c.t.Fatal(err)
	}
	return tn
}

func (c *cluster) config(tn *testNode) Config {
	cfg := Config{Dir: "/raft", Identity: c.identity(tn.id), StateMachine: tn.sm, Tuning: c.tune,
		Dial: func(ctx context.Context, peer ID) (net.Conn, error) { return c.dial(ctx, tn.id, peer) }, Peers: func() []ID {
			return slices.DeleteFunc(c.ids(), func(id ID) bool { return tn.unknown[id] })
		},
		Members: c.members}
	if c.auto {
		cfg.StateMachine = &shown{toy: tn.sm}
	}
	cfg.LogTime = func() int64 { return tn.sm.state().Time }
	cfg.Wall = func() time.Time { return c.wall(tn.id) }
	sm := tn.sm
	cfg.Digest, cfg.Wrong = sm.digestAt, sm.isWrong
	if c.real {
		cfg.Dir = filepath.Join(c.dir, fmt.Sprint(tn.id))
	} else {
		cfg.FS = tn.disk
	}
	if os.Getenv("CONSENSUS_LOG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node",
			tn.id)
	}
	return cfg
}

// wall is what a node's clock shows.
func (c *cluster) wall(id ID) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.wrong[id])
}

// setWrong steps a node's clock.
func (c *cluster) setWrong(id ID, by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong[id] = by
}

func (c *cluster) ids() []ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []ID
	for id := range c.nodes {
		ids = append(ids, id)
	}
	return ids
}

func (c *cluster) members() []Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []Member
	for id := range c.nodes {
		if c.out[id] {
			continue
		}
		m := Member{ID: id, Up: !c.down[id]}
		if !m.Up {
			m.DownFor = time.Since(c.since[id])
		}
		list = append(list, m)
	}
	return list
}

// setDown is what the upper layer's log would say about a node.
func (c *cluster) setDown(id ID, down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down[id], c.since[id] = down, time.Now()
}

func (c *cluster) dial(ctx context.Context, from, to ID) (net.Conn, error) {
	c.mu.Lock()
	tn, cut := c.nodes[to], c.cut[[2]ID{from, to}]
	if now := c.replaced[to]; now != 0 {
		tn = c.nodes[now]
	}
	var listener *pipes
	if tn != nil {
		listener = tn.listener
	}
	c.mu.Unlock()
	if cut || tn == nil {
		return nil, fmt.Errorf("test: no way from %d to %d", from, to)
	}
	if listener == nil {
		return nil, syscall.ECONNREFUSED
	}
	conn, err := listener.dial(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(binary.LittleEndian.AppendUint64(nil, from)); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut[[2]ID{from, to}] {
		_ = conn.Close()
		return nil, fmt.Errorf("test: no way from %d to %d any more", from, to)
	}
	c.conns[conn] = [2]ID{from, to}
	return conn, nil
}

// start opens a node and accepts its connections.
func (c *cluster) start(id ID) {
	c.t.Helper()
	if err := c.tryStart(id); err != nil {
		c.t.Fatalf("start node %d: %v", id, err)
	}
}

func (c *cluster) tryStart(id ID) error {
	tn := c.nodes[id]
	cfg := c.config(tn)
	node, err := Open(cfg)
	if err != nil {
		return err
	}
	if m, ok := cfg.StateMachine.(*shown); ok {
		m.node.Store(node)
		m.show(tn.sm.Applied())
	}
	l := newPipes()
	c.mu.Lock()
	tn.node, tn.listener = node, l
	c.mu.Unlock()
	tn.accepted.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			tn.accepted.Go(func() {
				var peer [8]byte
				if _, err := io.ReadFull(conn, peer[:]); err != nil {
					_ = conn.Close()
					return
				}
				authentic := func(id ID) bool {
					return id == binary.LittleEndian.Uint64(peer[:]) && (!tn.unknown[id] || node.MayBeInRaft(id))
				}
				if err := node.Serve(conn, authentic); err != nil {
					c.served(tn.id, err)
				}
			})
		}
	})
	return nil
}

// served judges the error a connection ended with: bytes must never be damaged here.
func (c *cluster) served(id ID, err error) {
	if errors.Is(err, errFrame) {
		c.t.Errorf("node %d: %v", id, err)
	}
}

// stop ends a node in good order.
func (c *cluster) stop(id ID) {
	tn := c.nodes[id]
	c.mu.Lock()
	node, l := tn.node, tn.listener
	tn.node, tn.listener = nil, nil
	c.mu.Unlock()
	if node == nil {
		return
	}
	_ = l.Close()
	if err := node.Close(); err != nil {
		c.t.Errorf("close node %d: %v", id, err)
	}
	tn.accepted.Wait()
}

// crash ends a node as a power loss would: unsynced state and log sectors are gone. It is cut off first, as what it
// syncs until it has ended is not on the disk that it gets back, and nobody may hear of that.
func (c *cluster) crash(id ID, intn func(int) int) {
	tn := c.nodes[id]
	c.isolate(id, true)
	defer c.isolate(id, false)
	sm := tn.sm.crash()
	var disk *simfs.Disk
	if tn.disk != nil {
		disk = tn.disk.PowerLoss(intn)
	}
	c.stop(id)
	tn.sm, tn.disk = sm, disk
}

// isolate cuts a node off, or connects it again.
func (c *cluster) isolate(id ID, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other := range c.nodes {
		c.cut[[2]ID{id, other}], c.cut[[2]ID{other, id}] = cut, cut
	}
	for conn, ends := range c.conns {
		if cut && (ends[0] == id || ends[1] == id) {
			_ = conn.Close()
			delete(c.conns, conn)
		}
	}
}

// setCut says whether one node can dial another; connections stay.
func (c *cluster) setCut(from, to ID, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[[2]ID{from, to}] = cut
}

// cutWay cuts the connections that one node dials to another.
func (c *cluster) cutWay(from, to ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	way := [2]ID{from, to}
	c.cut[way] = true
	for conn, ends := range c.conns {
		if ends == way {
			_ = conn.Close()
			delete(c.conns, conn)
		}
	}
}

func (c *cluster) close() {
	for id := range c.nodes {
		c.stop(id)
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not in %v: %s", limit, what)
		}
		<-tick.C
	}
}

// leader waits for a leader among the running nodes that a majority of the running ones agree on.
func (c *cluster) leader() ID {
	c.t.Helper()
	var leader ID
	eventually(c.t, 20*time.Second, "a leader", func() bool {
		for _, tn := range c.running() {
			if st := tn.node.Status(); st.Role == RoleLeader && st.Leader == tn.id {
				leader = tn.id
				return true
			}
		}
		return false
	})
	return leader
}

func (c *cluster) running() []*testNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*testNode
	for _, tn := range c.nodes {
		if tn.node != nil {
			list = append(list, tn)
		}
	}
	return list
}

// runningNode returns a node if it runs.
func (c *cluster) runningNode(id ID) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id].node
}

// waitVoters waits until a leader says there are so many voters, not in a joint configuration.
func (c *cluster) waitVoters(want int) ID {
	c.t.Helper()
	var leader ID
	eventually(c.t, 30*time.Second, fmt.Sprintf("%d voters", want), func() bool {
		leader = 0
		for _, tn := range c.running() {
			if st := tn.node.Status(); st.Role == RoleLeader {
				leader = tn.id
				return len(st.Voters) == want && !st.Joint
			}
		}
		return false
	})
	return leader
}

func (c *cluster) propose(id ID, command string) Proposed {
	c.t.Helper()
	return c.proposeWith(id, command, ProposeOptions{})
}

func (c *cluster) proposeWith(id ID, command string, o ProposeOptions) Proposed {
	c.t.Helper()
	p, err := c.nodes[id].node.Propose(context.Background(), []byte(command), o)
	if err != nil {
		c.t.Fatalf("propose %s on %d: %v", command, id, err)
	}
	return p
}

// converge waits until all running nodes have applied the same, and compares them.
func (c *cluster) converge() {
	c.t.Helper()
	eventually(c.t, 30*time.Second, "all nodes at one index", func() bool {
		var index uint64
		for i, tn := range c.running() {
			st := tn.sm.state()
			if i == 0 {
				index = st.Index
			}
			if st.Index != index {
				return false
			}
		}
		return true
	})
	var first *toyState
	for _, tn := range c.running() {
		st := tn.sm.state()
		if err := tn.node.Err(); err != nil {
			c.t.Fatalf("node %d stopped: %v", tn.id, err)
		}
		if first == nil {
			first = &st
			continue
		}
		if st.Index == first.Index && (st.Digest != first.Digest || st.Count != first.Count) {
			c.t.Fatalf("node %d: state differs: %d commands %x, other %d %x", tn.id, st.Count, st.Digest, first.Count,
				first.Digest)
		}
	}
}

// inside is what a node knows, with what its Status does not say.
type inside struct {
	Status
	LogFirst  uint64 // first index that is still in the log for followers
	Visible   uint64
	Learners  []ID
	Following ID // the voter that an observer follows, 0 if none
}

func (n *Node) inside() inside {
	st := n.Status()
	n.feed.mu.Lock()
	first := n.feed.base.Index + 1
	n.feed.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	in := inside{Status: st, LogFirst: first, Visible: n.state.visible, Learners: slices.Clone(n.state.conf.GetLearners())}
	if n.state.follower != nil {
		in.Following = n.state.follower.peer
	}
	return in
}

// barrierOf is Barrier for some nodes, within a time, and of an entry that was announced: the protocol has it, and no
// caller.
func barrierOf(n *Node, index uint64, timeout time.Duration, nodes ...ID) ([]ID, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout+time.Second)
	defer cancel()
	ask := barrierCall{index: index, timeoutMs: uint64(timeout.Milliseconds()), flags: barrierAnnounced, nodes: nodes}
	body, err := n.askLeader(ctx, callBarrier, appendBody(nil, &ask), false)
	if err != nil {
		return nil, err
	}
	return decode[idList](body)
}

// proposeVisible proposes a command and waits until all nodes show it, or those given; behind lists the nodes that do
// not show it in time.
func proposeVisible(n *Node, command string, timeout time.Duration, nodes ...ID) (p Proposed, behind []ID, err error) {
	opts := ProposeOptions{Announce: true, Announced: true}
	if p, err = n.Propose(context.Background(), []byte(command), opts); err != nil {
		return p, nil, err
	}
	if len(nodes) > 0 {
		behind, err = barrierOf(n, p.Index, timeout, nodes...)
	} else {
		if n.tune.BarrierTimeout != timeout { // others may read it
			n.tune.BarrierTimeout = timeout
		}
		behind, err = n.Barrier(context.Background(), p.Index, opts)
	}
	return p, behind, err
}
