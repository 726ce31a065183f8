package consensus

import (
	"context"
	"fmt"
	"net"
	"time"
)

const (
	lagLook    = 50 * time.Millisecond
	lagMin     = 200 * time.Millisecond
	lagMax     = silenceMax
	followNext = 500 * time.Millisecond // a voter that has not answered a hello by then is no longer waited for alone
	followTry  = 3                      // voters that are dialled in one round

	lagSlow      = 1500 * time.Millisecond // what is due must come within, from a voter that sends little
	lagSlowMax   = time.Minute
	lagSlowBytes = 64 << 10 // a second: one that sends as much is not slow, there is much to send
)

// lagJudge finds a voter that does not send what others say is committed. It counts the time in which nothing comes.
// A voter that sends is kept while it sends much, or what was wanted comes in a while: one that only trickles leaves
// its followers further and further behind.
type lagJudge struct {
	patience time.Duration
	since    time.Time // since when nothing has come that is due; zero if nothing is due
	next     uint64    // entry that was due at that time
	got      uint64    // bytes that had come

	slow      time.Duration
	goal      uint64    // index that was wanted at goalSince
	goalSince time.Time // counts while something is due
	goalGot   uint64    // bytes that had come
}

// late looks at a stream: an index that is wanted, the entry that is due next, and the bytes that have come so far.
func (j *lagJudge) late(now time.Time, wanted, next, got uint64) bool {
	if wanted < next {
		j.since = time.Time{}
		return false
	}
	if j.since.IsZero() || next > j.goal {
		j.goal, j.goalSince, j.goalGot = wanted, now, got
	}
	if j.since.IsZero() || next != j.next || got > j.got {
		j.since, j.next, j.got = now, next, got
		return j.trickles(now, got)
	}
	return now.Sub(j.since) >= j.patience
}

// trickles reports whether what was wanted some time ago is still due, and little has come since.
func (j *lagJudge) trickles(now time.Time, got uint64) bool {
	took := now.Sub(j.goalSince)
	return j.slow > 0 && took >= j.slow && float64(got-j.goalGot) < lagSlowBytes*took.Seconds()
}

// slowPatience is how long what is due may take from a voter that trickles: longer over a slow link, and after
// changes that did not help.
func slowPatience(hello time.Duration, changes int) time.Duration {
	return min(max(lagSlow, 8*hello)<<min(changes, 6), lagSlowMax)
}

// lagPatience is how long nothing may come: longer over a link that took long for a hello, and after changes that did
// not help.
func lagPatience(hello time.Duration, changes int) time.Duration {
	return min(max(lagMin, hello)<<min(max(changes-1, 0), 5), lagMax)
}

// watchLag ends a follow stream that lags.
func (ob *observer) watchLag(ctx context.Context, t *followTarget) {
	j := lagJudge{patience: lagPatience(t.hello, t.changes), slow: slowPatience(t.hello, int(ob.lagged.Load()))}
	look := time.NewTicker(lagLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wanted:
		}
		for due := true; due; {
			wanted, next := ob.wantedIndex(), ob.n.feed.next()
			if ob.n.applyQ.full() {
				j.since = time.Time{} // it is this node that is slow
			} else if j.late(time.Now(), wanted, next, t.stream.got.Load()) {
				ob.n.log.Info("the voter that is followed lags", "peer", fmt.Sprintf("%x", t.peer), "has", next-1, "wanted", wanted)
				ob.lagged.Add(1)
				t.cancel()
				return
			}
			if due = wanted >= next; !due {
				ob.lagged.Store(0)
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
		}
	}
}

func (ob *observer) wantedIndex() uint64 {
	ob.n.mu.Lock()
	defer ob.n.mu.Unlock()
	return ob.n.reporter.wanted
}

// remindBarrier sends a barrier's index to the nodes that the barrier waits for. A node that has not got that index
// looks for another voter.
func (rp *reporter) remindBarrier(b *barrier) {
	rp.n.mu.Lock()
	defer rp.n.mu.Unlock()
	for id := range b.pending {
		if s := rp.n.state.inbound[id]; s != nil {
			s.send(frameWant, func(to []byte) []byte { return appendNumber(to, b.index) })
		}
	}
}

// tellCommitted has the leader tell observers how far the log is, and all that are connected that it can't be written,
// if that is so.
func (rp *reporter) tellCommitted() {
	rp.n.mu.Lock()
	index, leads := rp.n.state.commit, rp.n.state.leader == rp.n.id
	rp.n.mu.Unlock()
	if leads {
		rp.want(index)
		rp.tellReadOnly()
	}
}

// tellReadOnly tells all that are connected to this node, the leader, that it can't write its log.
func (rp *reporter) tellReadOnly() {
	rp.n.mu.Lock()
	defer rp.n.mu.Unlock()
	s := &rp.n.state
	if s.readOnly == nil {
		return
	}
	list := []report{{id: rp.n.id, applied: s.applied, synced: s.synced, visible: s.visible, flags: reportReadOnly}}
	for to := range s.streams {
		to.send(frameReports, func(b []byte) []byte { return appendReports(b, list) })
	}
}

// helloAnswer is what came of a dial.
type helloAnswer struct {
	conn net.Conn
	peer ID
	took time.Duration
	err  error
}

// openFirst dials peers in their order, the next one when the last has failed or has not answered in a while. The
// first that answers is taken.
func (ob *observer) openFirst(ctx context.Context, peers []ID, purpose uint8) helloAnswer {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan helloAnswer)
	dial := func(peer ID) {
		began := time.Now()
		conn, err := ob.n.greeter.dial(ctx, peer, purpose)
		a := helloAnswer{conn: conn, peer: peer, took: time.Since(began), err: err}
		select {
		case answers <- a:
		case <-ctx.Done():
			if err == nil {
				_ = conn.Close()
			}
		}
	}
	defer cancel()
	next := time.NewTimer(followNext)
	defer next.Stop()
	last := helloAnswer{err: errNoLink}
	for dialled, open := 0, 0; dialled < len(peers) || open > 0; {
		var more <-chan time.Time
		if dialled < len(peers) {
			peer := peers[dialled]
			ob.n.wg.Go(func() { dial(peer) })
			dialled, open = dialled+1, open+1
			next.Reset(followNext)
			more = next.C
		}
		select {
		case last = <-answers:
			if open--; last.err == nil {
				return last
			}
		case <-more:
		case <-ctx.Done():
			return helloAnswer{err: ctx.Err()}
		}
	}
	return last
}
