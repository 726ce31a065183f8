package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// following is the stream of entries of an observer, here as polls.
type following struct {
	busy       bool
	peer       consensus.ID
	failures   int
	skipLast   bool
	began      bool
	leaderless int64 // when a peer without a leader was first seen
	next       uint64
}

// followNews answers a poll.
type followNews struct {
	entries   []consensus.Committed
	truncated bool
	state     stateNews
}

// pollEntries bounds the entries of an answer.
const pollEntries = 64

// poll asks for entries, if this is an observer.
func (l *life) poll() {
	f := &l.duty.follow
	if l.raft.core != nil || f.busy || len(l.raft.queue) > 0 && l.raft.writing {
		return
	}
	if !f.began {
		peer, ok := l.followable()
		if !ok {
			return
		}
		f.peer, f.began = peer, true
		l.apply.session++
		f.next = l.apply.applied + 1
		if l.feed.last()+1 == l.apply.applied && !f.skipLast {
			f.next = l.apply.applied // of an earlier life: its term is wanted
		}
	}
	if len(l.apply.jobs) > 0 {
		return
	}
	next, session := max(f.next, l.feed.last()+1), l.apply.session
	f.busy = true
	l.callRaft(f.peer, 3*time.Second, func(at *life, reply func(any)) { reply(at.follow(next)) }, func(a any, err error) {
		f.busy = false
		n, ok := a.(followNews)
		switch {
		case l.raft.core != nil || session != l.apply.session:
		case err != nil || !ok:
			l.leavePeer()
		default:
			l.followed(n, next)
		}
	})
}

func (l *life) leavePeer() {
	f := &l.duty.follow
	f.began, f.leaderless = false, 0
	f.failures++
	l.setLeader(0)
}

// followable picks the voter to follow.
func (l *life) followable() (consensus.ID, bool) {
	var ids []consensus.ID
	ids = append(ids, l.know.conf.GetVoters()...)
	for _, id := range l.know.conf.GetVotersOutgoing() {
		if !contains(ids, id) {
			ids = append(ids, id)
		}
	}
	f := &l.duty.follow
	if len(ids) == 0 || f.failures > 2*len(ids) {
		for _, id := range append(consensus.Members(l.know.conf), l.knownPeers()...) {
			if !contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	ids = slices.DeleteFunc(ids, func(id consensus.ID) bool { return id == l.id })
	if len(ids) == 0 {
		return 0, false
	}
	slices.SortFunc(ids, func(a, b consensus.ID) int { return cmp.Compare(mix(a^l.id), mix(b^l.id)) })
	return ids[f.failures%len(ids)], true
}

// knownPeers are the nodes of the log, and before this one is let in those that its join named.
func (l *life) knownPeers() []consensus.ID {
	var out []consensus.ID
	letIn := false
	for _, n := range l.book {
		letIn = letIn || n.ID == l.m.node && n.Store == l.m.store
		if n.Store != ([16]byte{}) && n.ID != l.m.node {
			out = append(out, raftID(n.ID, n.Store))
		}
	}
	if !letIn {
		for _, m := range l.w.machines {
			if m != l.m && !m.gone && !contains(out, m.raftID) {
				out = append(out, m.raftID)
			}
		}
	}
	return out
}

func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x * 0xc4ceb9fe1a85ec53
}

// follow answers a poll.
func (l *life) follow(next uint64) followNews {
	list, ok := l.feed.after(next, pollEntries)
	return followNews{entries: list, truncated: !ok, state: l.news()}
}

// followed takes an answer.
func (l *life) followed(n followNews, asked uint64) {
	f := &l.duty.follow
	l.learn(n.state.leader, n.state.term, n.state.commit, n.state.conf, n.state.confIndex)
	if n.truncated {
		l.followTruncated(asked)
		return
	}
	if len(n.entries) > 0 {
		if !l.feed.push(n.entries) {
			l.leavePeer()
			return
		}
		l.enqueue(applyJob{entries: n.entries, session: l.apply.session})
	}
	if contains(consensus.Members(n.state.conf), l.id) {
		l.enqueue(applyJob{state: &n.state, session: l.apply.session})
	}
	l.checkLeaderless(n.state)
	if f.began {
		f.failures = 0
	}
}

func (l *life) followTruncated(asked uint64) {
	f := &l.duty.follow
	if asked <= l.apply.applied { // only the term of the last entry was wanted
		f.skipLast = true
		l.feed.reset(raftlog.Base{Index: l.apply.applied, Conf: l.know.conf})
		l.leavePeer()
		return
	}
	f.busy = true
	session := l.apply.session
	l.fetchSnapshot(f.peer, func(_ raftlog.Base, err error) {
		f.busy = false
		if session == l.apply.session {
			l.leavePeer()
			if err == nil {
				f.failures = 0
			}
		}
	})
}

// checkLeaderless leaves a peer that knows no leader: at once if it is no voter, else after a while.
func (l *life) checkLeaderless(s stateNews) {
	f := &l.duty.follow
	if s.leader != 0 {
		f.leaderless = 0
		return
	}
	voter := contains(s.conf.GetVoters(), f.peer) || contains(s.conf.GetVotersOutgoing(), f.peer)
	if f.leaderless == 0 {
		f.leaderless = l.w.now
	}
	if !voter || l.w.now-f.leaderless > int64(time.Second) {
		l.leavePeer()
	}
}
