package consensus

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// A follower begins with a proof of what it has: the index it has applied, and the digest of its state there. A voter whose directory was
// put back to an older copy goes on with another history under the same indexes; who has the first one must not follow it in silence.

var errDiverged = errors.New("consensus: the peer has another history")

// proof is what a follower has.
type proof struct {
	applied uint64
	known   bool
	digest  [16]byte
}

// appendProof appends this node's proof: applied u64, known u8, digest.
func (n *Node) appendProof(b []byte) []byte {
	n.mu.Lock()
	p := proof{applied: n.state.applied}
	n.mu.Unlock()
	if n.cfg.Digest != nil {
		p.digest, p.known = n.cfg.Digest(p.applied)
	}
	known := byte(0)
	if p.known {
		known = 1
	}
	return append(append(appendU64s(b, p.applied), known), p.digest[:]...)
}

func (r *reader) proof() (p proof) {
	p.applied, p.known = r.u64(), r.u8() == 1
	copy(p.digest[:], r.take(len(p.digest)))
	return p
}

// divergence says why a follower's history is another one than this node's, "" if nothing speaks for that.
func (n *Node) divergence(peer ID, p proof) string {
	const what = "one of the two was put back to an older copy of its data directory. Change nothing before you know which one is right: " +
		"stop both, keep a copy of each, start the one that is to stay, evict the other and join it again with an empty directory"
	if last, alone := n.lastAlone(); alone && p.applied > last {
		return fmt.Sprintf("node %d has applied log index %d, and the log of node %d, the only voter, ends at %d: %s", peer>>32, p.applied, n.id>>32, last, what)
	}
	if !p.known || n.cfg.Digest == nil {
		return ""
	}
	if own, ok := n.cfg.Digest(p.applied); ok && own != p.digest {
		return fmt.Sprintf("nodes %d and %d have different states at log index %d: %s", peer>>32, n.id>>32, p.applied, what)
	}
	return ""
}

// lastAlone is the end of the log of a leader that is the only voter: nothing can have been committed beyond it. One that does not lead
// yet may not know of other voters: it is given time.
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

// noteDiverged remembers for status what is between this node and a peer; "" is nothing.
func (n *Node) noteDiverged(peer ID, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if why == "" {
		delete(n.state.diverged, peer)
		return
	}
	if n.state.diverged[peer] == "" {
		n.log.Error("histories differ", "peer", fmt.Sprintf("%x", peer), "why", why)
	}
	n.state.diverged[peer] = why
}
