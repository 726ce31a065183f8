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
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/newnames"
	"github.com/rdmcfs/rdmcfs/meta"
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

	life   *lifetime
	closer closer

	clock     *clock
	http      *httpPort
	creds     *credentials.Identity
	key       *signing
	store     *content.Store
	db        *meta.DB
	formats   formats
	health    *stateHealth
	members   *members
	addresses *peerAddresses
	raft      lateRaft
	anonymous anonymous
	proposer  *proposer
	paths     *paths
	staging   *staging
	devices   *devices
	peers     *control.Peers
	server    *control.Server
	strays    *strayFiles
	losses    *losses
	damage    *damage
	admission *admission
	memory    *rdmc.Memory // what transfers register together
	groups    *liveGroups
	repl      *replicate.Replicator
	stock     *stock
	watchers  watchers
	changes   changes
	digests   *digests
	cluster   *cluster
	mounts    *mounts
	keys      *keyFetch
	evictions *evictions
	authority *authority
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
	n.life, n.clock = newLifetime(ctx, n.log), &clock{wall: cfg.Host.wall, raft: &n.raft}
	err := n.open()
	served := err == nil
	if served {
		err = n.serve()
	}
	n.life.cancel()
	n.life.tasks.Wait()
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
	n.life.ready.Store(true)
	n.log.Info("node runs", "node", n.id.Node, "name", n.id.Name, "listen", n.id.Listen)
	select {
	case <-n.life.ctx.Done():
		err = n.life.err()
	case <-raft.Done():
		err = fmt.Errorf("node: the log stopped: %w", raft.Err())
	}
	n.log.Info("node ends")
	n.life.ready.Store(false)
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
		n.openDirectory, n.openStores, n.openFabric, n.rebuild, n.openReplication, n.openLog, n.refuseTwin, n.openPort,
		n.openAdmin, n.awaitRebuilt, n.enter, n.startWork, n.firstMounts,
	} {
		if err := n.life.ctx.Err(); err != nil {
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
	id, err := n.dir.load(n.cfg.Host.formats())
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
	if n.creds, err = n.dir.tls().LoadIdentity(n.clock.now); err != nil {
		return err
	}
	if n.key, err = loadSigning(n.dir.tls()); err != nil {
		return err
	}
	if err := n.dir.tls().ForgetJoin(); err != nil {
		return err
	}
	n.http.begin(n.creds)
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
	n.addresses = &peerAddresses{dir: n.dir, self: n.id.Node, members: n.members, log: n.log}
	n.anonymous = anonymous{node: n.id.Node, generation: n.id.Generation, log: &n.raft, format: n.db.Format}
	n.proposer = newProposer(n.life.ctx, &n.raft, n.id.Node, n.id.Generation)
	n.proposer.format = n.db.Format
	n.closer.add(func() error { n.proposer.work.Wait(); return nil })
	n.proposer.names = n.newNames()
	n.closer.add(func() error { n.proposer.names.Wait(); return nil })
	n.paths = &paths{names: n.proposer.names.View(), lease: n.proposer.lease}
	n.staging = &staging{self: n.id.Node, store: n.store, versions: n.db, paths: n.paths, log: n.log}
	return n.staging.sweep()
}

func (n *node) openFabric() error {
	var err error
	if n.devices, err = openDevices(n.cfg, n.id.Advertise, n.log, &n.closer); err != nil {
		return err
	}
	n.peers = control.NewPeers(control.PeersConfig{
		Identity: n.creds, Generation: n.id.Generation, Format: n.formats.end, Resolve: n.members.address,
		Dial:   n.cfg.Host.Dial,
		Fabric: n.devices.control(), Log: n.log,
	})
	n.closer.add(n.peers.Close)
	n.server = control.NewServer(n.log)
	n.strays = &strayFiles{self: n.id.Node, store: n.store, paths: n.paths, members: n.members, peers: n.peers}
	n.losses = &losses{self: n.id.Node, dataDir: n.cfg.DataDir, db: n.db, store: n.store, strays: n.strays,
		paths: n.paths}
	n.damage = &damage{self: n.id.Node, name: n.id.Name, db: n.db, store: n.store, members: n.members, peers: n.peers,
		paths: n.paths}
	n.admission = &admission{id: n.id, formats: n.formats, db: n.db, members: n.members, peers: n.peers, raft: &n.raft,
		proposer: n.proposer, anonymous: n.anonymous, evicted: n.losses.ofEvicted, life: n.life, log: n.log,
		look: make(chan struct{}, 1)}
	n.keys = &keyFetch{self: n.id.Node, key: n.key, members: n.members, peers: n.peers, log: n.log}
	return nil
}

func (n *node) openReplication() error {
	n.memory = rdmc.NewMemory(n.cfg.Fabric.Registered)
	engine, err := rdmc.NewEngine(rdmc.EngineConfig{Device: n.devices.all, Memory: n.memory, Logger: n.log})
	if err != nil {
		return err
	}
	n.closer.add(engine.Close)
	n.groups = newLiveGroups(replicate.Multicast(engine), n.members.book)
	n.repl, err = replicate.New(replicate.Config{
		Self: n.proposer.lease, Names: n.proposer.view(n.db), Log: replicaLog{n.proposer, &n.raft},
		Peers:  replicaPeers{n.peers},
		Groups: n.groups, Store: n.store, IsLeader: n.raft.isLeader, Logger: n.log, Point: n.crash.point,
		Tuning: replicate.Tuning{CacheBytes: n.cfg.Host.ReadCache},
	})
	if err != nil {
		return err
	}
	n.closer.add(n.repl.Close)
	n.stock = &stock{self: n.id.Node, db: n.db, store: n.store, paths: n.paths, retiring: n.repl.Retiring}
	n.server.HandleCall(kindReplicate, n.handleReplicate)
	n.server.HandleCall(kindStock, n.stock.handle)
	n.server.HandleCall(kindBoot, n.admission.handleBoot)
	n.server.HandleCall(kindAddress, n.members.handleAddress)
	n.server.HandleCall(kindDamage, n.damage.handle)
	n.server.HandleCall(kindUnpublished, n.strays.handle)
	return nil
}

func (n *node) openLog() error {
	n.addresses.keep()
	m := &machine{db: n.db, point: n.crash.point, changed: n.changed, restored: n.restored}
	// called by the applying goroutine, which alone replaces the state
	m.distrust = func(why error) { n.health.distrust(n.db.State(), why) }
	n.digests = &digests{self: n.id.Node, db: n.db, health: n.health, members: n.members, peers: n.peers, raft: &n.raft,
		marks: &m.marks, onDisk: n.cfg.Host.State == nil, log: n.log, alarm: make(chan struct{}, 1)}
	n.server.HandleCall(kindDigest, n.digests.handle)
	n.makeMounts()
	n.changes.reset(n.db.Index())
	cfg := n.consensusConfig()
	cfg.StateMachine, cfg.Digest, cfg.Wrong = m, m.digestAt, n.db.Distrusted
	raft, err := consensus.Open(cfg)
	if err != nil {
		return err
	}
	n.raft.node.Store(raft)
	if why := n.db.Distrusted(); why != nil { // a read has met damage before
		n.health.replace(why)
	}
	n.closer.add(raft.Close)
	raft.SetVisible(n.db.Index())
	return nil
}

// newNames makes the part of this node that gives new names by itself.
func (n *node) newNames() *newnames.Holder {
	p := n.proposer
	return newnames.New(n.life.ctx, newnames.Config{State: n.db, Self: p.lease, Log: p.propose,
		Confirm: func(ctx context.Context, l meta.Lease) error { return n.cluster.Confirm(ctx, l) },
		Settled: p.isSettled, Settle: p.settleAll, Now: time.Now, Awake: n.cfg.Host.awake,
		Changed: func(events []meta.Event) { n.mounts.apply(events) }, Logger: n.log})
}

// makeMounts makes the file system ready for mounts. There are none yet.
func (n *node) makeMounts() {
	n.cluster = &cluster{dataDir: n.cfg.DataDir, db: n.db, members: n.members, proposer: n.proposer, raft: &n.raft,
		repl: n.repl, split: &n.digests.split}
	n.mounts = newMounts(n.life, fs.Options{Cluster: n.cluster, Staging: fs.NewStaging(n.store, n.proposer.lease),
		Log: n.log, Keep: []string{n.cfg.DataDir}, Attach: n.cfg.Host.Attach})
}

// consensusConfig is the configuration of the log, over a state machine that nobody else watches.
func (n *node) consensusConfig() consensus.Config {
	return consensus.Config{
		Dir: n.dir.path("raft"), Identity: n.id.raft(), StateMachine: &machine{db: n.db, point: n.crash.point}, Logger: n.log,
		FS: n.cfg.Host.Log, Tuning: consensus.Tuning{SegmentBytes: n.cfg.Host.LogSegment}, Dial: n.admission.dialRaft,
		Peers:   func() []consensus.ID { return n.members.known(n.id.Node) },
		Members: n.members.consensusMembers,
		LogTime: n.db.Time,
		Wall:    n.cfg.Host.wall,

		WallSynced: func() bool { return n.cfg.Host.Wall == nil && clockSynced() },
	}
}

func (n *node) refuseTwin() error { return n.admission.refuseTwin() }

func (n *node) openPort() error {
	ln, err := n.cfg.Host.listen(n.id.Listen)
	if err != nil {
		return err
	}
	port, err := control.Listen(control.PortConfig{
		Addr: n.id.Listen, Listener: ln, Control: tcp.Control(""), Identity: n.creds, Generation: n.id.Generation,
		Format: n.formats.end, Server: n.server, Log: n.log,
		Raft: n.serveRaft, Fabric: n.devices.control(),
		Raw: func(conn *net.TCPConn) {
			if err := n.devices.tcp.Serve(conn); err != nil {
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
	n.closer.add(port.Close)
	n.evictions = &evictions{self: n.id.Node, db: n.db, members: n.members, raft: &n.raft, anonymous: n.anonymous,
		losses: n.losses, key: n.keys, log: n.log,
		drop: func(node uint32) { port.Drop(node); n.peers.Drop(node) }}
	n.authority = &authority{id: n.id, formats: n.formats, creds: n.creds, dir: n.dir.tls(), dial: n.cfg.Host.Dial,
		key:   n.key,
		clock: n.clock, db: n.db, members: n.members, raft: &n.raft, lease: n.proposer.lease, anonymous: n.anonymous,
		spare: n.evictions.spareReplaced, log: n.log}
	n.authority.serve(port, n.server)
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

// awaitRebuilt waits until a rebuilt state is no older than the one it replaces: nothing is served before.
func (n *node) awaitRebuilt() error { return n.health.await(n.life.ctx) }

// enter has the cluster let this node in.
func (n *node) enter() error { return n.admission.enter(n.repl.Settle) }

func (n *node) startWork() error {
	d := &duties{self: n.id.Node, status: n.raft.status, changed: n.raft.changed, members: n.members,
		propose: n.anonymous.propose, now: time.Now, freeing: n.db.Freeing, due: meta.Removals{DB: n.db}.Due, log: n.log}
	n.life.tasks.Go(func() { d.run(n.life.ctx) })
	n.life.tasks.Go(func() { n.admission.stayIn(n.life.ctx) })
	n.life.tasks.Go(func() { n.authority.keepCertificate(n.life.ctx) })
	n.life.tasks.Go(func() { n.keys.run(n.life.ctx) })
	n.life.tasks.Go(func() { scrub(n.life.ctx, n.store, n.log) })
	n.life.tasks.Go(func() { n.digests.run(n.life.ctx) })
	n.life.tasks.Go(func() { n.digests.verify(n.life.ctx) })
	n.life.tasks.Go(func() { n.damage.watch(n.life.ctx) })
	n.life.tasks.Go(func() { keepSpace(n.life.ctx, n.db) })
	first, stop := context.WithTimeout(n.life.ctx, compareFirst)
	n.staging.dropPublished(first)
	stop()
	n.life.tasks.Go(func() { n.staging.compare(n.life.ctx) })
	n.life.tasks.Go(func() { foldIdle(n.life.ctx, n.store, n.log) })
	n.life.tasks.Go(func() {
		if err := n.cfg.Host.watchLines(n.life.ctx, n.raft.lineUp); err != nil {
			n.log.Info("changes may be refused for a second after a line is up again", "err", err)
		}
	})
	return nil
}

func (n *node) firstMounts() error {
	for _, req := range n.cfg.Mounts {
		if _, err := n.mounts.mount(n.life.ctx, req); err != nil {
			return err
		}
	}
	return nil
}

// changed is called by the machine after each batch of applied entries.
func (n *node) changed(index uint64, events []meta.Event) {
	if slices.ContainsFunc(events, func(ev meta.Event) bool { return ev.Kind == meta.EventNode }) {
		n.viewChanged()
		n.sawReturned(events)
	}
	events = append(events, n.proposer.names.Applied(events)...)
	n.mounts.apply(events)
	n.repl.Applied(events)
	if raft := n.raft.node.Load(); raft != nil {
		raft.SetVisible(index)
	}
	n.watchers.notify(events)
	n.changes.note(index, events)
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
	n.addresses.keep()
	n.groups.viewChanged()
	signalAlarm(n.admission.look)
	if raft := n.raft.node.Load(); raft != nil {
		raft.MembersChanged()
		signalAlarm(n.key.look)
	}
}

// restored is called when a snapshot has replaced the state.
func (n *node) restored() {
	n.viewChanged()
	n.mounts.dropCaches()
	n.repl.Restored()
	n.proposer.names.Restored()
	n.watchers.skip()
	if raft := n.raft.node.Load(); raft != nil {
		raft.SetVisible(n.db.Index())
	}
	n.changes.reset(n.db.Index())
	n.health.rebuilt()
}

// stateServing is the state of a node of which all is well.
const stateServing = "serving"

// state is where in its life this node is, in the words of status.
func (n *node) state(log consensus.Status) string {
	switch {
	case n.life.ctx.Err() != nil:
		return "stopping"
	case n.health.isRebuilding():
		return stateRebuilding
	case !n.life.ready.Load():
		return "starting"
	case log.NoQuorum || n.proposer.lease().Incarnation == 0:
		return "cut-off"
	}
	return stateServing
}
