package sim

import (
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// life is one process of a machine.
type life struct {
	w     *world
	m     *machine
	alive bool
	run   uint64
	id    consensus.ID
	born  int64
	clock *consensus.Clock

	log   *raftlog.Log
	raft  raftShell
	feed  feed
	apply applier
	know  knowledge

	db        *meta.DB
	store     *contents
	rep       *replicate.Stepped
	noted     *notedLog
	proposer  proposer
	holds     map[meta.ContentID]*hold
	roots     []*rootRun
	endpoints []*endpoint
	supplies  map[string]*supply
	serving   map[*call]uint64
	decisions []meta.Event
	deciding  bool
	lastRetry map[meta.ContentID]bool // aborts under way

	book     []meta.Node // the log's node records
	progress map[consensus.ID]*progress
	duty     duties
	ready    bool // the log has let this process in at least once

	overtaken node.Overtaken
	nonce     uint64
}

// knowledge is what a process knows of the cluster, from its raft or from whom it follows.
type knowledge struct {
	leader    consensus.ID
	term      uint64
	commit    uint64
	conf      *raftpb.ConfState
	confIndex uint64
	lostSince int64
	noQuorum  bool
}

func confOf(voters []consensus.ID) *raftpb.ConfState { return &raftpb.ConfState{Voters: voters} }

func newLife(m *machine) *life {
	w := m.w
	l := &life{
		w: w, m: m, alive: true, run: uint64(m.lives), id: m.raftID, born: w.now, clock: consensus.NewClock(m.raftID), db: m.db, store: m.contents,
		holds: map[meta.ContentID]*hold{}, supplies: map[string]*supply{}, serving: map[*call]uint64{},
		progress: map[consensus.ID]*progress{}, lastRetry: map[meta.ContentID]bool{}, nonce: w.rng.Uint64(),
	}
	l.proposer = proposer{l: l, next: 1, pending: map[uint64]bool{}, waiters: map[uint64]*waiter{}, self: meta.Lease{Node: m.node}}
	l.know.lostSince = w.now
	w.clocks.change(w, m, 4)
	l.clock.SeeLog(0, m.db.Time())
	return l
}

// open brings the process up: stores, log, replication, timers.
func (l *life) open() {
	l.store.wrote = func() { l.wrote("content") }
	l.store.tell = func(what string, id meta.ContentID) { l.w.tell("     %s %s %s", l.m.name, what, short(id)) }
	l.noted = &notedLog{}
	l.readBook()
	var err error
	l.rep, err = replicate.NewStepped(replicate.Config{
		Self: func() meta.Lease { return l.proposer.self }, Names: l.db, Log: l.noted, Peers: noPeers{}, Groups: noGroups{},
		Store: l.store, IsLeader: l.leads, Clock: simClock{l.w}, Point: l.point, Tuning: l.tuning(),
	}, l.sessionDecided)
	if err != nil {
		l.w.fail("open replication of %s: %v", l.m.name, err)
		return
	}
	if err := l.openLog(); err != nil {
		l.w.fail("%s can't start: %v", l.m.name, err)
		return
	}
	l.startTimers()
	l.enterCluster()
}

func (l *life) tuning() replicate.Tuning {
	return replicate.Tuning{DeleteAfter: l.w.delete, CatchUpEvery: time.Second}
}

// openLog opens the raft log and decides how to go on, as consensus.Open does.
func (l *life) openLog() error {
	options := l.m.logOptions()
	options.FS = &powerFS{Disk: l.m.disk, lost: l.powerLost}
	log, state, err := raftlog.Open(options)
	l.dieOfPower()
	if err != nil {
		return err
	}
	l.log = log
	applied := l.db.Index()
	l.apply = applier{applied: applied, synced: l.db.Synced()}
	member := contains(consensus.Members(state.Base.Conf), l.id)
	if s := state; s.Intent != nil && s.Intent.Index > s.LastIndex() && (applied == s.Intent.Index || !member && applied > s.Intent.Index) {
		base := *s.Intent
		if err := l.writeLog(&raftlog.Batch{Base: &base, Reset: true}); err != nil {
			return err
		}
		s.Base, s.Entries, s.Intent = base, nil, nil
	}
	if applied < state.Base.Index {
		return fmt.Errorf("state at %d is behind the log's base %d", applied, state.Base.Index)
	}
	l.know.conf, l.know.confIndex = state.Base.Conf, state.Base.Index
	if !contains(consensus.Members(state.Base.Conf), l.id) {
		l.raft.hard = state.Hard
		begin := raftlog.Base{Index: applied, Conf: state.Base.Conf}
		if applied > 0 {
			begin.Index--
		}
		l.feed = feed{base: begin}
		return nil
	}
	if applied > state.LastIndex() {
		return fmt.Errorf("log ends at %d, the state is at %d", state.LastIndex(), applied)
	}
	if state.Hard.GetCommit() < applied {
		state.Hard = &raftpb.HardState{Term: new(state.Hard.GetTerm()), Vote: new(state.Hard.GetVote()), Commit: new(applied)}
	}
	l.feed = feed{base: state.Base}
	return l.newCore(state)
}

// powerLost tells the disk of the raft log, before each of its operations, whether the power goes now.
func (l *life) powerLost() bool {
	w, r := l.w, &l.raft
	if !l.alive || r.powerLost {
		return r.powerLost
	}
	r.powerLost = l.dying("log") || w.flaky && !w.opt.Calm && w.chance(1500)
	return r.powerLost
}

// dieOfPower ends the process if the power has gone while it wrote.
func (l *life) dieOfPower() {
	if l.raft.powerLost {
		l.m.crash(true, "while the raft log is written")
		panic(killed{}) // tidy: unwinds the stack of the process that ended
	}
}

// writeLog appends a batch. When the power fails on the way it does not return.
func (l *life) writeLog(b *raftlog.Batch) error {
	err := l.log.Append(b)
	l.dieOfPower()
	return err
}

func (l *life) startTimers() {
	w := l.w
	w.every(100*time.Millisecond, l, l.tick)
	w.every(time.Second, l, l.tendRaft)
	w.every(200*time.Millisecond, l, l.report)
	w.every(40*time.Millisecond, l, l.poll)
	w.every(time.Duration(200+w.intn(800))*time.Millisecond, l, l.syncIfDue)
	w.every(250*time.Millisecond, l, l.doDuties)
	w.every(2*time.Second, l, l.planVoters)
	w.every(200*time.Millisecond, l, l.stayIn)
	w.every(time.Second, l, l.reconcile)
	w.every(time.Second, l, l.assign)
	w.every(200*time.Millisecond, l, l.tellReports)
	w.every(5*time.Second, l, l.releaseSpares)
}

func (l *life) leads() bool {
	return l.raft.core != nil && l.raft.core.Status().Role == consensus.RoleLeader
}

// readBook rereads the node records.
func (l *life) readBook() { l.book, _ = l.db.Nodes() }

func contains[T comparable](list []T, x T) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}
