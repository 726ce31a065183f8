package sim

import (
	"slices"
	"syscall"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

// duties is what a process does for the cluster, most of it while it leads.
type duties struct {
	ledSince  int64
	expired   int64
	booting   bool
	entered   bool // the first boot was proposed
	follow    following
	change    *voterChange
	downSince map[meta.NodeID]int64
	proposing map[meta.NodeID]bool
	recording bool
	barriers  []*barrier
	final     bool // the log refused this node for good
	reporting bool
}

// progress is how far a node is, as the leader has heard.
type progress struct {
	visible  uint64
	lastSeen int64
}

const (
	leaseTime      = 3 * time.Second
	deadVoterAfter = 8 * time.Second // 10 min in truth
	barrierTimeout = 5 * time.Second
	staleAfter     = 3 * time.Second
)

// report tells the leader how far this process is.
func (l *life) report() {
	visible := l.apply.visible
	if l.know.leader == l.id {
		l.heard(l.id, visible)
		return
	}
	if to := l.peer(l.know.leader); to != nil {
		id := l.id
		l.w.post(l, to, func(at *life) { at.heard(id, visible) })
	}
}

func (l *life) heard(id consensus.ID, visible uint64) {
	p := l.progress[id]
	if p == nil {
		p = &progress{}
		l.progress[id] = p
	}
	p.visible, p.lastSeen = visible, l.w.now
	l.checkBarriers()
}

// barrier waits for nodes to show an index.
type barrier struct {
	index uint64
	nodes []consensus.ID
	born  int64
	asked bool // nodes is filled in
	reply func(any)
}

// barrier waits until each node that is up has made the index visible, and gives those that have not in time.
func (l *life) barrier(index uint64, cb func(behind []meta.NodeID, err error)) {
	l.report()
	leader := l.know.leader
	if leader == 0 {
		l.w.after(50*time.Millisecond, l, func() { cb(nil, errNoQuorum) })
		return
	}
	l.callRaft(leader, barrierTimeout+time.Second, func(at *life, reply func(any)) {
		if !at.leads() {
			reply(errRefused)
			return
		}
		b := &barrier{index: index, born: l.w.now, reply: reply}
		at.duty.barriers = append(at.duty.barriers, b)
		at.checkBarriers()
	}, func(a any, err error) {
		if e, ok := a.(error); ok {
			err = e
		}
		behind, _ := a.([]meta.NodeID)
		cb(behind, err)
	})
}

// checkBarriers answers the barriers that are reached or late.
func (l *life) checkBarriers() {
	l.duty.barriers = slices.DeleteFunc(l.duty.barriers, func(b *barrier) bool {
		if l.apply.applied < b.index { // only then it is known here who is up at that index
			late := l.w.now-b.born >= int64(barrierTimeout)
			if late {
				b.reply(errTimeout)
			}
			return late
		}
		for _, n := range l.book {
			if id := raftID(n.ID, n.Store); n.State == meta.NodeUp && !b.asked && !contains(b.nodes, id) {
				b.nodes = append(b.nodes, id)
			}
		}
		b.asked = true
		var behind []meta.NodeID
		stale := true
		for _, id := range b.nodes {
			p := l.progress[id]
			if id == l.id {
				p = &progress{visible: l.apply.visible, lastSeen: l.w.now}
			}
			if p != nil && p.visible >= b.index {
				continue
			}
			behind = append(behind, nodeOf(id))
			seen := l.duty.ledSince
			if p != nil {
				seen = max(seen, p.lastSeen)
			}
			stale = stale && l.w.now-seen >= int64(staleAfter)
		}
		if len(behind) > 0 && !stale && l.w.now-b.born < int64(barrierTimeout) {
			return false
		}
		l.w.tell("     %s: barrier at %d: nodes %v behind %v", l.m.name, b.index, nodesOf(b.nodes), behind)
		b.reply(behind)
		return true
	})
}

// doDuties is what the leader looks after.
func (l *life) doDuties() {
	l.checkBarriers()
	if !l.leads() {
		return
	}
	l.declareDown()
	l.recordVoters()
	if l.w.now-l.duty.expired >= int64(10*time.Second) {
		l.duty.expired = l.w.now
		l.proposeAnonymous(&meta.Expire{}, func(meta.Result, error) {})
	}
}

// declareDown proposes Down for nodes that have been silent.
func (l *life) declareDown() {
	d := &l.duty
	if l.w.now-d.ledSince < int64(leaseTime) {
		return
	}
	for _, n := range l.book {
		if n.ID == l.m.node || n.State != meta.NodeUp || d.proposing[n.ID] {
			continue
		}
		if p := l.progress[raftID(n.ID, n.Store)]; p != nil && l.w.now-p.lastSeen < int64(leaseTime) {
			continue
		}
		if d.proposing == nil {
			d.proposing = map[meta.NodeID]bool{}
		}
		d.proposing[n.ID] = true
		l.proposeAnonymous(&meta.Down{Node: n.ID, Incarnation: n.Incarnation, Reason: "silent"}, func(meta.Result, error) {
			delete(d.proposing, n.ID)
		})
	}
}

// recordVoters writes into the log who votes.
func (l *life) recordVoters() {
	if len(l.know.conf.GetVotersOutgoing()) > 0 || l.duty.recording {
		return
	}
	var want, have []meta.NodeID
	for _, id := range l.know.conf.GetVoters() {
		want = append(want, nodeOf(id))
	}
	for _, n := range l.book {
		if n.Voter {
			have = append(have, n.ID)
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	if slices.Equal(want, have) {
		return
	}
	l.duty.recording = true
	l.proposeAnonymous(&meta.SetVoters{Voters: want}, func(meta.Result, error) { l.duty.recording = false })
}

// voterChange is a change of the voters under way at the leader: learners first, then the swap.
type voterChange struct {
	core        *consensus.Core
	add, remove []consensus.ID
	step        int // 0 learners proposed, 1 catching up, 2 swap proposed, 3 learners being dropped
	began       int64
	before      uint64 // index of the configuration when a step was proposed
}

// planVoters keeps the voters as the policy wants them.
func (l *life) planVoters() {
	if !l.leads() {
		l.duty.change, l.duty.downSince = nil, nil
		return
	}
	l.trackDown()
	if c := l.duty.change; c != nil {
		l.continueChange(c)
		return
	}
	conf := l.raft.core.Conf()
	if len(conf.GetVotersOutgoing()) > 0 {
		return
	}
	plan := consensus.PlanVoters(l.consensusMembers(), conf.GetVoters(), l.id, deadVoterAfter)
	if plan.Empty() {
		return
	}
	l.w.stats.VoterChanges++
	l.w.tell("%s changes voters: +%v -%v", l.m.name, nodesOf(plan.Add), nodesOf(plan.Remove))
	c := &voterChange{core: l.raft.core, add: plan.Add, remove: plan.Remove, began: l.w.now}
	l.duty.change = c
	var learners []*raftpb.ConfChangeSingle
	for _, id := range c.add {
		if !contains(consensus.Members(conf), id) {
			learners = append(learners, confChange(raftpb.ConfChangeAddLearnerNode, id))
		}
	}
	if len(learners) == 0 {
		c.step = 1
		l.continueChange(c)
		return
	}
	l.proposeConf(c, 0, learners)
}

func nodesOf(ids []consensus.ID) (out []meta.NodeID) {
	for _, id := range ids {
		out = append(out, nodeOf(id))
	}
	return out
}

func confChange(kind raftpb.ConfChangeType, id consensus.ID) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(id)}
}

func (l *life) trackDown() {
	if l.duty.downSince == nil {
		l.duty.downSince = map[meta.NodeID]int64{}
	}
	for _, n := range l.book {
		if n.State == meta.NodeUp {
			delete(l.duty.downSince, n.ID)
		} else if _, ok := l.duty.downSince[n.ID]; !ok {
			l.duty.downSince[n.ID] = l.w.now
		}
	}
}

// consensusMembers is what the policy chooses from.
func (l *life) consensusMembers() []consensus.Member {
	var out []consensus.Member
	for _, n := range l.book {
		if n.Store == ([16]byte{}) || n.State != meta.NodeUp && n.State != meta.NodeDown {
			continue
		}
		m := consensus.Member{ID: raftID(n.ID, n.Store), Up: n.State == meta.NodeUp}
		if since, ok := l.duty.downSince[n.ID]; ok && !m.Up {
			m.DownFor = time.Duration(l.w.now - since)
		}
		out = append(out, m)
	}
	return out
}

// proposeConf begins a step; a leader that can't ends the change.
func (l *life) proposeConf(c *voterChange, step int, changes []*raftpb.ConfChangeSingle) {
	c.step, c.before = step, c.core.ConfIndex()
	if err := c.core.ProposeConf(changes); err != nil {
		l.duty.change = nil
		return
	}
	l.pump()
	l.w.after(50*time.Millisecond, l, func() {
		if l.duty.change == c {
			l.continueChange(c)
		}
	})
}

// continueChange looks whether the present step is done.
func (l *life) continueChange(c *voterChange) {
	if l.raft.core != c.core || !l.leads() {
		l.duty.change = nil
		return
	}
	conf := c.core.Conf()
	inForce := c.core.ConfIndex() > c.before && len(conf.GetVotersOutgoing()) == 0
	late := l.w.now-c.began > int64(20*time.Second)
	switch {
	case c.step == 0 && inForce:
		c.step = 1
	case c.step >= 2 && (inForce || late):
		l.duty.change = nil
		return
	case c.step == 1 && l.caughtUp(c.add):
		l.swap(c, conf)
		return
	case c.step == 1 && late:
		l.dropLearners(c, conf)
		return
	case late:
		l.duty.change = nil
		return
	}
	l.w.after(50*time.Millisecond, l, func() {
		if l.duty.change == c {
			l.continueChange(c)
		}
	})
}

func (l *life) swap(c *voterChange, conf *raftpb.ConfState) {
	var swap []*raftpb.ConfChangeSingle
	for _, id := range c.add {
		if !contains(conf.GetVoters(), id) {
			swap = append(swap, confChange(raftpb.ConfChangeAddNode, id))
		}
	}
	for _, id := range c.remove {
		if contains(consensus.Members(conf), id) {
			swap = append(swap, confChange(raftpb.ConfChangeRemoveNode, id))
		}
	}
	if len(swap) == 0 {
		l.duty.change = nil
		return
	}
	l.proposeConf(c, 2, swap)
}

func (l *life) dropLearners(c *voterChange, conf *raftpb.ConfState) {
	var drop []*raftpb.ConfChangeSingle
	for _, id := range c.add {
		if contains(conf.GetLearners(), id) {
			drop = append(drop, confChange(raftpb.ConfChangeRemoveNode, id))
		}
	}
	if len(drop) == 0 {
		l.duty.change = nil
		return
	}
	l.proposeConf(c, 3, drop)
}

func (l *life) caughtUp(ids []consensus.ID) bool {
	commit := l.raft.core.Status().Commit
	for _, id := range ids {
		if id == l.id {
			continue
		}
		if match, _ := l.raft.core.Match(id); match == 0 || match+64 < commit {
			return false
		}
	}
	return true
}

// enterCluster makes the first incarnation of this process; the founder makes the cluster first.
func (l *life) enterCluster() {
	if l.m.founder {
		if _, err := l.db.Node(l.m.node); err != nil {
			l.duty.booting = true
			l.proposeAnonymous(&meta.Join{Name: "node1", Addr: "node1"}, func(meta.Result, error) {
				l.duty.booting = false
				l.boot()
			})
			return
		}
	}
	l.boot()
}

// enterPatience is how long a start proposes one and the same boot; later ones go on until they are answered.
const enterPatience = 10 * time.Second

// boot proposes until the log has taken or refused this process.
func (l *life) boot() {
	d := &l.duty
	if d.booting || d.final {
		return
	}
	d.booting = true
	op := &meta.Boot{Node: l.m.node, Store: l.m.store, Addr: l.m.name, Nonce: l.w.rng.Uint64() | 1}
	first, began := !d.entered, l.w.now
	d.entered = true
	var try func()
	try = func() {
		l.proposeAnonymous(op, func(res meta.Result, err error) {
			switch {
			case err == nil && res.Errno == 0:
				d.booting = false
				l.ready = true
				l.w.tell("%s let in: incarnation %d at %d", l.m.name, res.Incarnation, res.Index)
				l.proposer.beginIncarnation(res.Incarnation)
			case err == nil && (res.Errno == syscall.EEXIST || res.Errno == syscall.EPERM):
				d.booting, d.final = false, true
				l.w.tell("%s refused for good: %v", l.m.name, res.Errno)
				l.end()
			case first && l.w.now-began > int64(enterPatience):
				d.booting = false // cut off: stayIn goes on
			default:
				l.w.after(200*time.Millisecond, l, try)
			}
		})
	}
	try()
}

// end stops the process for good, in its own time.
func (l *life) end() {
	l.w.after(100*time.Millisecond, l, func() {
		l.m.gone = true
		l.m.crash(false, "ended")
	})
}

// stayIn makes a new incarnation whenever the log has ended the current one.
func (l *life) stayIn() {
	n, err := l.db.Node(l.m.node)
	lease := l.proposer.self
	switch {
	case l.know.noQuorum || l.duty.booting || l.duty.final:
	case err == nil && n.State == meta.NodeUp && n.Incarnation == lease.Incarnation:
	case err == nil && n.Incarnation > lease.Incarnation && lease.Incarnation > 0:
		l.w.tell("%s: the log has incarnation %d, this process %d", l.m.name, n.Incarnation, lease.Incarnation)
		if l.overtaken.Cloned(l.w.time()) {
			l.w.oracle.cloned(l)
		}
		l.boot()
	default:
		l.boot()
	}
}
