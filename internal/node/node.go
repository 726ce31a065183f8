package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/control/rings"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/newnames"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/rdma/mixed"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/replicate"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// Config says how to run the node of a data directory.
type Config struct {
	DataDir string
	Version string
	// Mounts are made as soon as the state is here, before the node counts as ready.
	Mounts []admin.MountRequest
	Fabric Fabric
	HTTP   HTTP
	Log    *slog.Logger
	// CrashAt names a labelled point (docs/TESTING.md) at which the process kills itself, as NAME, NAME:COUNT or
	// CrashByFile; for tests.
	CrashAt string
	Host    Host
}

const (
	// contentReserveBytes stay free on the disk for the state database and the log.
	contentReserveBytes = 512 << 20
	// bootRetry is the pause between attempts to be let in.
	bootRetry = 200 * time.Millisecond
	// heapBytes is where the garbage collector begins to work harder, so that a node stays well below 512 MiB. Block
	// buffers are not in the heap.
	heapBytes = 320 << 20
	// closeTimeout bounds the wait for mounts at the end.
	closeTimeout = 20 * time.Second
	// leaveTimeout bounds how long an evicted leader tries to make another node lead. Without that the others elect
	// one.
	leaveTimeout = 2 * time.Second
)

// node is a running node. Parts are opened by open in the order of the fields, and closed in reverse.
type node struct {
	cfg     Config
	dir     dataDir
	id      identity
	log     *slog.Logger
	started time.Time
	crash   crasher

	ctx    context.Context // ends when the node is to end
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	closer closer

	http     *httpPort
	creds    *credentials.Identity
	signing  *signing
	db       *meta.DB
	store    *content.Store
	staging  *staging
	members  *members
	raft     lateRaft
	proposer *proposer
	newNames *newnames.Holder
	tcp      *tcp.Device // one of the members of device
	device   *mixed.Device
	rings    *rings.Fabric // over the RDMA device, if there is one
	memory   *rdmc.Memory  // what transfers register together
	peers    *control.Peers
	server   *control.Server
	groups   *liveGroups
	repl     *replicate.Replicator
	machine  *machine
	digests  *digests
	port     *control.Port
	mounts   *mounts

	rebuilding atomic.Pointer[rebuilding] // the state was damaged: at the start, or since
	verdicts   sync.Mutex                 // held to distrust a state, and to note that another is in its place
	keptPeers  map[meta.NodeID]peerAddr   // as in the peers file; the applying goroutine's

	addressTold time.Time // when this node's address was last sent to the others

	ready        atomic.Bool
	putOut       atomic.Bool           // a peer says that this node was evicted
	failure      atomic.Pointer[error] // why the node ends by itself
	watched      watchers
	damage       damage
	drains       drainLooks
	gone         lostLooks
	policed      unmetLook
	removedBytes removedLook
}

// closer runs what was deferred, last first.
type closer struct{ steps []func() error }

func (c *closer) add(f func() error) { c.steps = append(c.steps, f) }

func (c *closer) Close() error {
	var errs error
	for i := len(c.steps) - 1; i >= 0; i-- {
		errs = errors.Join(errs, c.steps[i]())
	}
	c.steps = nil
	return errs
}

// lateRaft is the consensus for parts that are made before it. It is set once, before anyone proposes.
type lateRaft struct {
	node atomic.Pointer[consensus.Node]
}

func (l *lateRaft) get() (*consensus.Node, error) {
	if n := l.node.Load(); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("node: still starting: %w", consensus.ErrNoQuorum)
}

// Propose implements raftLog.
func (l *lateRaft) Propose(
	ctx context.Context, data []byte, opts consensus.ProposeOptions,
) (consensus.Proposed, error) {
	n, err := l.get()
	if err != nil {
		return consensus.Proposed{}, err
	}
	return n.Propose(ctx, data, opts)
}

func (l *lateRaft) status() consensus.Status {
	if n := l.node.Load(); n != nil {
		return n.Status()
	}
	return consensus.Status{NoQuorum: true}
}

// Run runs the node until ctx ends, then unmounts, closes everything and returns nil.
func Run(ctx context.Context, cfg Config) error {
	n := &node{cfg: cfg, dir: dataDir(cfg.DataDir), log: cfg.Log, started: time.Now()}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.crash.at, n.crash.file, n.crash.log, n.crash.passed = cfg.CrashAt, n.dir.path(crashFile), n.log, cfg.Host.Passed
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heapBytes)
	}
	n.ctx, n.cancel = context.WithCancel(ctx)
	err := n.open()
	served := err == nil
	if served {
		err = n.serve()
	}
	n.cancel()
	n.tasks.Wait()
	if served {
		n.sayGoodbye()
	}
	return errors.Join(err, n.closer.Close())
}

// serve lives until the node is to end.
func (n *node) serve() error {
	raft, err := n.raft.get()
	if err != nil {
		return err
	}
	n.ready.Store(true)
	n.log.Info("node runs", "node", n.id.Node, "name", n.id.Name, "listen", n.id.Listen)
	select {
	case <-n.ctx.Done():
		if why := n.failure.Load(); why != nil {
			err = *why
		}
	case <-raft.Done():
		err = fmt.Errorf("node: the log stopped: %w", raft.Err())
	}
	n.log.Info("node ends")
	n.ready.Store(false)
	leaveLog(raft, errors.Is(err, ErrEvicted))
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(err, n.mounts.closeAll(ctx))
}

// leaveLog makes another node lead: the leader's duties have ended here. An evicted node leaves the log, for others
// refuse its connections, and a voter that does would get no entries from it. Any other node stays in it: what programs
// close until the mounts have ended is published.
func leaveLog(raft *consensus.Node, evicted bool) {
	if !evicted {
		raft.Resign()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	raft.Leave(ctx)
}

// open opens everything in order. What was opened is closed by the caller, also after an error.
func (n *node) open() error {
	for _, step := range []func() error{
		n.openDirectory, n.openStores, n.openFabric, n.rebuild, n.openReplication, n.openLog, n.openPort, n.openAdmin,
		n.awaitRebuilt, n.enter, n.startWork, n.firstMounts,
	} {
		if err := n.ctx.Err(); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) openDirectory() error {
	if err := n.cfg.Host.local(n.dir); err != nil {
		return err
	}
	id, err := n.dir.load()
	if err != nil {
		return err
	}
	n.id = id
	lock, err := n.dir.lock()
	if err != nil {
		return err
	}
	n.closer.add(lock.Close)
	if n.http, err = bindHTTP(n); err != nil {
		return err
	}
	if n.creds, err = n.dir.tls().LoadIdentity(n.now); err != nil {
		return err
	}
	if n.signing, err = loadSigning(n.dir.tls()); err != nil {
		return err
	}
	if err := n.dir.tls().ForgetJoin(); err != nil {
		return err
	}
	n.http.begin()
	return nil
}

func (n *node) openStores() (err error) {
	if n.store, err = content.Open(n.dir.path("content"),
		content.Options{Log: n.log, ReserveBytes: contentReserveBytes, Step: n.cfg.Host.Step}); err != nil {
		return err
	}
	n.closer.add(n.store.Close)
	if err = n.openState(); err != nil {
		return err
	}
	n.closer.add(n.db.Close)
	id := n.id
	id.Peers = n.dir.loadPeers(n.id.Peers)
	if n.members, err = newMembers(n.db, id, time.Now); err != nil {
		return err
	}
	n.proposer = newProposer(n.ctx, &n.raft, n.id.Node, n.id.Generation)
	n.closer.add(func() error { n.proposer.work.Wait(); return nil })
	n.newNames = newNamesOf(n)
	n.closer.add(func() error { n.newNames.Wait(); return nil })
	n.staging = &staging{store: n.store, log: n.log}
	if err := n.staging.sweep(); err != nil {
		return err
	}
	n.mounts = newMounts(n)
	return nil
}

func (n *node) openFabric() error {
	if err := n.openDevice(); err != nil {
		return err
	}
	n.peers = control.NewPeers(control.PeersConfig{
		Identity: n.creds, Generation: n.id.Generation, Resolve: n.members.address, Dial: n.cfg.Host.Dial,
		Fabric: n.controlFabric(), Log: n.log,
	})
	n.closer.add(n.peers.Close)
	n.server = control.NewServer(n.log)
	return nil
}

func (n *node) openReplication() error {
	n.memory = rdmc.NewMemory(n.cfg.Fabric.Registered)
	engine, err := rdmc.NewEngine(rdmc.EngineConfig{Device: n.device, Memory: n.memory, Logger: n.log})
	if err != nil {
		return err
	}
	n.closer.add(engine.Close)
	n.groups = newLiveGroups(replicate.Multicast(engine), n.members.book)
	n.repl, err = replicate.New(replicate.Config{
		Self: n.proposer.lease, Names: n.newNames.View(), Log: replicaLog{n}, Peers: replicaPeers{n.peers},
		Groups: n.groups, Store: n.store, IsLeader: n.isLeader, Logger: n.log, Point: n.crash.point,
	})
	if err != nil {
		return err
	}
	n.closer.add(n.repl.Close)
	n.server.HandleCall(kindReplicate, n.handleReplicate)
	n.server.HandleCall(kindBoot, n.handleBoot)
	n.server.HandleCall(kindAddress, n.members.handleAddress)
	n.server.HandleCall(kindDamage, n.handleDamage)
	n.server.HandleCall(kindUnpublished, n.handleUnpublished)
	return nil
}

func (n *node) openLog() error {
	n.keepPeers()
	n.machine = &machine{db: n.db, point: n.crash.point, changed: n.changed, restored: n.restored}
	// called by the applying goroutine, which alone replaces the state
	n.machine.distrust = func(why error) { n.distrust(n.db.State(), why) }
	n.digests = newDigests(n, &n.machine.marks)
	n.server.HandleCall(kindDigest, n.digests.handle)
	cfg := n.consensusConfig()
	cfg.StateMachine, cfg.Digest, cfg.Wrong = n.machine, n.machine.digestAt, n.db.Distrusted
	raft, err := consensus.Open(cfg)
	if err != nil {
		return err
	}
	n.raft.node.Store(raft)
	n.closer.add(raft.Close)
	raft.SetVisible(n.db.Index())
	return nil
}

// consensusConfig is the configuration of the log, over a state machine that nobody else watches.
func (n *node) consensusConfig() consensus.Config {
	return consensus.Config{
		Dir: n.dir.path("raft"), Identity: n.id.raft(), StateMachine: &machine{db: n.db, point: n.crash.point}, Logger: n.log,
		FS: n.cfg.Host.Log, Tuning: consensus.Tuning{SegmentBytes: n.cfg.Host.LogSegment}, Dial: n.dialRaft,
		Peers:   func() []consensus.ID { return n.members.known(n.id.Node) },
		Members: n.members.consensusMembers,
		LogTime: n.db.Time,
		Wall:    n.wall,

		WallSynced: func() bool { return n.cfg.Host.Wall == nil && clockSynced() },
	}
}

func (n *node) openPort() error {
	ln, err := n.cfg.Host.listen(n.id.Listen)
	if err != nil {
		return err
	}
	port, err := control.Listen(control.PortConfig{
		Addr: n.id.Listen, Listener: ln, Control: tcp.Control(""), Identity: n.creds, Generation: n.id.Generation,
		Server: n.server, Log: n.log,
		Raft: n.serveRaft, Fabric: n.controlFabric(),
		Raw: func(conn *net.TCPConn) {
			if err := n.tcp.Serve(conn); err != nil {
				n.log.Debug("data connection", "from", conn.RemoteAddr(), "err", err)
			}
		},
		Evicted: n.members.evicted,
		InRaft:  func(node uint32) bool { return n.members.inRaft(node, n.raft.node.Load()) },
		Seen: func(node uint32) {
			n.peers.Seen(node)
			n.repl.Seen(meta.NodeID(node))
		},
	})
	if err != nil {
		return err
	}
	n.port = port
	n.closer.add(port.Close)
	n.serveCluster()
	return nil
}

// serveRaft hands a connection of a peer to the consensus.
func (n *node) serveRaft(conn net.Conn, from control.Caller) {
	raft, err := n.raft.get()
	if err != nil {
		conn.Close()
		return
	}
	if err := raft.Serve(conn, func(id consensus.ID) bool {
		return n.members.authentic(meta.NodeID(from.Node), id, raft.MayBeInRaft)
	}); err != nil && !errors.Is(err, io.EOF) {
		n.log.Debug("log connection", "from", from.Node, "err", err)
	}
}

func (n *node) openAdmin() error {
	server, err := n.serveAdmin(n.handlers())
	if err != nil {
		return err
	}
	n.closer.add(server.Close)
	return nil
}

func (n *node) startWork() error {
	d := &duties{self: n.id.Node, status: n.raft.status, members: n.members, propose: n.proposeAnonymous, now: time.Now,
		freeing: n.db.Freeing, due: meta.Removals{DB: n.db}.Due, log: n.log}
	n.tasks.Go(func() { d.run(n.ctx) })
	n.tasks.Go(func() { n.stayIn(n.ctx) })
	n.tasks.Go(func() { n.keepCertificate(n.ctx) })
	n.tasks.Go(func() { n.keepSigning(n.ctx) })
	n.tasks.Go(func() { n.scrub(n.ctx) })
	n.tasks.Go(func() { n.digests.run(n.ctx) })
	n.tasks.Go(func() { n.digests.verify(n.ctx) })
	n.tasks.Go(func() { n.watchDamage(n.ctx) })
	n.tasks.Go(func() { n.foldIdle(n.ctx) })
	return nil
}

func (n *node) firstMounts() error {
	for _, req := range n.cfg.Mounts {
		if _, err := n.mounts.mount(n.ctx, req); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) isLeader() bool { return n.raft.status().Role == consensus.RoleLeader }

// changed is called by the machine after each batch of applied entries.
func (n *node) changed(index uint64, events []meta.Event) {
	if slices.ContainsFunc(events, func(ev meta.Event) bool { return ev.Kind == meta.EventNode }) {
		n.viewChanged()
		n.sawReturned(events)
	}
	events = append(events, n.newNames.Applied(events)...)
	n.mounts.apply(events)
	n.repl.Applied(events)
	if raft := n.raft.node.Load(); raft != nil {
		raft.SetVisible(index)
	}
	n.watched.tell(events)
}

// sawReturned notes that nodes are there again, which the log has let in: calls to them are tried at once.
func (n *node) sawReturned(events []meta.Event) {
	nodes := n.members.book().nodes
	for _, ev := range events {
		if ev.Kind == meta.EventNode && ev.Node != n.id.Node && nodes[ev.Node].State == meta.NodeUp {
			n.peers.Seen(uint32(ev.Node))
		}
	}
}

// viewChanged rereads the node records.
func (n *node) viewChanged() {
	if err := n.members.refresh(); err != nil {
		n.log.Error("read node records", "err", err)
		return
	}
	n.keepPeers()
	n.groups.viewChanged()
	if raft := n.raft.node.Load(); raft != nil {
		raft.MembersChanged()
		signalAlarm(n.signing.look)
	}
}

// restored is called when a snapshot has replaced the state.
func (n *node) restored() {
	n.viewChanged()
	n.mounts.dropCaches()
	n.repl.Restored()
	n.newNames.Restored()
	n.watched.skip()
	if raft := n.raft.node.Load(); raft != nil {
		raft.SetVisible(n.db.Index())
	}
	n.rebuilt()
}
