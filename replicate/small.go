package replicate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
	"github.com/rdmcfs/rdmcfs/replicate/slow"
)

const (
	// askAgain is how often members that were lost and are needed are asked again.
	askAgain = time.Second
	// smallTick is how often the paces of puts are looked at.
	smallTick = 200 * time.Millisecond
)

// smallAnswer is what came of a put at one member, or of this node's own copy.
type smallAnswer struct {
	node meta.NodeID
	st   standing
	err  error
}

// small sends the bytes to each member in one call whose answer is the vote, and stores them here meanwhile.
func (s *pushSession) small(ctx context.Context) error {
	buf, err := s.readAll()
	if err != nil {
		return err
	}
	s.op.Root = contentRoot(buf)
	return s.putAll(ctx, putItem{Bytes: buf}, func(ctx context.Context) error { return s.storeSmall(ctx, buf) })
}

// putAll brings a content to all members in one call each, and meanwhile stores this node's own copy.
func (s *pushSession) putAll(ctx context.Context, it putItem, store func(context.Context) error) error {
	it.Content, it.Ino, it.Root = s.id, s.push.Ino, s.op.Root
	others := s.targets.others
	if s.localFirst() {
		others = nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan smallAnswer)
	request := encodePut([]putItem{it})
	w := newPutWatch(s.p.cfg.Clock.Now(), len(request))
	answer := func(get func() smallAnswer) {
		s.p.background(func() {
			a := get()
			select {
			case answers <- a:
			case <-ctx.Done(): // nobody waits for it any more
			}
		})
	}
	put := func(n meta.NodeID) {
		s.asks(n)
		answer(func() smallAnswer {
			return s.putAt(ctx, n, request, func(left int64) { w.moved(n, left) })
		})
	}
	for _, n := range others {
		put(n)
	}
	if s.targets.self {
		answer(func() smallAnswer { return s.putHere(ctx, store) })
	}
	p, err := s.collect(ctx, answers, others, put, w)
	if err != nil {
		return err
	}
	err = s.count(p.votes, s.deferred(p.missed))
	if err != nil && len(it.Shape) > 0 && lackBase(p.missed) {
		return errAgain{whole: true, err: err}
	}
	return err
}

// shaped is small for a content of which little has to be moved. recv has been begun with the content's shape.
func (s *pushSession) shaped(ctx context.Context, recv *content.Receiving, shape []byte) error {
	stream := make([]byte, recv.Layout().StreamBytes())
	err := recv.Layout().ReadStream(s.staged(), stream, 0)
	if err == nil {
		s.taken()
		err = fillStream(recv, stream)
	}
	var root content.Hash
	if err == nil {
		root, err = recv.Root(ctx)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("own copy: %w", err), recv.Discard())
	}
	s.op.Root = root
	if !s.targets.self {
		defer recv.Discard() // it only gave the root
	}
	return s.putAll(ctx, putItem{Bytes: stream, Shape: shape}, func(ctx context.Context) error {
		err := recv.Finish(ctx, root)
		if err != nil {
			err = errors.Join(err, recv.Discard())
		}
		return err
	})
}

// localFirst reports whether the policy leaves the other members to catch-up.
func (s *pushSession) localFirst() bool { return s.targets.localFirst() }

// deferred adds the members that an ack=local policy leaves to catch-up.
func (s *pushSession) deferred(missed []meta.Missed) []meta.Missed {
	if !s.localFirst() {
		return missed
	}
	for _, n := range s.targets.others {
		missed = append(missed, meta.Missed{Node: n, Reason: meta.OwedSlow})
	}
	return missed
}

// background runs f as a goroutine that close waits for.
func (p *Pusher) background(f func()) {
	p.wg.Go(f)
}

// putAt asks a member to store a content. moved is called as the bytes go.
func (s *pushSession) putAt(ctx context.Context, node meta.NodeID, request []byte, moved func(left int64)) smallAnswer {
	s.p.sharing.begin(node, s.p.cfg.Clock.Now())
	defer func() { s.p.sharing.end(node, s.p.cfg.Clock.Now()) }()
	answer, err := callMoving(ctx, s.p.cfg.Peers, node, KindPut, request, moved)
	if err != nil && ctx.Err() == nil {
		answer, err = callMoving(ctx, s.p.cfg.Peers, node, KindPut, request, moved) // the connection may be the fault
	}
	if err != nil {
		return smallAnswer{node: node, err: err}
	}
	list, err := decodeStandings(answer)
	if err == nil && len(list) != 1 {
		err = fmt.Errorf("%w: %d answers to one content", errWire, len(list))
	}
	if err != nil {
		return smallAnswer{node: node, err: err}
	}
	return smallAnswer{node: node, st: list[0]}
}

// putHere stores this node's own copy.
func (s *pushSession) putHere(ctx context.Context, store func(context.Context) error) smallAnswer {
	self := s.p.cfg.Self().Node
	if err := store(ctx); err != nil {
		return smallAnswer{node: self, err: err}
	}
	s.p.settle(s.id)
	return smallAnswer{node: self, st: standing{Standing: session.Standing{Status: session.StatusVoted}}}
}

func (s *pushSession) storeSmall(ctx context.Context, buf []byte) error {
	root, err := s.p.cfg.Store.Put(ctx, storeID(s.id), content.Shape{Size: int64(len(buf))}, bytes.NewReader(buf))
	if err == nil && root != content.Hash(s.op.Root) {
		err = content.ErrMismatch
	}
	return err
}

// poll is the counting of the answers to a put.
type poll struct {
	s      *pushSession
	watch  *putWatch
	clock  slow.Clock
	open   map[meta.NodeID]bool // asked, and neither answered nor declared down
	votes  []meta.NodeID
	missed []meta.Missed
	gaveUp bool
	again  time.Time // when to ask lost members again; zero while answers are open
}

// collect waits for the answers of others and of this node itself, as long as bytes go or votes come, and then for a
// while (poll.patience). It does not wait for a member whose bytes go much slower than those of the others, nor for a
// member that the log declares down. If too few members have voted, lost members are asked again with put.
func (s *pushSession) collect(
	ctx context.Context, answers <-chan smallAnswer, others []meta.NodeID, put func(meta.NodeID), w *putWatch,
) (*poll, error) {
	p := &poll{s: s, watch: w, open: make(map[meta.NodeID]bool, len(others)+1)}
	for _, n := range others {
		p.open[n] = true
	}
	if s.targets.self {
		p.open[s.id.Node] = true
	}
	last := s.p.cfg.Clock.Now()
	defer func() { s.moved = last }()
	defer s.p.sharing.stop(&p.clock)
	for {
		changed := s.p.viewChange() // before the look at the view
		if p.dropDown(); p.over() {
			return p, nil
		}
		now := s.p.cfg.Clock.Now()
		if w.progressed() {
			last = now
		}
		p.leaveSlow(now)
		if now.Sub(last) >= p.patience(now) {
			p.giveUp()
			continue
		}
		if p.againDue(now) {
			p.askAgain(put)
		}
		tick, stopTick := s.p.cfg.Clock.After(min(smallTick, last.Add(p.patience(now)).Sub(now)))
		select {
		case a := <-answers:
			if err := p.take(a); err != nil {
				return nil, err
			}
			if a.err == nil && a.st.Status == session.StatusVoted {
				last = s.p.cfg.Clock.Now()
			}
		case <-changed:
		case <-tick:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		stopTick()
	}
}

// patience is for how long nothing may move: it is longest while too few have voted. The last answers may take a part
// of the time that the content took so far.
func (p *poll) patience(now time.Time) time.Duration {
	t := &p.s.p.cfg.Tuning
	if len(p.votes) < p.s.targets.needed {
		return t.Stuck
	}
	rest := max(t.Silent, now.Sub(p.watch.began())/4)
	if p.watch.underWay(p.open) {
		rest = max(rest, 3*t.Silent) // a connection of which nothing is acknowledged for so long has ended
	}
	return min(rest, t.Stuck)
}

// leaveSlow stops waiting for members whose links are much slower than those of the others, if enough others have
// voted.
func (p *poll) leaveSlow(now time.Time) {
	t := &p.s.p.cfg.Tuning
	if len(p.votes) < p.s.targets.needed || !p.watch.underWay(p.open) {
		return
	}
	self := p.s.id.Node
	open := slices.DeleteFunc(slices.Sorted(maps.Keys(p.open)), func(n meta.NodeID) bool { return n == self })
	confined := p.s.p.sharing.confined(&p.clock, open, now)
	for _, n := range open {
		if text := p.watch.slow(now, n, open, confined, t); text != "" {
			p.leave(n, text)
		}
	}
}

// leave leaves a slow member to catch-up.
func (p *poll) leave(n meta.NodeID, text string) {
	delete(p.open, n)
	p.missed = append(p.missed, meta.Missed{Node: n, Reason: meta.OwedSlow})
	out := session.MemberView{Node: n, State: session.MemberOut, Reason: meta.OwedSlow, Text: text}
	p.s.p.transfers.leftOut(p.s.p.cfg.Logger, "node left out", p.s.id, []session.MemberView{out})
}

// over reports whether there is nobody to wait for.
func (p *poll) over() bool {
	return p.gaveUp || len(p.open) == 0 && len(p.s.targets.lost(p.votes, p.missed)) == 0
}

// againDue reports whether it is time to ask members again that were lost and are needed: some time after the last
// answer, never while answers are open.
func (p *poll) againDue(now time.Time) bool {
	switch {
	case len(p.open) > 0:
		p.again = time.Time{}
	case p.again.IsZero():
		p.again = now.Add(askAgain)
	case !now.Before(p.again):
		p.again = time.Time{}
		return true
	}
	return false
}

// askAgain sends the put once more to the members that were lost.
func (p *poll) askAgain(put func(meta.NodeID)) {
	for _, n := range p.s.targets.lost(p.votes, p.missed) {
		p.missed = slices.DeleteFunc(p.missed, func(m meta.Missed) bool { return m.Node == n })
		p.open[n] = true
		put(n)
	}
}

// take counts one answer.
func (p *poll) take(a smallAnswer) error {
	if !p.open[a.node] {
		return nil // declared down before its answer came
	}
	delete(p.open, a.node)
	switch {
	case a.err == nil && a.st.Status == session.StatusVoted:
		p.votes = append(p.votes, a.node)
		if a.node != p.s.id.Node {
			p.watch.voted(p.s.p.cfg.Clock.Now())
		}
	case a.node == p.s.id.Node && errors.Is(a.err, content.ErrNoSpace):
		return fmt.Errorf("%w: %w", ErrNoSpace, a.err)
	default:
		p.missed = append(p.missed, p.s.missedBy(a))
	}
	return nil
}

// dropDown drops members that the log has declared down, or has let in again since. Nodes that stand in for them may be
// asked.
func (p *poll) dropDown() {
	for _, n := range p.s.p.refresh(&p.s.targets) {
		voted := slices.Index(p.votes, n)
		if voted >= 0 {
			p.votes = slices.Delete(p.votes, voted, voted+1)
		}
		if p.open[n] || voted >= 0 {
			delete(p.open, n)
			p.missed = append(p.missed, meta.Missed{Node: n, Reason: meta.OwedDown})
		}
	}
	if p.s.localFirst() {
		return
	}
	for _, n := range p.s.targets.others {
		if !p.open[n] && !slices.Contains(p.votes, n) && !missing(p.missed, n) {
			p.missed = append(p.missed, meta.Missed{Node: n, Reason: meta.OwedDown})
		}
	}
}

// giveUp stops waiting for all members. One that has not acknowledged the bytes can't be reached from here; one that
// has is slow to answer.
func (p *poll) giveUp() {
	for _, n := range slices.Sorted(maps.Keys(p.open)) {
		reason := meta.OwedUnreachable
		if n == p.s.id.Node || p.watch.arrived(n) {
			reason = meta.OwedSlow
		}
		p.missed = append(p.missed, meta.Missed{Node: n, Reason: reason})
	}
	clear(p.open)
	p.gaveUp = true
}

func (s *pushSession) missedBy(a smallAnswer) meta.Missed {
	s.p.cfg.Logger.Debug("no vote", "content", s.id, "node", a.node, "status", a.st.Status, "text", a.st.Text, "err",
		a.err)
	if a.err != nil && a.node != s.id.Node {
		return meta.Missed{Node: a.node, Reason: meta.OwedUnreachable}
	}
	if a.err != nil {
		return meta.Missed{Node: a.node, Reason: meta.OwedFailed}
	}
	return meta.Missed{Node: a.node, Reason: a.st.Owed()}
}
