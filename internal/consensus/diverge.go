package consensus

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
)

// A follower begins with a proof of what it has: the index it has applied, the term and time of the last entry there,
// and the digest of its state. A voter whose directory was put back to an older copy continues with another history
// under the same indexes. A node that has the first history must not follow it silently. Terms and times are in the
// log, and the time of the last entry is in the state: they are compared even if both nodes have been restarted and
// know no old digest any more.

var errDiverged = errors.New("consensus: the peer has another history")

// proof is what a follower has.
type proof struct {
	applied   uint64
	term      uint64 // of the entry there, 0 if not known
	timeNanos int64  // of the last proposal up to there, 0 if not known: no two proposals of a log have the same
	known     bool   // the digest is
	digest    [16]byte
}

// histories compares this node's history with those of its followers, and remembers which differ.
type histories struct {
	id        ID
	cfg       *Config
	log       *slog.Logger
	feed      *feed
	wrong     func() error                  // why the state is known to be wrong
	lastAlone func() (last uint64, ok bool) // the end of the log of a leader that is the only voter

	mu    sync.Mutex
	peers map[ID]divergent // the peers with another history
}

func newHistories(n *Node) *histories {
	return &histories{
		id: n.id, cfg: &n.cfg, log: n.log, feed: n.feed, wrong: n.replacer.why, lastAlone: n.lastAlone,
		peers: map[ID]divergent{},
	}
}

// forget forgets the differences: the state was replaced.
func (hs *histories) forget() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	clear(hs.peers)
}

// ownProof is what this node has, which has applied that index.
func (hs *histories) ownProof(applied uint64) proof {
	p := proof{applied: applied}
	if base, ok := hs.feed.at(p.applied); ok {
		p.term, p.timeNanos = base.Term, base.Time
	}
	if hs.cfg.LogTime != nil && p.timeNanos == 0 {
		if at := hs.cfg.LogTime(); hs.cfg.StateMachine.Applied() == p.applied { // the time is that of this index
			p.timeNanos = at
		}
	}
	p.digest, p.known = hs.digestAt(p.applied)
	return p
}

func (p *proof) code(c *fields) {
	c.U64(&p.applied)
	c.U64(&p.term)
	c.I64(&p.timeNanos)
	c.Flag(&p.known)
	c.Fixed(p.digest[:])
}

// digestAt is the digest of the state at an index, if it is known. That of a state that is known to be wrong says
// nothing about histories.
func (hs *histories) digestAt(index uint64) (digest [16]byte, ok bool) {
	if hs.cfg.Digest == nil {
		return digest, false
	}
	digest, ok = hs.cfg.Digest(index)
	if hs.wrong() != nil || hs.cfg.Wrong != nil && hs.cfg.Wrong() != nil {
		return [16]byte{}, false
	}
	return digest, ok
}

// divergence says why a follower's history is another one than this node's and what to do, "" if nothing speaks for
// that.
func (hs *histories) divergence(peer ID, p proof) string {
	why := ""
	if last, alone := hs.lastAlone(); alone && p.applied > last {
		why = fmt.Sprintf("node %d has applied log index %d, and the log of node %d, the only voter, ends at %d", peer>>32,
			p.applied, hs.id>>32, last)
	} else if why = hs.divergenceOfLog(peer, p); why == "" {
		why = hs.divergenceOfDigest(peer, p)
	}
	if why == "" {
		return ""
	}
	return fmt.Sprintf("%s: one of the two was put back to an older copy of its data directory. %s. If there is a newer "+
		"copy of the directory of node %[3]d, stop that node and put the newer copy back. Else %[4]s", why,
		keepsText(peer, hs.id), hs.id>>32, againText(peer, hs.id))
}

// keepsText says what becomes of a node that takes nothing of another one.
func keepsText(keeps, of ID) string {
	return fmt.Sprintf("Node %d takes nothing of node %d: it shows what it had, and can't change anything", keeps>>32,
		of>>32)
}

// againText says how a node gives up its own history for that of another one.
func againText(again, stays ID) string {
	return fmt.Sprintf("copy what only node %[1]d shows out of its mount; then stop it, run 'rdmcfs evict' for it on "+
		"node %[2]d, and join it again with an empty data directory", again>>32, stays>>32)
}

// ofVoter notes that another member of raft has a different history, and returns what to tell it now and then.
func (hs *histories) ofVoter(d *core.DivergedError) string {
	has := "different entries from"
	if d.Count > 0 {
		has = fmt.Sprintf("%d committed entries that node %d does not have, from", d.Count, d.Peer>>32)
	}
	why := fmt.Sprintf("node %[1]d has %[2]s log index %[3]d on: a voter was put back to an older copy of its data "+
		"directory, and node %[4]d has gone on from there. %[5]s. If there is a newer copy of the directory of the voter "+
		"that was put back, stop that node and put the newer copy back. To go on with what node %[4]d has, %[6]s. To go on "+
		"with what node %[1]d has instead, see 'rdmcfs recover'", hs.id>>32, has, d.Index, d.Peer>>32,
		keepsText(hs.id, d.Peer), againText(hs.id, d.Peer))
	hs.note(d.Peer, why)
	hs.mu.Lock()
	defer hs.mu.Unlock()
	e := hs.peers[d.Peer]
	if time.Since(e.told) < toldEvery {
		return ""
	}
	e.told = time.Now()
	hs.peers[d.Peer] = e
	return why
}

// toldEvery is how often a member is told that it has another history.
const toldEvery = time.Second

// whyText is the text of a frame that says so.
func whyText(body []byte) string { return string(body[:min(len(body), 2000)]) }

// divergenceOfLog compares the follower's last entry with the one of the same index in this node's log, if that still
// reaches back so far.
func (hs *histories) divergenceOfLog(peer ID, p proof) string {
	own, ok := hs.feed.at(p.applied)
	if !ok || p.applied == 0 {
		return ""
	}
	otherTerm := own.Term > 0 && p.term > 0 && own.Term != p.term
	otherTime := own.Time > 0 && p.timeNanos > 0 && own.Time != p.timeNanos
	if !otherTerm && !otherTime || hs.wrong() != nil {
		return ""
	}
	return fmt.Sprintf("nodes %d and %d have different entries at log index %d", peer>>32, hs.id>>32, p.applied)
}

// divergenceOfDigest compares digests of the states at the follower's index.
func (hs *histories) divergenceOfDigest(peer ID, p proof) string {
	if !p.known {
		return ""
	}
	if own, ok := hs.digestAt(p.applied); ok && own != p.digest {
		return fmt.Sprintf("nodes %d and %d have different states at log index %d", peer>>32, hs.id>>32, p.applied)
	}
	return ""
}

// lastAlone is the end of the log of a leader that is the only voter: nothing can have been committed beyond it. One
// that does not lead yet may not know of other voters: it is given time.
func (n *Node) lastAlone() (last uint64, alone bool) {
	// the follower waits no longer either
	for began := time.Now(); n.ctx.Err() == nil && time.Since(began) < leaderlessMax; {
		got := make(chan uint64, 1)
		n.box.event(func() {
			c := n.loop.core
			switch {
			case c == nil || len(core.VotersOf(c.Conf())) != 1:
				got <- math.MaxUint64
			case c.Status().Role == RoleLeader:
				got <- c.LastHanded()
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
	known bool      // the upper layer knew the peer: one that it does not know any more was evicted
	told  time.Time // when the peer was told last
}

// note remembers for status what is between this node and a peer; "" is nothing.
func (hs *histories) note(peer ID, why string) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if why == "" {
		delete(hs.peers, peer)
		return
	}
	d, old := hs.peers[peer]
	if !old {
		hs.log.Error("histories differ", "peer", fmt.Sprintf("%x", peer), "why", why)
	}
	d.why = why
	hs.peers[peer] = d
}

// still returns what status reports about peers that are known here. It forgets peers that were evicted, or have joined
// under another id. A peer that was never known stays: the state that knew it may be what was put back.
func (hs *histories) still(peers []ID, conf *raftpb.ConfState) (why string) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(hs.peers))) { // of several, the first node is named
		d := hs.peers[id]
		now := slices.Contains(peers, id) || slices.Contains(core.MembersOf(conf), id)
		if d.known && !now {
			delete(hs.peers, id)
			continue
		}
		d.known = d.known || now
		hs.peers[id] = d
		why = d.why
	}
	return why
}
