package consensus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

const leaderlessMax = time.Second // a voter that knows no leader for this long is left for another

// followTarget is the follow stream in use.
type followTarget struct {
	peer   ID
	stream *stream
	cancel context.CancelFunc
	begun  bool // the stream's request is sent: the peer takes reports
	// wanted gets a signal when somebody wants an index of this node; buffered 1.
	wanted  chan struct{}
	hello   time.Duration // that its connection took
	changes int           // peers that were left before it, none of which brought anything new
}

var errTruncated = errors.New("consensus: the log does not reach back to what is needed")

var errLastGone = errors.New("consensus: the last applied entry is not in the peer's log any more")

var errNoLeaderThere = errors.New("consensus: peer is no voter and knows no leader")

// observer follows the log while this node is no member of raft: it takes committed entries from one voter, and turns
// to another when that one lags or is silent. It belongs to one goroutine, except where a comment says otherwise.
type observer struct {
	n        *Node
	skipLast bool          // the voters' logs do not have the last applied entry any more: it is not asked for
	left     time.Time     // when the last follow stream ended
	session  atomic.Uint64 // counts follow streams
	lagged   atomic.Int32  // voters that were left because they lag, since all that was wanted was here
}

// run keeps an observer's stream of committed entries, from one voter or the next.
func (ob *observer) run() {
	failures, changes := 0, 0
	for ob.n.ctx.Err() == nil {
		ob.n.mu.Lock()
		observer, changed := ob.n.state.role == RoleObserver, ob.n.state.changed
		ob.n.mu.Unlock()
		if !observer {
			select {
			case <-ob.n.ctx.Done():
			case <-changed:
			}
			continue
		}
		peers := ob.followables(failures)
		if len(peers) == 0 {
			ob.n.pause(changed, redialMax)
			continue
		}
		began, had := time.Now(), ob.n.feed.next()
		peer, err := ob.follow(peers[:min(followTry, len(peers))], changes)
		if errors.Is(err, errTruncated) {
			_, err = ob.n.fetchSnapshot(ob.n.ctx, peer)
		}
		if err == nil {
			failures, changes = 0, 0
			continue
		}
		if ob.n.feed.next() > had || time.Since(began) > 5*time.Second {
			failures, changes = ob.turn(failures), 0
		}
		failures += max(slices.Index(peers, peer), 0) + 1 // the next one is another
		changes++
		ob.n.log.Debug("follow", "peer", fmt.Sprintf("%x", peer), "error", err)
		ob.n.pause(nil, min(redialMin<<min(changes-1, 6), redialMax))
	}
}

// turn is the count of failures at which the same peer is followed, as if none of the others had failed.
func (ob *observer) turn(failures int) int {
	ob.n.mu.Lock()
	defer ob.n.mu.Unlock()
	return failures % max(len(core.VotersOf(ob.n.state.conf)), 1)
}

func (n *Node) pause(changed <-chan struct{}, d time.Duration) {
	select {
	case <-n.ctx.Done():
	case <-changed:
	case <-time.After(d):
	}
}

// followables are the peers to follow, the first one first: each observer has its own order of the voters, so that
// they share the work.
func (ob *observer) followables(failures int) []ID {
	ob.n.mu.Lock()
	// what was a learner then may be a voter now
	ids, others := core.VotersOf(ob.n.state.conf), core.MembersOf(ob.n.state.conf)
	ob.n.mu.Unlock()
	if voters := len(ids); voters == 0 || failures > 2*voters {
		for _, id := range append(others, ob.n.peers()...) {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	ids = slices.DeleteFunc(ids, func(id ID) bool { return id == ob.n.id || id == 0 })
	if len(ids) == 0 {
		return nil
	}
	slices.SortFunc(ids, func(a, b ID) int { return cmp.Compare(mix(a^ob.n.id), mix(b^ob.n.id)) })
	first := failures % len(ids)
	return append(ids[first:len(ids):len(ids)], ids[:first]...)
}

// peers are the nodes that the upper layer knows.
func (n *Node) peers() []ID {
	if n.cfg.Peers == nil {
		return nil
	}
	return n.cfg.Peers()
}

// mix spreads the bits of x.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x * 0xc4ceb9fe1a85ec53
}

// followSession is one follow stream while it is read.
type followSession struct {
	n             *Node
	ctx           context.Context
	peer          ID
	number        uint64
	applied, next uint64      // when it began
	leaderless    *time.Timer // ends the stream; it runs while the peer knows no leader
	led           bool        // the peer has said that it knows one
	// member is news that this node is in raft, though it has seen no entry that says so.
	member *clusterState
}

// follow takes entries from the first of the peers that answers, until the stream ends. It returns which one that was.
func (ob *observer) follow(peers []ID, changes int) (ID, error) {
	ctx, cancel := context.WithCancel(ob.n.ctx)
	defer cancel()
	a := ob.openFirst(ctx, peers, purposeFollow)
	if a.err != nil {
		return a.peer, a.err
	}
	s := newStream(a.conn, a.peer)
	defer s.close()
	s.silence = min(followSilence<<min(changes, 4), silenceMax)
	stop := context.AfterFunc(ctx, func() { _ = a.conn.Close() })
	defer stop()
	target := &followTarget{peer: a.peer, stream: s, cancel: cancel, wanted: make(chan struct{}, 1), hello: a.took,
		changes: changes}
	if !ob.setFollower(target) {
		return a.peer, nil
	}
	defer ob.leave()
	if time.Since(ob.left) > ob.n.tune.electionMax() {
		ob.n.proposals.hopeAgain()
	}
	return a.peer, ob.followStream(ctx, target)
}

// followStream asks for entries and takes them.
func (ob *observer) followStream(ctx context.Context, target *followTarget) error {
	applied, err := ob.queuedApplied(ctx)
	if err != nil {
		return err
	}
	f := &followSession{n: ob.n, ctx: ctx, peer: target.peer, number: ob.session.Add(1), applied: applied,
		next:       applied + 1,
		leaderless: time.AfterFunc(leaderlessMax, target.cancel)}
	defer f.leaderless.Stop()
	if ob.n.feed.next() == applied && !ob.skipLast {
		f.next = applied // of an earlier life: its term is wanted
	}
	ob.begin(target, f.next)
	ob.n.reporter.reportAll()
	ob.n.wg.Go(func() { ob.watchLag(ctx, target) })
	signal(target.wanted) // it may be behind from the start
	for {
		kind, body, err := target.stream.read()
		if err == nil {
			err = f.handle(kind, body)
		}
		if err != nil {
			return err
		}
		if kind == frameEntries {
			target.stream.silence = followSilence // the link can do that: what was allowed after failures is over
		}
	}
}

// begin asks the peer for entries from next on.
func (ob *observer) begin(t *followTarget, next uint64) {
	ask := followCall{next, ob.n.histories.ownProof(ob.n.appliedIndex())}
	t.stream.send(frameFollow, func(b []byte) []byte { return appendBody(b, &ask) })
	ob.n.mu.Lock()
	defer ob.n.mu.Unlock()
	t.begun = true
}

func (f *followSession) handle(kind uint8, body []byte) error {
	n := f.n
	switch kind {
	case frameDiverged:
		why := whyText(body)
		n.histories.note(f.peer, why)
		return fmt.Errorf("%w: %s", errDiverged, why)
	case frameEntries:
		n.histories.note(f.peer, "")
		if err := n.observer.take(f.ctx, body, f.number); err != nil {
			return err
		}
		if f.member != nil {
			n.applyQ.add(applyJob{state: f.member, session: f.number})
			f.member = nil
		}
		return nil
	case frameState:
		return f.learn(body)
	case frameReports:
		return n.reporter.take(body)
	case frameWant:
		return n.reporter.wantFrame(body)
	case frameTruncated:
		if f.next > f.applied {
			return errTruncated
		}
		n.observer.skipLast = true // the log begins right after: no need of that entry
		n.feed.reset(raftlog.Base{Index: f.applied, Conf: n.conf()})
		return errLastGone
	default:
		return fmt.Errorf("%w: type %d from a follow stream", errFrame, kind)
	}
}

// learn takes news of leader and voters. A peer that knows no leader is left: at once if it is no voter, else after a
// while.
func (f *followSession) learn(body []byte) error {
	state, err := decode[clusterState](body)
	if err != nil {
		return err
	}
	switch {
	case state.leader != 0:
		f.leaderless.Stop()
	case f.led:
		f.leaderless.Reset(leaderlessMax) // later news that there is none changes nothing: a candidate sends some
	}
	f.led = state.leader != 0
	f.n.learn(state, RoleObserver)
	if slices.Contains(core.MembersOf(state.conf), f.n.id) {
		f.member = &state
	}
	if state.leader == 0 && !slices.Contains(core.VotersOf(state.conf), f.peer) {
		return errNoLeaderThere
	}
	return nil
}

// setFollower notes the follow stream; it returns false if this node is no observer any more. The nodes that follow
// this node get the news, as it may know no leader now.
func (ob *observer) setFollower(t *followTarget) bool {
	ob.n.mu.Lock()
	defer ob.n.mu.Unlock()
	ob.n.state.follower = t
	close(ob.n.state.changed)
	ob.n.state.changed = make(chan struct{})
	if t == nil && ob.n.state.role == RoleObserver {
		ob.n.setLeaderLocked(0)
	}
	return ob.n.state.role == RoleObserver
}

// leave ends the use of a follow stream.
func (ob *observer) leave() {
	ob.setFollower(nil)
	ob.left = time.Now()
}

// queuedApplied returns the applied index once all that is queued now is applied.
func (ob *observer) queuedApplied(ctx context.Context) (uint64, error) {
	where := make(chan uint64, 1)
	ob.n.applyQ.add(applyJob{where: where})
	select {
	case index := <-where:
		return index, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// take hands entries that a voter has sent to the applier, and waits while the applier has much to do.
func (ob *observer) take(ctx context.Context, body []byte, session uint64) error {
	list, err := decode[entryList](body)
	if err != nil || len(list) == 0 {
		return err
	}
	if !ob.n.feed.push(list, true) {
		return fmt.Errorf("%w: follow stream sends %d, %d is due", errGap, list[0].Index, ob.n.feed.next())
	}
	full := ob.n.applyQ.add(applyJob{entries: list, session: session})
	for full && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ob.n.applyQ.room:
			full = ob.n.applyQ.full()
		}
	}
	return nil
}
