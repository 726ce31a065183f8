package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

// proposer gives proposals their identity and proposes each until its outcome is known: what package node does above the
// consensus, and consensus.Node above its core.
type proposer struct {
	l       *life
	self    meta.Lease
	next    uint64
	pending map[uint64]bool // sequences not answered yet
	waiters map[uint64]*waiter
	lastSeq uint64
	puts    []*smallPush
	waiting []func() // for the next incarnation
}

var (
	errNoQuorum = errors.New("sim: no quorum")
	errUnknown  = errors.New("sim: outcome unknown")
	errFenced   = errors.New("sim: not let in by the cluster")
)

// waiter is one proposal under way.
type waiter struct {
	l       *life
	p       consensus.Proposal
	cb      func(meta.Result, error)
	over    bool
	reached bool
	again   int64
	born    int64
}

const (
	proposeAgain   = 3 * time.Second
	proposeRefused = 100 * time.Millisecond
	proposeTimeout = 30 * time.Second
	leaderLost     = 4 * time.Second
)

func (w *waiter) finish(res meta.Result, err error) {
	if w.over {
		return
	}
	w.over = true
	delete(w.l.proposer.waiters, w.p.Seq)
	w.cb(res, err)
}

func (w *waiter) fail(err error) {
	if w.reached {
		err = fmt.Errorf("%w: %w", err, errUnknown)
	}
	w.finish(meta.Result{}, err)
}

// order has bytes ordered, once or more often, and gives the result of their apply here.
func (l *life) order(data []byte, cb func(meta.Result, error)) {
	p := &l.proposer
	if l.know.noQuorum {
		l.w.after(0, l, func() { cb(meta.Result{}, errNoQuorum) })
		return
	}
	p.lastSeq++
	w := &waiter{l: l, cb: cb, born: l.w.now, p: consensus.Proposal{Origin: l.id, Run: l.run, Seq: p.lastSeq, Data: data}}
	p.waiters[w.p.Seq] = w
	l.w.after(proposeTimeout, l, func() { w.finish(meta.Result{}, fmt.Errorf("%w: no answer", errUnknown)) })
	w.dispatch()
}

// dispatch sends a proposal to the leader, if one is known.
func (w *waiter) dispatch() {
	l := w.l
	if w.over {
		return
	}
	leader := l.know.leader
	w.again = l.w.now + int64(proposeAgain)
	if leader == l.id {
		w.reached = true
		l.w.after(0, l, func() { l.offer(w.p, l) })
		return
	}
	to := l.peer(leader)
	if leader == 0 || to == nil || to.life == nil || l.w.isCut(l.m, to) {
		w.again = l.w.now + int64(proposeRefused)
		return
	}
	w.reached = true
	p := w.p
	l.w.post(l, to, func(at *life) {
		if at.admits(l) {
			at.offer(p, l)
		}
	})
}

// offer proposes what has arrived, or refuses.
func (l *life) offer(p consensus.Proposal, from *life) {
	var err error = consensus.ErrNotLeader
	if l.raft.core != nil {
		err = l.raft.core.Propose(l.now(), []consensus.Proposal{p})
	}
	if err == nil {
		l.w.oracle.stamped(l, l.now())
		l.pump()
		return
	}
	l.w.post(l, from.m, func(at *life) {
		if w := at.proposer.waiters[p.Seq]; w != nil && p.Run == at.run {
			w.again = at.w.now + int64(proposeRefused)
		}
	})
}

func (l *life) sortedWaiters() []*waiter {
	var list []*waiter
	for _, w := range l.proposer.waiters {
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b *waiter) int { return int(a.p.Seq) - int(b.p.Seq) })
	return list
}

func (l *life) redispatch() {
	for _, w := range l.sortedWaiters() {
		w.dispatch()
	}
}

// tendProposals proposes again what has no answer, and gives up when there is no leader.
func (l *life) tendProposals() {
	k := &l.know
	if k.leader == 0 && !k.noQuorum && l.quorumLost() {
		k.noQuorum = true
	}
	for _, w := range l.sortedWaiters() {
		switch {
		case k.noQuorum:
			w.fail(errNoQuorum)
		case k.leader != 0 && l.w.now > w.again:
			w.dispatch()
		}
	}
}

func (l *life) quorumLost() bool {
	lost := l.w.now - l.know.lostSince
	if lost >= int64(leaderLost) {
		return true
	}
	for _, w := range l.proposer.waiters {
		if lost >= int64(leaderLost)/2 && l.w.now-w.born >= int64(leaderLost)+int64(leaderLost)/16 {
			return true
		}
	}
	return false
}

// propose orders an operation under this process's incarnation. One that was refused because the incarnation had ended is made
// again under the next: it was not applied.
func (l *life) propose(op meta.Op, cb func(meta.Result, error)) { l.proposeTry(op, 0, cb) }

func (l *life) proposeTry(op meta.Op, try int, cb func(meta.Result, error)) {
	p := &l.proposer
	lease := p.self
	if lease.Incarnation == 0 {
		l.awaitBoot(func(err error) {
			if err != nil {
				cb(meta.Result{}, err)
				return
			}
			l.proposeTry(op, try, cb)
		})
		return
	}
	l.once(op, func(res meta.Result, err error) {
		if err != nil || !res.Fenced || try == 5 {
			cb(res, err)
			return
		}
		again := func(waitErr error) {
			if waitErr != nil {
				cb(res, err)
				return
			}
			l.proposeTry(op, try+1, cb)
		}
		if p.self != lease {
			again(nil)
			return
		}
		l.awaitBoot(again)
	})
}

// awaitBoot waits for the next incarnation.
func (l *life) awaitBoot(cb func(error)) {
	over := false
	end := func(err error) {
		if !over {
			over = true
			cb(err)
		}
	}
	l.proposer.waiting = append(l.proposer.waiting, func() { end(nil) })
	l.w.after(5*time.Second, l, func() { end(fmt.Errorf("%w: %w", errFenced, errNoQuorum)) })
}

// beginIncarnation starts sequences again.
func (p *proposer) beginIncarnation(incarnation uint32) {
	if incarnation <= p.self.Incarnation {
		return
	}
	p.self.Incarnation = incarnation
	p.next, p.pending = 1, map[uint64]bool{}
	waiting := p.waiting
	p.waiting = nil
	for _, f := range waiting {
		p.l.w.after(0, p.l, f)
	}
}

// once proposes under one incarnation, for as long as the outcome is not known; the caller is told that after a while.
func (l *life) once(op meta.Op, cb func(meta.Result, error)) {
	p := &l.proposer
	lease, seq := p.self, p.next
	p.next++
	p.pending[seq] = true
	acked := seq - 1
	for s := range p.pending {
		acked = min(acked, s-1)
	}
	data := meta.EncodeEntry(meta.Entry{Node: lease.Node, Incarnation: lease.Incarnation, Seq: seq, Acked: acked, Generation: meta.FirstGeneration, Op: op})
	settle := func() {
		if p.self == lease {
			delete(p.pending, seq)
		}
	}
	l.order(data, func(res meta.Result, err error) {
		if errors.Is(err, errUnknown) {
			cb(res, err)
			l.resolve(data, time.Second, func(res meta.Result) {
				settle()
				if pub, ok := op.(*meta.Publish); ok && res.Errno != 0 {
					l.abort(pub.Session)
				}
			})
			return
		}
		settle()
		cb(res, err)
	})
}

// resolve proposes the same bytes until their outcome is known.
func (l *life) resolve(data []byte, wait time.Duration, settle func(meta.Result)) {
	l.w.after(wait, l, func() {
		l.order(data, func(res meta.Result, err error) {
			if err == nil {
				settle(res)
				return
			}
			l.resolve(data, min(2*wait, proposeTimeout), settle)
		})
	})
}

// proposeAnonymous orders an operation that is harmless to repeat.
func (l *life) proposeAnonymous(op meta.Op, cb func(meta.Result, error)) {
	l.order(meta.EncodeEntry(meta.Entry{Node: l.m.node, Generation: meta.FirstGeneration, Op: op}), cb)
}
