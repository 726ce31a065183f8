package consensus

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// A follower begins with a proof of what it has: the index it has applied, term and time of the last entry there, and
// the digest of its state. A voter whose directory was put back to an older copy goes on with another history under
// the same indexes; who has the first one must not follow it in silence. Terms and times are in the log, and the time
// of the last entry is in the state: they are compared also when both have been started again and know no old digest
// any more.

var errDiverged = errors.New("consensus: the peer has another history")

// proof is what a follower has.
type proof struct {
	applied   uint64
	term      uint64 // of the entry there, 0 if not known
	timeNanos int64  // of the last proposal up to there, 0 if not known: no two proposals of a log have the same
	known     bool   // the digest is
	digest    [16]byte
}

// ownProof is what this node has.
func (n *Node) ownProof() proof {
	n.mu.Lock()
	p := proof{applied: n.state.applied}
	n.mu.Unlock()
	if base, ok := n.feed.at(p.applied); ok {
		p.term, p.timeNanos = base.Term, base.Time
	}
	if n.cfg.LogTime != nil && p.timeNanos == 0 {
		if at := n.cfg.LogTime(); n.cfg.StateMachine.Applied() == p.applied { // the time is that of this index
			p.timeNanos = at
		}
	}
	p.digest, p.known = n.digestAt(p.applied)
	return p
}

// append appends the proof: applied u64, term u64, time u64, known u8, digest.
func (p *proof) append(b []byte) []byte {
	known := byte(0)
	if p.known {
		known = 1
	}
	return append(append(appendU64s(b, p.applied, p.term, uint64(p.timeNanos)), known), p.digest[:]...)
}

// digestAt is the digest of the state at an index, if it is known. That of a state that is known to be wrong says
// nothing about histories.
func (n *Node) digestAt(index uint64) (digest [16]byte, ok bool) {
	if n.cfg.Digest == nil {
		return digest, false
	}
	digest, ok = n.cfg.Digest(index)
	if n.rebuilding() != nil || n.cfg.Wrong != nil && n.cfg.Wrong() != nil {
		return [16]byte{}, false
	}
	return digest, ok
}

func (r *reader) proof() (p proof) {
	p.applied, p.term, p.timeNanos, p.known = r.u64(), r.u64(), int64(r.u64()), r.u8() == 1
	copy(p.digest[:], r.take(len(p.digest)))
	return p
}

// divergence says why a follower's history is another one than this node's and what to do, "" if nothing speaks for
// that.
func (n *Node) divergence(peer ID, p proof) string {
	why := ""
	if last, alone := n.lastAlone(); alone && p.applied > last {
		why = fmt.Sprintf("node %d has applied log index %d, and the log of node %d, the only voter, ends at %d", peer>>32, p.applied, n.id>>32, last)
	} else if why = n.divergenceOfLog(peer, p); why == "" {
		why = n.divergenceOfDigest(peer, p)
	}
	if why == "" {
		return ""
	}
	return fmt.Sprintf("%s: one of the two was put back to an older copy of its data directory. Node %[2]d takes nothing of node %[3]d: it shows what it had, and can't "+
		"change anything. If there is a newer copy of the directory of node %[3]d, stop that node and put the newer copy back. Else copy what only node %[2]d shows out "+
		"of its mount; then stop it, run 'rdmcfs evict' for it on node %[3]d, and join it again with an empty data directory", why, peer>>32, n.id>>32)
}

// divergenceOfLog compares the follower's last entry with the one of the same index in this node's log, if that still
// reaches back so far.
func (n *Node) divergenceOfLog(peer ID, p proof) string {
	own, ok := n.feed.at(p.applied)
	if !ok || p.applied == 0 {
		return ""
	}
	differs := own.Term > 0 && p.term > 0 && own.Term != p.term || own.Time > 0 && p.timeNanos > 0 && own.Time != p.timeNanos
	if !differs || n.rebuilding() != nil {
		return ""
	}
	return fmt.Sprintf("nodes %d and %d have different entries at log index %d", peer>>32, n.id>>32, p.applied)
}

// divergenceOfDigest compares digests of the states at the follower's index.
func (n *Node) divergenceOfDigest(peer ID, p proof) string {
	if !p.known {
		return ""
	}
	if own, ok := n.digestAt(p.applied); ok && own != p.digest {
		return fmt.Sprintf("nodes %d and %d have different states at log index %d", peer>>32, n.id>>32, p.applied)
	}
	return ""
}

// lastAlone is the end of the log of a leader that is the only voter: nothing can have been committed beyond it. One
// that does not lead yet may not know of other voters: it is given time.
func (n *Node) lastAlone() (last uint64, alone bool) {
	for began := time.Now(); n.ctx.Err() == nil && time.Since(began) < leaderlessMax; { // the follower waits no longer either
		got := make(chan uint64, 1)
		n.box.event(func() {
			core := n.loop.core
			switch {
			case core == nil || len(votersOf(core.Conf())) != 1:
				got <- math.MaxUint64
			case core.Status().Role == RoleLeader:
				got <- core.last
			default:
				got <- 0
			}
		})
		select {
		case last = <-got:
		case <-n.ctx.Done():
			return 0, false
		}
		if last > 0 {
			return last, last != math.MaxUint64
		}
		n.pause(nil, n.tune.Tick)
	}
	return 0, false
}

// divergent is a peer with another history.
type divergent struct {
	why   string
	known bool // the upper layer knew the peer: one that it does not know any more was evicted
}

// noteDiverged remembers for status what is between this node and a peer; "" is nothing.
func (n *Node) noteDiverged(peer ID, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if why == "" {
		delete(n.state.diverged, peer)
		return
	}
	d, old := n.state.diverged[peer]
	if !old {
		n.log.Error("histories differ", "peer", fmt.Sprintf("%x", peer), "why", why)
	}
	d.why = why
	n.state.diverged[peer] = d
}

// stillDiverged is what status says. It forgets peers that were evicted, or have joined under another id. A peer that
// was never known stays: the state that knew it may be what was put back.
func (n *Node) stillDiverged() (why string) {
	peers := n.peers()
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, d := range n.state.diverged {
		now := contains(peers, id) || contains(raftMembersOf(n.state.conf), id)
		if d.known && !now {
			delete(n.state.diverged, id)
			continue
		}
		d.known = d.known || now
		n.state.diverged[id] = d
		why = d.why
	}
	return why
}
