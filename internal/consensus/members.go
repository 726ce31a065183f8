package consensus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

const (
	catchUpEntries = 64 // a learner this close to the commit index becomes a voter
	catchUpMax     = 10 * time.Minute
	confStepMax    = 30 * time.Second
	confPoll       = 20 * time.Millisecond
	holdMax        = 3 * time.Second // how long proposals wait for a change of voters, at most
	outsidersAsked = 8               // nodes that are no members of raft, as far as is known, in one round
)

// voterChanges is the leader's part of changes of voters: its policy asks for them, and so do callers of
// [Node.ChangeVoters]. One is made at a time.
type voterChanges struct {
	n        *Node
	policy   chan struct{} // buffered 1: the policy looks now
	changing bool          // one is under way; protected by the node's lock
}

// learn takes news of leader, term, commit and voters, from this node's raft or from the voter it follows. Role ""
// means: the role is unchanged, and the news is only of the configuration.
func (n *Node) learn(s clusterState, role Role) {
	n.mu.Lock()
	st := &n.state
	leaderChanged, changed := false, false
	if s.conf != nil && (st.conf == nil || s.confIndex > st.confIndex ||
		s.confIndex == st.confIndex && len(st.conf.GetVoters()) == 0) {
		st.conf, st.confIndex, changed = s.conf, s.confIndex, true
	}
	if role != "" {
		if role == RoleObserver && st.role != RoleObserver && n.loopHasCore() {
			n.mu.Unlock() // late news of a follow stream that has ended
			return
		}
		changed = changed || st.role != role
		st.role = role
		st.term, st.commit = max(st.term, s.term), max(st.commit, s.commit)
		if s.term < st.term && role == RoleObserver {
			s.leader = 0 // an old leader
		}
		if leaderChanged = st.leader != s.leader; leaderChanged {
			n.setLeaderLocked(s.leader)
		}
	}
	if changed || leaderChanged {
		close(st.changed)
		st.changed = make(chan struct{})
	}
	leader := st.leader
	n.mu.Unlock()
	if changed || leaderChanged {
		n.updateLinks()
	}
	if leaderChanged && leader != 0 {
		n.log.Info("leader", "id", fmt.Sprintf("%x", leader), "term", s.term, "self", leader == n.id)
		n.proposals.dispatchAll()
		n.reporter.reportAll()
		signal(n.voters.policy)
	}
}

// loopHasCore reports whether this node is a raft member, as far as the lock's holder can know.
func (n *Node) loopHasCore() bool { return n.raftMember.Load() }

func (n *Node) setLeaderLocked(leader ID) {
	st := &n.state
	if st.leader == leader {
		return
	}
	st.leader = leader
	now := time.Now()
	switch leader {
	case 0:
		st.lostSince = now
	case n.id:
		st.ledSince, st.noQuorum = now, false
	default:
		st.noQuorum = false
	}
}

// joinsWith reports whether an observer that has applied the log up to an index has to join raft by a configuration: it
// is in that configuration, and not known to be out of raft again.
func (n *Node) joinsWith(applied, confIndex uint64, conf *raftpb.ConfState) bool {
	if !slices.Contains(core.MembersOf(conf), n.id) {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return applied >= n.state.inRaft &&
		(n.state.confIndex <= confIndex || slices.Contains(core.MembersOf(n.state.conf), n.id))
}

// outside is where the log on the disk begins if a node takes no part in raft. A base whose configuration includes the
// node would claim that what the node has acknowledged as a member lies behind it. The empty base claims no more than
// the log of a new node.
func outside(id ID, base raftlog.Base) raftlog.Base {
	if slices.Contains(core.MembersOf(base.Conf), id) {
		return raftlog.Base{Conf: &raftpb.ConfState{}}
	}
	return base
}

// join makes an observer a member of raft, with a log that begins at base: all before it is applied and synced.
// It runs in the loop.
func (rl *raftLoop) join(base raftlog.Base) {
	if rl.core != nil {
		return
	}
	rl.n.raftMember.Store(true)
	rl.n.mu.Lock()
	rl.n.state.role = RoleLearner
	if f := rl.n.state.follower; f != nil {
		f.cancel()
	}
	rl.n.mu.Unlock()
	hard := rl.hard
	rl.n.persist.add(persistJob{batch: &raftlog.Batch{Base: &base, Reset: true}, done: func() {
		if rl.core != nil {
			return
		}
		if err := rl.newCore(&raftlog.State{Identity: rl.n.cfg.Identity, Hard: hard, Base: base}); err != nil {
			rl.n.fail(fmt.Errorf("consensus: join raft at %d: %w", base.Index, err))
		}
	}})
}

// leave makes a removed member an observer. Its hard state stays in the log: should it come back, it remembers its
// vote, and how far it knew the log to be committed, with the entry that removed it. It runs in the loop.
func (rl *raftLoop) leave(conf *raftpb.ConfState, confIndex uint64) {
	was := rl.core.Hard()
	rl.hard = &raftpb.HardState{Term: new(was.GetTerm()), Vote: new(was.GetVote()),
		Commit: new(max(was.GetCommit(), confIndex))}
	rl.core, rl.leaving = nil, false
	rl.failReads(ErrNotLeader)
	rl.n.mu.Lock()
	rl.n.state.inRaft = rl.hard.GetCommit()
	base := raftlog.Base{Index: rl.n.state.synced, Conf: conf}
	rl.n.state.role = RoleObserver
	rl.n.setLeaderLocked(0)
	rl.n.mu.Unlock()
	rl.n.raftMember.Store(false)
	rl.n.log.Info("this node is no voter any more: it follows")
	rl.n.persist.add(persistJob{batch: &raftlog.Batch{Base: &base, Reset: true, Hard: rl.hard}, done: func() {}})
	rl.n.learn(clusterState{conf: conf, confIndex: confIndex}, "")
	rl.n.mu.Lock()
	close(rl.n.state.changed)
	rl.n.state.changed = make(chan struct{})
	rl.n.mu.Unlock()
	rl.n.updateLinks()
}

// askWhetherRemoved asks the others which nodes are in raft. This member may have been removed while it was away, and
// raft does not tell the members it has removed. Or others may be new, and this member would not let them in. It runs
// in the loop.
func (rl *raftLoop) askWhetherRemoved() {
	n, c := rl.n, rl.core
	rl.asking = true
	peers, known := otherThan(n.id, core.MembersOf(c.Conf())), c.ConfIndex()
	n.wg.Go(func() {
		ctx, cancel := context.WithTimeout(n.ctx, 5*time.Second)
		defer cancel()
		newest := newestConf(ctx, n, peers)
		if newest.confIndex <= known { // all that this member knows may have been replaced
			others := slices.DeleteFunc(otherThan(n.id, n.peers()), func(id ID) bool { return slices.Contains(peers, id) })
			rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
			newest = newestConf(ctx, n, others[:min(len(others), outsidersAsked)])
		}
		rl.n.box.event(func() {
			rl.asking = false
			if rl.core != c || newest.conf == nil || newest.confIndex < c.ConfIndex() {
				return
			}
			if slices.Contains(core.MembersOf(newest.conf), n.id) {
				n.learn(clusterState{conf: newest.conf, confIndex: newest.confIndex}, "") // the leader may be new
			} else if !c.AddedAfter(newest.commit) {
				rl.leave(newest.conf, newest.confIndex)
			}
		})
	})
}

// newestConf asks nodes for the voters, all at once, and returns the newest answer.
func newestConf(ctx context.Context, n *Node, ids []ID) (newest clusterState) {
	answers := make(chan clusterState, len(ids))
	for _, id := range ids {
		n.wg.Go(func() {
			var s clusterState
			body, err := askState(ctx, n, id)
			if err == nil {
				s, _ = decode[clusterState](body)
			}
			answers <- s
		})
	}
	for range ids {
		if s := <-answers; s.confIndex > newest.confIndex {
			newest = s
		}
	}
	return newest
}

// ChangeVoters adds and removes voters in one step: new ones catch up as learners first, then joint consensus. It can
// be called on any node; the leader does it. ErrConfChange: another change is under way, or this one makes no sense.
func (n *Node) ChangeVoters(ctx context.Context, add, remove []ID) error {
	if _, err := n.askLeader(ctx, callVoters, appendBody(nil, &votersCall{add, remove}), false); err != nil {
		return fmt.Errorf("consensus: change voters: %w", err)
	}
	return nil
}

// MembersChanged makes the leader run the voter policy now.
func (n *Node) MembersChanged() { signal(n.voters.policy) }

// runPolicy keeps the voters as the policy wants them, while this node leads.
func (v *voterChanges) runPolicy() {
	n := v.n
	every := time.NewTicker(n.tune.PolicyInterval)
	defer every.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-v.policy:
		case <-every.C:
		}
		if n.cfg.Members == nil || !n.leads() {
			continue
		}
		n.mu.Lock()
		conf, busy := n.state.conf, v.changing || len(n.state.conf.GetVotersOutgoing()) > 0
		n.mu.Unlock()
		if busy {
			continue
		}
		plan := core.PlanVoters(n.cfg.Members(), conf.GetVoters(), conf.GetLearners(), n.id, n.tune.DeadVoterAfter)
		if plan.Empty() {
			continue
		}
		n.log.Info("voters change", "add", hexIDs(plan.Add), "remove", hexIDs(plan.Remove))
		if err := v.changeVoters(n.ctx, plan.Add, plan.Remove); err != nil && n.ctx.Err() == nil {
			n.log.Warn("voters change", "error", err)
		}
	}
}

func hexIDs(ids []ID) []string {
	var list []string
	for _, id := range ids {
		list = append(list, fmt.Sprintf("%x", id))
	}
	return list
}

func (n *Node) leads() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.leader == n.id
}

// changeVoters is the leader's part of ChangeVoters.
func (v *voterChanges) changeVoters(ctx context.Context, add, remove []ID) error {
	n := v.n
	conf, err := v.beginChange(add, remove)
	if err != nil {
		return err
	}
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		v.changing = false
	}()
	var learners []*raftpb.ConfChangeSingle
	for _, id := range add {
		if !slices.Contains(core.MembersOf(conf), id) {
			learners = append(learners, core.Change(raftpb.ConfChangeAddLearnerNode, id))
		}
	}
	if len(learners) > 0 {
		if err := v.proposeConf(ctx, conf, learners); err != nil {
			return err
		}
	}
	if err := v.waitCaughtUp(ctx, add); err != nil {
		return errors.Join(err, v.dropLearners(add))
	}
	was := conf
	if conf = n.conf(); !slices.Equal(conf.GetVoters(), was.GetVoters()) {
		return fmt.Errorf("%w: another leader has changed the voters meanwhile", ErrConfChange)
	}
	var swap []*raftpb.ConfChangeSingle
	for _, id := range add {
		if !slices.Contains(conf.GetVoters(), id) {
			swap = append(swap, core.Change(raftpb.ConfChangeAddNode, id))
		}
	}
	for _, id := range remove {
		if slices.Contains(core.MembersOf(conf), id) {
			swap = append(swap, core.Change(raftpb.ConfChangeRemoveNode, id))
		}
	}
	if len(swap) == 0 {
		return nil
	}
	if err := v.proposeConf(ctx, conf, swap); err != nil {
		return errors.Join(err, v.dropLearners(add))
	}
	return nil
}

// dropLearners takes learners out again that do not become voters.
func (v *voterChanges) dropLearners(ids []ID) error {
	n := v.n
	if n.ctx.Err() != nil || !n.leads() {
		return nil
	}
	var drop []*raftpb.ConfChangeSingle
	conf := n.conf()
	for _, id := range ids {
		if slices.Contains(conf.GetLearners(), id) {
			drop = append(drop, core.Change(raftpb.ConfChangeRemoveNode, id))
		}
	}
	if len(drop) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(n.ctx, confStepMax)
	defer cancel()
	return v.proposeConf(ctx, conf, drop)
}

func (n *Node) conf() *raftpb.ConfState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.conf
}

// beginChange judges a change and keeps others out. It returns the configuration that it has judged by.
func (v *voterChanges) beginChange(add, remove []ID) (*raftpb.ConfState, error) {
	n := v.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state.leader != n.id {
		return nil, ErrNotLeader
	}
	if v.changing || len(n.state.conf.GetVotersOutgoing()) > 0 {
		return nil, fmt.Errorf("%w: another one is under way", ErrConfChange)
	}
	voters := append([]ID(nil), n.state.conf.GetVoters()...)
	for _, id := range add {
		if id == 0 || slices.Contains(remove, id) {
			return nil, fmt.Errorf("%w: node %x can't be added", ErrConfChange, id)
		}
		if !slices.Contains(voters, id) {
			voters = append(voters, id)
		}
	}
	left := 0
	for _, id := range voters {
		if !slices.Contains(remove, id) {
			left++
		}
	}
	if left < 1 || left > 7 {
		return nil, fmt.Errorf("%w: it would leave %d voters", ErrConfChange, left)
	}
	v.changing = true
	return n.state.conf, nil
}

// votersAfter are the voters once changes of a configuration are in force.
func votersAfter(conf *raftpb.ConfState, changes []*raftpb.ConfChangeSingle) []ID {
	voters := slices.Clone(conf.GetVoters())
	for _, c := range changes {
		id := c.GetNodeId()
		if c.GetType() != raftpb.ConfChangeAddNode {
			voters = slices.DeleteFunc(voters, func(v ID) bool { return v == id })
		} else if !slices.Contains(voters, id) {
			voters = append(voters, id)
		}
	}
	return voters
}

// inForce reports whether a configuration is the one that changes lead to, and not halfway to it.
func inForce(conf *raftpb.ConfState, changes []*raftpb.ConfChangeSingle) bool {
	for _, c := range changes {
		is := slices.Contains(core.MembersOf(conf), c.GetNodeId())
		switch c.GetType() {
		case raftpb.ConfChangeAddNode:
			is = slices.Contains(conf.GetVoters(), c.GetNodeId())
		case raftpb.ConfChangeAddLearnerNode:
			is = slices.Contains(conf.GetLearners(), c.GetNodeId())
		case raftpb.ConfChangeRemoveNode:
			is = !is
		}
		if !is {
			return false
		}
	}
	return len(conf.GetVotersOutgoing()) == 0
}

// proposeConf proposes a change that was judged by a configuration, and waits until it is in force. The index of the
// configuration says nothing about that: it also moves with the beginning of the log.
func (v *voterChanges) proposeConf(
	ctx context.Context, judged *raftpb.ConfState, changes []*raftpb.ConfChangeSingle,
) error {
	n := v.n
	ctx, cancel := context.WithTimeout(ctx, confStepMax)
	defer cancel()
	if err := v.giveConfInTime(ctx, judged, changes); err != nil {
		return err
	}
	for {
		n.mu.Lock()
		changed, conf, leads := n.state.changed, n.state.conf, n.state.leader == n.id
		n.mu.Unlock()
		if inForce(conf, changes) {
			return nil
		}
		if !leads {
			return ErrNotLeader
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: not in force: %w", ErrConfChange, ctx.Err())
		case <-n.ctx.Done():
			return n.stopped()
		}
	}
}

// giveConfInTime gives a change to raft as soon as it is not too early. If it changes who votes, other proposals wait
// for it meanwhile: that takes a round of the log. A state that takes longer must not hold up nodes that can do without
// this one.
func (v *voterChanges) giveConfInTime(
	ctx context.Context, judged *raftpb.ConfState, changes []*raftpb.ConfChangeSingle,
) error {
	n := v.n
	poll := time.NewTicker(confPoll)
	defer poll.Stop()
	defer n.box.event(func() { n.loop.hold(false) })
	var held time.Time
	for {
		err := v.giveConf(judged, changes)
		if errors.Is(err, errHolding) && held.IsZero() {
			held = time.Now()
		}
		if !errors.Is(err, core.ErrEarly) || !held.IsZero() && time.Since(held) > holdMax {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return err
		case <-n.ctx.Done():
			return n.stopped()
		}
	}
}

// giveConf gives a change to raft, which may find it too early. What was judged by another configuration than the
// present one may be wrong now: a new leader applies what others have left only after it was elected. New voters are
// judged by the state that the change comes right after: a node that is evicted after the change is evicted as a voter.
func (v *voterChanges) giveConf(judged *raftpb.ConfState, changes []*raftpb.ConfChangeSingle) error {
	n := v.n
	answer := make(chan error, 1)
	n.box.event(func() {
		if n.loop.core == nil || n.loop.core.Status().Role != RoleLeader {
			answer <- ErrNotLeader
			return
		}
		if !core.SameConf(n.loop.core.Conf(), judged) {
			answer <- fmt.Errorf("%w: the voters have changed meanwhile", ErrConfChange)
			return
		}
		if voters := votersAfter(judged, changes); !slices.Equal(voters, judged.GetVoters()) {
			if !n.loop.core.Settled() {
				n.loop.hold(true)
				answer <- errHolding
				return
			}
			if n.cfg.Members != nil && !core.FitToVote(n.cfg.Members(), voters, judged.GetVoters(), n.id) {
				answer <- fmt.Errorf("%w: a new voter is not up, or those that are up are no quorum", ErrConfChange)
				return
			}
		}
		answer <- n.loop.core.ProposeConf(changes)
	})
	select {
	case err := <-answer:
		return err
	case <-n.ctx.Done():
		return n.stopped()
	}
}

// waitCaughtUp waits until learners have nearly all of the log, as long as it moves: one that died as it was added must
// not hold up the next change.
func (v *voterChanges) waitCaughtUp(ctx context.Context, ids []ID) error {
	n := v.n
	ctx, cancel := context.WithTimeout(ctx, catchUpMax)
	defer cancel()
	poll := time.NewTicker(confPoll)
	defer poll.Stop()
	var last catchUp
	moved := time.Now()
	for {
		answer := make(chan catchUp, 1)
		n.box.event(func() { answer <- v.caughtUp(ids) })
		select {
		case now := <-answer:
			if now.done {
				return nil
			}
			if now.has != last.has || now.snapshot {
				last, moved = now, time.Now()
			}
		case <-n.ctx.Done():
			return n.stopped()
		}
		if !n.leads() {
			return ErrNotLeader
		}
		if time.Since(moved) > n.tune.LearnerStill {
			return fmt.Errorf("%w: new voters don't catch up: no progress for %v", ErrConfChange, n.tune.LearnerStill)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: new voters don't catch up: %w", ErrConfChange, ctx.Err())
		case <-n.ctx.Done():
			return n.stopped()
		}
	}
}

// catchUp is how far learners are.
type catchUp struct {
	done     bool
	has      uint64 // entries that they have, all together
	snapshot bool   // one is being sent the state itself
}

// caughtUp runs in the loop.
func (v *voterChanges) caughtUp(ids []ID) catchUp {
	n := v.n
	c := n.loop.core
	if c == nil {
		return catchUp{}
	}
	now, commit := catchUp{done: true}, c.Status().Commit
	for _, id := range ids {
		if id == n.id {
			continue
		}
		match, snapshot := c.Match(id)
		now.has += match
		now.snapshot = now.snapshot || snapshot
		if match == 0 || match+catchUpEntries < commit {
			now.done = false
		}
	}
	return now
}
