package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// Node runs one member of the cluster: log, timers, connections and the calls of the state machine.
//
// Its goroutines, and what each owns:
//
//	loop      the core: raftLoop (loop.go, and what of members.go and snapshot.go says so)
//	persist   the log on disk (persist.go)
//	apply     calls of the state machine (apply.go)
//	follow    an observer's stream of entries: observer (follow.go, lag.go)
//	link      one for each peer this node dials: redials, reads answers (link.go)
//	Serve     the caller's, one for each accepted connection (serve.go)
//	policy    the leader's choice of voters: voterChanges (members.go)
//	reports   how far this node is, and others on their way to the leader: reporter (progress.go)
//	clocks    readings of the peers' clocks: clocks (clocks.go)
//
// They meet in the mailbox, the persist and apply queues, and the state below, whose lock is never held while waiting.
type Node struct {
	cfg  Config
	tune Tuning
	id   ID
	run  uint64 // this life of the process
	log  *slog.Logger

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	done   chan struct{} // closed when ctx is cancelled

	box        mailbox
	persist    persistQueue
	applyQ     applyQueue
	feed       *feed
	histories  *histories
	greeter    greeter
	snapshots  *snapshotServer
	voters     *voterChanges
	reporter   *reporter     // how far each node is, and barriers
	proposals  proposals     // of this node
	replacer   stateReplacer // of a state that is wrong
	raftMember atomic.Bool   // written by the loop
	resigned   atomic.Bool   // another voter is to lead

	loop     raftLoop // the loop's own
	observer observer // the follow goroutine's own

	clocks *clocks // its lock is taken before mu

	mu    sync.Mutex // protects state, and the fields of reporter, proposals, replacer and voters that say so
	state nodeState
}

// nodeState is what the goroutines of a node share.
type nodeState struct {
	role      Role
	leader    ID
	term      uint64
	commit    uint64
	confIndex uint64
	conf      *raftpb.ConfState
	ledSince  time.Time // when this node became the leader
	lostSince time.Time // since when no leader is known
	noQuorum  bool      // and that has been too long
	readOnly  error

	applied, synced, visible uint64
	// inRaft is how far this node knew the log to be committed when it was last a member of raft. It joins again only
	// there or beyond: an earlier configuration may be an old one of its own, which the node applies again after a
	// crash.
	inRaft uint64
	waits  []indexWait

	links    map[ID]*link
	inbound  map[ID]*stream
	streams  map[*stream]struct{} // accepted, of all purposes
	follower *followTarget
	changed  chan struct{} // closed and replaced when leader or configuration change
	closed   bool
}

type indexWait struct {
	index uint64
	done  chan struct{}
}

// CreateOptions says how a log begins.
type CreateOptions struct {
	// Voters are the first voters of a new cluster (this node's id, normally). Nil for a node that joins: it is an
	// observer until the leader makes it a voter.
	Voters []ID
	// Index and Time are those of the state that the log begins after; 0 for a new one.
	Index uint64
	Time  int64
}

func (c *Config) logOptions() raftlog.Options {
	return raftlog.Options{Dir: c.Dir, Identity: c.Identity, FS: c.FS, SegmentBytes: c.Tuning.SegmentBytes}
}

// Create makes the log of a node: once, with the data directory. It fails with raftlog.ErrExists if there is one.
func Create(cfg Config, opts CreateOptions) error {
	if cfg.Identity.ID == 0 {
		return errors.New("consensus: create: identity without a raft id")
	}
	base := raftlog.Base{Index: opts.Index, Time: opts.Time, Conf: &raftpb.ConfState{Voters: opts.Voters}}
	if base.Index > 0 {
		base.Term = 1
	}
	if err := raftlog.Create(cfg.logOptions(), base); err != nil {
		return fmt.Errorf("consensus: create: %w", err)
	}
	return nil
}

// Open starts a node from its log. It returns ErrLogMissing, ErrLogDamaged, ErrLogIdentity, ErrLogShort or
// ErrStateBehind for a node that must not run under its identity, and then has started nothing.
func Open(cfg Config) (*Node, error) {
	if cfg.Identity.ID == 0 || cfg.StateMachine == nil || cfg.Dial == nil {
		return nil, errors.New("consensus: open: Identity, StateMachine and Dial are required")
	}
	disk, state, err := raftlog.Open(cfg.logOptions())
	if err != nil {
		return nil, fmt.Errorf("consensus: open: %w", err)
	}
	n := newNode(cfg)
	if err := n.recover(disk, state); err != nil {
		n.cancel(err)
		return nil, errors.Join(fmt.Errorf("consensus: open: %w", err), disk.Close())
	}
	n.persist.disk = disk
	n.start()
	return n, nil
}

func newNode(cfg Config) *Node {
	n := &Node{cfg: cfg, tune: cfg.Tuning.filled(), id: cfg.Identity.ID, run: rand.Uint64(), log: cfg.Logger,
		done: make(chan struct{})}
	n.voters = &voterChanges{n: n, policy: make(chan struct{}, 1)}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.clocks = newClocks(n)
	n.feed = newFeed(raftlog.Base{})
	n.histories = newHistories(n)
	n.greeter = greeter{cfg: &n.cfg, id: n.id}
	n.snapshots = &snapshotServer{cfg: &n.cfg, feed: n.feed, peers: map[ID]bool{}}
	n.loop.n, n.observer.n, n.replacer.n = n, n, n
	n.reporter = newReporter(n)
	n.proposals = proposals{n: n, waiting: map[uint64]*waiter{}}
	n.box.wake = make(chan struct{}, 1)
	n.persist.wake = make(chan struct{}, 1)
	n.applyQ.wake = make(chan struct{}, 1)
	n.applyQ.room = make(chan struct{}, 1)
	n.state = nodeState{role: RoleObserver, lostSince: time.Now(),
		links: map[ID]*link{}, inbound: map[ID]*stream{}, streams: map[*stream]struct{}{},
		changed: make(chan struct{})}
	return n
}

// recover compares the log with the state machine and prepares the core of a raft member.
func (n *Node) recover(disk *raftlog.Log, s *raftlog.State) error {
	applied := n.cfg.StateMachine.Applied()
	if s.TornBytes > 0 {
		n.log.Info("an unacknowledged write at the end of the raft log was dropped", "bytes", s.TornBytes)
	}
	member := slices.Contains(core.MembersOf(s.Base.Conf), n.id)
	if s.Intent != nil && !s.Holds(s.Intent.Index, s.Intent.Term) &&
		(applied == s.Intent.Index || !member && applied > s.Intent.Index) {
		base := *s.Intent
		if !member && base.Index < s.Hard.GetCommit() {
			base = outside(n.id, base)
		}
		if err := disk.Append(&raftlog.Batch{Base: &base, Reset: true}); err != nil {
			return err
		}
		s.Base, s.Entries, s.Intent = base, nil, nil
	}
	if applied < s.Base.Index {
		return fmt.Errorf("%w: it has applied %d, the log begins after %d", ErrStateBehind, applied, s.Base.Index)
	}
	n.state.applied, n.state.synced = applied, n.cfg.StateMachine.Synced()
	n.state.conf, n.state.confIndex = s.Base.Conf, s.Base.Index
	if !slices.Contains(core.MembersOf(s.Base.Conf), n.id) { // after an intent it may be another one
		n.loop.hard, n.state.inRaft = s.Hard, s.Hard.GetCommit()
		begin := raftlog.Base{Index: applied, Conf: s.Base.Conf} // its term is not known: the last entry is asked for again
		if applied > 0 {
			begin.Index--
		}
		n.feed.reset(begin)
		return nil
	}
	if applied > s.LastIndex() {
		return &ShortError{LastIndex: s.LastIndex(), Promised: applied, Witness: "its state database"}
	}
	if s.Hard.GetCommit() < applied {
		s.Hard = &raftpb.HardState{Term: new(s.Hard.GetTerm()), Vote: new(s.Hard.GetVote()), Commit: new(applied)}
	}
	n.feed.reset(s.Base)
	n.raftMember.Store(true)
	n.state.role = RoleFollower
	return n.loop.newCore(s)
}

func (n *Node) start() {
	n.clocks.seeLogLocked() // nobody else is there yet
	n.wg.Go(n.loop.run)
	n.wg.Go(n.runPersist)
	n.wg.Go(n.runApply)
	n.wg.Go(n.observer.run)
	n.wg.Go(n.voters.runPolicy)
	n.wg.Go(n.reporter.run)
	n.wg.Go(n.clocks.watch)
	context.AfterFunc(n.ctx, func() { close(n.done) })
}

// Resign makes this node hand leadership over whenever it leads and another voter can take it: this node is about to
// end. It does not wait.
func (n *Node) Resign() {
	n.resigned.Store(true)
	n.box.event(func() {
		if rl := &n.loop; rl.core != nil && rl.core.Status().Role == RoleLeader {
			rl.handOver(time.Now())
		}
	})
}

// Leave is Resign, and waits until this node does not lead or ctx ends. Then the node takes no part in raft any more,
// and calls return ErrClosed: the cluster has removed this node.
func (n *Node) Leave(ctx context.Context) {
	n.Resign()
	tick := time.NewTicker(n.tune.Tick)
	defer tick.Stop()
	for n.Status().Role == RoleLeader && ctx.Err() == nil && n.ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		case <-n.ctx.Done():
		}
	}
	n.cancel(ErrClosed)
}

// Close ends the node and waits for its goroutines. Proposals that wait return ErrClosed.
func (n *Node) Close() error {
	n.cancel(ErrClosed)
	n.mu.Lock()
	n.state.closed = true
	for _, l := range n.state.links {
		l.cancel()
	}
	streams := make([]*stream, 0, len(n.state.streams))
	for s := range n.state.streams {
		streams = append(streams, s)
	}
	n.mu.Unlock()
	for _, s := range streams {
		_ = s.conn.Close() // its Serve ends
	}
	n.wg.Wait()
	<-n.done
	if err := n.persist.close(); err != nil {
		return fmt.Errorf("consensus: close: %w", err)
	}
	return nil
}

// fail stops the node: something is wrong that can't be repaired here.
func (n *Node) fail(err error) {
	n.log.Error("consensus stops", "error", err)
	n.cancel(err)
}

// Err returns why the node stopped by itself, nil while it runs and after Close.
func (n *Node) Err() error {
	if err := context.Cause(n.ctx); err != nil && !errors.Is(err, ErrClosed) {
		return err
	}
	return nil
}

// stopped is the error of calls that found the node stopped.
func (n *Node) stopped() error {
	if err := n.Err(); err != nil {
		return err
	}
	return ErrClosed
}

// Done is closed when the node has stopped by itself or was closed.
func (n *Node) Done() <-chan struct{} { return n.done }

// filled returns the tuning with defaults for what is zero.
func (t Tuning) filled() Tuning {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.Tick, 100*time.Millisecond)
	def(&t.LeaderLost, 4*time.Second)
	def(&t.LeaderAwaited, 25*time.Second)
	def(&t.ProposeTimeout, 30*time.Second)
	def(&t.BarrierTimeout, 5*time.Second)
	def(&t.StaleAfter, 3*time.Second)
	def(&t.PolicyInterval, 2*time.Second)
	def(&t.DeadVoterAfter, 10*time.Minute)
	def(&t.LearnerStill, 15*time.Second)
	def(&t.SyncInterval, time.Second)
	def(&t.ReportInterval, 50*time.Millisecond)
	def(&t.ClockInterval, time.Second)
	t.ElectionTicks = orInt(t.ElectionTicks, 10)
	t.HeartbeatTicks = orInt(t.HeartbeatTicks, 2)
	t.MaxProposalBytes = min(orInt(t.MaxProposalBytes, 4<<20), maxFrame/2)
	t.SyncEntries = orInt(t.SyncEntries, 4096)
	t.TailEntries = orInt(t.TailEntries, 10000)
	t.TailBytes = orInt(t.TailBytes, 64<<20)
	return t
}

// electionMax is the longest time for which a voter hears of no leader before it stands for election.
func (t *Tuning) electionMax() time.Duration { return 2 * time.Duration(t.ElectionTicks) * t.Tick }

func orInt[T int | int64 | uint64](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}
