package sim

import (
	"bytes"
	"errors"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// raftShell is the shell around the core of a raft member; with core nil the process follows as an observer.
type raftShell struct {
	core      *consensus.Core
	hard      *raftpb.HardState // while there is no core
	queue     []persistJob
	commit    *raftpb.HardState // moves the commit index alone, and is not written yet
	writing   bool
	powerLost bool
	leaving   bool
	asking    bool
	fetching  bool
	restored  *raftlog.Base
	snapSent  map[consensus.ID]int64
	serving   map[consensus.ID]bool
	role      consensus.Role
}

// persistJob is a batch to write; done runs when it is on stable storage.
type persistJob struct {
	batch *raftlog.Batch
	done  func()
}

func (l *life) newCore(s *raftlog.State) error {
	core, err := consensus.NewCore(consensus.CoreConfig{ID: l.id, State: s, ElectionTicks: 10, HeartbeatTicks: 2, Intn: l.w.rng.IntN})
	if err != nil {
		return err
	}
	l.clock.SeeLog(l.mono(), core.LastTime())
	l.raft.core, l.raft.leaving, l.raft.snapSent = core, false, map[consensus.ID]int64{}
	if v := s.Base.Conf.GetVoters(); len(v) == 1 && v[0] == l.id && len(s.Base.Conf.GetVotersOutgoing()) == 0 {
		core.Campaign()
	}
	l.w.after(0, l, l.pump)
	return nil
}

func (l *life) tick() {
	if l.raft.core != nil {
		l.raft.core.Tick()
		l.pump()
	}
	l.tendProposals()
}

// pump carries out what the core wants.
func (l *life) pump() {
	core := l.raft.core
	if core == nil {
		return
	}
	for {
		out, ok := core.Ready()
		if !ok {
			break
		}
		l.sendRaft(out.Messages)
		if a := out.Append; a != nil {
			l.persist(a.Batch(), func() {
				if l.raft.core == core {
					core.Persisted(a)
					l.pump()
				}
			})
		}
		if len(out.Apply) > 0 {
			l.commitRaft(core, out.Apply)
		}
	}
	st := core.Status()
	if st.Role == consensus.RoleLeader && l.raft.role != consensus.RoleLeader {
		l.w.stats.Elections++
		l.w.tell("%s leads term %d", l.m.name, st.Term)
	}
	l.raft.role = st.Role
	l.learn(st.Leader, st.Term, st.Commit, core.Conf(), core.ConfIndex())
}

func (l *life) commitRaft(core *consensus.Core, list []consensus.Committed) {
	if !l.feed.push(list) {
		l.w.fail("%s: committed entries have a gap at %d", l.m.name, list[0].Index)
		return
	}
	for i := range list {
		if list[i].Conf != nil && !contains(consensus.Members(list[i].Conf), l.id) {
			l.raft.leaving = true
		}
	}
	l.enqueue(applyJob{entries: list, core: core})
}

func (l *life) sendRaft(list []*raftpb.Message) {
	for _, m := range list {
		to := l.peer(m.GetTo())
		if to == nil || to.life == nil || l.w.isCut(l.m, to) {
			if m.GetType() == raftpb.MsgSnap {
				l.raft.core.SnapshotFailed(m.GetTo())
			} else if m.GetType() == raftpb.MsgApp {
				l.raft.core.Unreachable(m.GetTo())
			}
			continue
		}
		if m.GetType() == raftpb.MsgSnap {
			l.raft.snapSent[m.GetTo()] = l.w.now
		}
		c := proto.Clone(m).(*raftpb.Message)
		l.w.post(l, to, func(at *life) { at.receive(l, c) })
	}
}

// peer is the machine of a raft id.
func (l *life) peer(id consensus.ID) *machine {
	for _, m := range l.w.machines {
		if m.raftID == id {
			return m
		}
	}
	return nil
}

// receive takes a raft message of a peer.
func (l *life) receive(from *life, m *raftpb.Message) {
	if l.raft.core == nil || m.GetTo() != l.id || !l.admits(from) {
		return
	}
	if m.GetType() == raftpb.MsgSnap {
		l.receiveSnapshot(m)
	} else {
		l.stepped(l.raft.core.Step(m))
	}
	l.pump()
}

func (l *life) stepped(err error) {
	if errors.Is(err, consensus.ErrLogShort) || errors.Is(err, consensus.ErrSafety) {
		l.w.fail("%s: %v", l.m.name, err)
	}
}

// receiveSnapshot fetches the state first, then tells raft of what was fetched.
func (l *life) receiveSnapshot(m *raftpb.Message) {
	r := &l.raft
	if err := r.core.Check(m); err != nil {
		l.stepped(err)
		return
	}
	index := m.GetSnapshot().GetMetadata().GetIndex()
	if r.restored != nil && r.restored.Index >= index {
		l.stepped(r.core.Step(consensus.WithBase(m, *r.restored)))
		return
	}
	if r.fetching || index <= r.core.Status().Commit {
		if !r.fetching {
			l.stepped(r.core.Step(m))
		}
		return
	}
	r.fetching = true
	core := r.core
	l.fetchSnapshot(m.GetFrom(), func(base raftlog.Base, err error) {
		r.fetching = false
		if err != nil {
			return
		}
		r.restored = &base
		if r.core == core {
			l.stepped(core.Step(consensus.WithBase(m, base)))
			l.pump()
		}
	})
}

// persist queues a write of the raft log.
func (l *life) persist(b *raftlog.Batch, done func()) {
	l.raft.queue = append(l.raft.queue, persistJob{b, done})
	l.beginWrite()
}

func (l *life) beginWrite() {
	if l.raft.writing || len(l.raft.queue) == 0 {
		return
	}
	l.raft.writing = true
	l.w.after(l.diskTime(), l, l.write)
}

// diskTime is how long a synced write takes.
func (l *life) diskTime() time.Duration {
	if l.w.flaky && l.w.chance(100) {
		return l.w.between(10*time.Millisecond, 400*time.Millisecond)
	}
	return l.w.between(100*time.Microsecond, 4*time.Millisecond)
}

// write writes the jobs that can be joined, as Node's persist queue does.
func (l *life) write() {
	q := l.raft.queue
	joined, count := &raftlog.Batch{}, 0
	for i := range q {
		b := q[i].batch
		if b.Base != nil || b.Intent != nil || b.Reset {
			if i == 0 {
				joined, count = b, 1
			}
			break
		}
		joined.Entries = append(joined.Entries, b.Entries...)
		if b.Hard != nil {
			joined.Hard = b.Hard
		}
		count++
	}
	if err := l.writeBatch(joined); err != nil {
		l.w.fail("%s: write raft log: %v", l.m.name, err)
		return
	}
	jobs := q[:count]
	l.raft.queue = q[count:]
	l.raft.writing = false
	for _, j := range jobs {
		j.done()
	}
	l.beginWrite()
}

// writeBatch writes a batch; one that only moves the commit index goes with the next.
func (l *life) writeBatch(b *raftlog.Batch) error {
	if l.onlyCommit(b) {
		l.raft.commit = b.Hard
		return nil
	}
	if b.Hard == nil && !b.Reset {
		b.Hard = l.raft.commit
	}
	l.raft.commit = nil
	return l.writeLog(b)
}

// onlyCommit tells whether a batch only moves the commit index: that is known again after a restart.
func (l *life) onlyCommit(b *raftlog.Batch) bool {
	if b.Base != nil || b.Intent != nil || len(b.Entries) > 0 || b.Hard == nil {
		return false
	}
	h := l.log.Hard()
	return h.GetTerm() == b.Hard.GetTerm() && h.GetVote() == b.Hard.GetVote()
}

// tendRaft runs once a second.
func (l *life) tendRaft() {
	l.tendClock()
	r := &l.raft
	if r.core == nil {
		return
	}
	st := r.core.Status()
	for _, id := range sortedIDs(r.snapSent) {
		at := r.snapSent[id]
		if _, waiting := r.core.Match(id); !waiting || st.Role != consensus.RoleLeader {
			delete(r.snapSent, id)
		} else if l.w.now-at > int64(10*time.Second) {
			delete(r.snapSent, id)
			r.core.SnapshotFailed(id)
		}
	}
	if st.Leader == 0 && !r.asking {
		l.askWhetherRemoved()
	}
	l.pump()
}

// stateNews is what a process tells others of the cluster.
type stateNews struct {
	leader       consensus.ID
	term, commit uint64
	conf         *raftpb.ConfState
	confIndex    uint64
}

func (l *life) news() stateNews {
	k := &l.know
	n := stateNews{leader: k.leader, term: k.term, commit: k.commit, conf: k.conf, confIndex: k.confIndex}
	if f := &l.duty.follow; l.raft.core == nil && !(f.began && (contains(k.conf.GetVoters(), f.peer) || contains(k.conf.GetVotersOutgoing(), f.peer))) {
		n.leader = 0 // what it has from another observer it does not pass on
	}
	return n
}

// askWhetherRemoved asks the others whether this member was removed while it was away.
func (l *life) askWhetherRemoved() {
	core := l.raft.core
	l.raft.asking = true
	open := 0
	var newest stateNews
	finish := func() {
		if open--; open > 0 {
			return
		}
		l.raft.asking = false
		if l.raft.core == core && newest.conf != nil && newest.confIndex > core.ConfIndex() && !contains(consensus.Members(newest.conf), l.id) {
			l.leaveRaft(newest.conf, newest.confIndex)
		}
	}
	for _, id := range consensus.Members(core.Conf()) {
		if id == l.id {
			continue
		}
		open++
		l.callRaft(id, 5*time.Second, func(at *life, reply func(any)) { reply(at.news()) }, func(a any, err error) {
			if n, ok := a.(stateNews); ok && err == nil && n.confIndex > newest.confIndex {
				newest = n
			}
			finish()
		})
	}
	if open == 0 {
		l.raft.asking = false
	}
}

// learn takes news of leader, commit and voters.
func (l *life) learn(leader consensus.ID, term, commit uint64, conf *raftpb.ConfState, confIndex uint64) {
	k := &l.know
	if conf != nil && (k.conf == nil || confIndex > k.confIndex || confIndex == k.confIndex && len(k.conf.GetVoters()) == 0) {
		k.conf, k.confIndex = conf, confIndex
	}
	if l.raft.core == nil && term < k.term {
		leader = 0 // an old leader
	}
	k.term, k.commit = max(k.term, term), max(k.commit, commit)
	l.setLeader(leader)
}

func (l *life) setLeader(leader consensus.ID) {
	k := &l.know
	if k.leader == leader {
		return
	}
	k.leader = leader
	if leader == 0 {
		k.lostSince = l.w.now
		return
	}
	k.noQuorum = false
	if leader == l.id {
		l.duty.ledSince = l.w.now
	}
	l.w.after(0, l, l.redispatch)
	l.w.after(0, l, l.report)
}

// joinsWith tells whether an observer that comes to a configuration has to join raft.
func (l *life) joinsWith(index uint64, conf *raftpb.ConfState) bool {
	if !contains(consensus.Members(conf), l.id) {
		return false
	}
	return l.know.confIndex <= index || contains(consensus.Members(l.know.conf), l.id)
}

// joinRaft makes an observer a member of raft, with a log that begins at base.
func (l *life) joinRaft(base raftlog.Base) {
	if l.raft.core != nil {
		return
	}
	l.duty.follow.began = false
	hard := l.raft.hard
	l.persist(&raftlog.Batch{Base: &base, Reset: true}, func() {
		if l.raft.core != nil {
			return
		}
		l.w.tell("%s joins raft at %d", l.m.name, base.Index)
		if err := l.newCore(&raftlog.State{Identity: raftlog.Identity{ID: l.id}, Hard: hard, Base: base}); err != nil {
			l.w.fail("%s joins raft at %d: %v", l.m.name, base.Index, err)
		}
	})
}

// leaveRaft makes a removed member an observer.
func (l *life) leaveRaft(conf *raftpb.ConfState, confIndex uint64) {
	r := &l.raft
	r.hard, r.core, r.leaving, r.role = r.core.Hard(), nil, false, consensus.RoleObserver
	l.setLeader(0)
	base := raftlog.Base{Index: l.apply.synced, Conf: conf}
	l.w.tell("%s leaves raft", l.m.name)
	l.persist(&raftlog.Batch{Base: &base, Reset: true, Hard: r.hard}, func() {})
	l.know.conf, l.know.confIndex = conf, max(confIndex, l.know.confIndex)
}

// appliedRaft tells the core that its entries are applied.
func (l *life) appliedRaft(core *consensus.Core, last uint64) {
	if l.raft.core != core {
		return
	}
	core.Applied(last)
	if l.raft.leaving && !l.apply.pendingOf(core) && !contains(consensus.Members(core.Conf()), l.id) {
		l.leaveRaft(core.Conf(), core.ConfIndex())
		return
	}
	l.pump()
}

// snapshot is a state on its way.
type snapshot struct {
	base raftlog.Base
	data []byte
	err  error
}

// fetchSnapshot replaces the state by a peer's. The log learns of it before it begins.
func (l *life) fetchSnapshot(from consensus.ID, done func(raftlog.Base, error)) {
	l.callRaft(from, 30*time.Second, func(at *life, reply func(any)) { reply(at.takeSnapshot()) }, func(a any, err error) {
		s, _ := a.(snapshot)
		if err == nil {
			err = s.err
		}
		if err != nil {
			done(raftlog.Base{}, err)
			return
		}
		base := s.base
		l.persist(&raftlog.Batch{Intent: &base}, func() {
			l.enqueue(applyJob{restore: &s, done: func(err error) {
				if err == nil {
					l.restoredObserver(base)
				}
				done(base, err)
			}})
		})
	})
}

func (l *life) takeSnapshot() snapshot {
	r, index, err := l.db.Snapshot()
	if err != nil {
		return snapshot{err: err}
	}
	defer r.Close()
	base, ok := l.feed.at(index)
	if !ok || base.Term == 0 || base.Conf == nil {
		return snapshot{err: errRefused}
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		return snapshot{err: err}
	}
	return snapshot{base: base, data: b.Bytes()}
}

func (l *life) restoredObserver(base raftlog.Base) {
	if l.raft.core != nil {
		return // raft writes its own
	}
	l.persist(&raftlog.Batch{Base: &base, Reset: true}, func() {})
	l.learn(l.know.leader, l.know.term, l.know.commit, base.Conf, base.Index)
	if l.joinsWith(base.Index, base.Conf) {
		l.joinRaft(base)
	}
}

func sortedIDs[V any](m map[consensus.ID]V) []consensus.ID {
	ids := make([]consensus.ID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	sortSlice(ids)
	return ids
}
