package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
)

const (
	redialMin = 50 * time.Millisecond
	redialMax = 500 * time.Millisecond
)

var errNoLink = errors.New("consensus: no connection")

// link is the connection this node dials to a peer, and dials again.
type link struct {
	n      *Node
	peer   ID
	ctx    context.Context
	cancel context.CancelFunc
	kick   chan struct{} // buffered 1: the peer is there, dial now
	up     time.Time     // when it last got a connection; of run

	mu       sync.Mutex // protects all below
	stream   *stream    // nil while down
	calls    map[uint64]chan response
	nextCall uint64
	lastErr  error
}

type response struct {
	body []byte
	err  error
}

func marshalRaft(m *raftpb.Message) func([]byte) []byte {
	return func(b []byte) []byte {
		b, err := proto.MarshalOptions{}.MarshalAppend(b, m)
		if err != nil {
			panic("consensus: encode raft message: " + err.Error()) // tidy: made by raft itself: can't fail
		}
		return b
	}
}

// link returns the link to a peer, nil if there is none.
func (n *Node) link(peer ID) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.links[peer]
}

// updateLinks starts and ends links: a raft member needs all others, an observer the leader.
func (n *Node) updateLinks() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state.closed {
		return
	}
	want := map[ID]bool{}
	if n.state.role != RoleObserver {
		for _, id := range core.MembersOf(n.state.conf) {
			want[id] = true
		}
	}
	if n.state.leader != 0 {
		want[n.state.leader] = true
	}
	delete(want, n.id)
	for id, l := range n.state.links {
		if !want[id] && (n.state.leader != 0 || n.state.role != RoleObserver) {
			l.cancel()
			delete(n.state.links, id)
		}
	}
	for id := range want {
		if n.state.links[id] == nil {
			l := &link{n: n, peer: id, kick: make(chan struct{}, 1), calls: map[uint64]chan response{}}
			l.ctx, l.cancel = context.WithCancel(n.ctx)
			n.state.links[id] = l
			n.wg.Go(l.run)
		}
	}
}

// run keeps the link up until it is cancelled.
func (l *link) run() {
	defer l.cancel()
	wait := redialMin
	for l.ctx.Err() == nil {
		began := time.Now()
		err := l.session()
		if time.Since(began) > redialMax {
			wait = redialMin
		}
		l.mu.Lock()
		first := l.lastErr == nil || l.lastErr.Error() != err.Error()
		l.lastErr = err
		l.mu.Unlock()
		if first && !quiet(err) && l.ctx.Err() == nil {
			l.n.log.Info("connection to peer", "peer", fmt.Sprintf("%x", l.peer), "error", err)
		}
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, ErrPeerGone) {
			l.refused()
		}
		select {
		case <-l.ctx.Done():
		case <-l.kick:
			wait = redialMin
		case <-time.After(wait):
		}
		wait = min(2*wait, redialMax)
	}
}

// isUp reports whether there is a connection.
func (l *link) isUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stream != nil
}

// refused runs when the peer's machine says that nothing listens at its address: its process has ended. Or the peer was
// removed for good.
func (l *link) refused() {
	n, peer := l.n, l.peer
	n.mu.Lock()
	leads := n.state.leader == peer
	n.mu.Unlock()
	if leads {
		n.box.event(func() {
			if c := n.loop.core; c != nil {
				c.LeaderGone(peer)
			}
		})
	}
}

func (l *link) session() error {
	conn, err := l.n.greeter.dial(l.ctx, l.peer, purposePeer)
	if err != nil {
		return err
	}
	s := newStream(conn, l.peer)
	stop := context.AfterFunc(l.ctx, func() { _ = conn.Close() })
	defer stop()
	defer s.close()
	l.mu.Lock()
	l.stream = s
	l.mu.Unlock()
	defer l.down()
	l.n.linkUp(l)
	for {
		kind, body, err := s.read()
		if err == nil {
			err = l.handle(kind, body)
		}
		if err != nil {
			return err
		}
	}
}

func (l *link) handle(kind uint8, body []byte) error {
	switch kind {
	case frameNack:
		refuse, err := decode[nack](body)
		if err == nil {
			l.n.proposals.refused(&refuse)
		}
		return err
	case frameResponse:
		c, err := decode[call](body)
		if err != nil {
			return err
		}
		l.mu.Lock()
		answer := l.calls[c.id]
		delete(l.calls, c.id)
		l.mu.Unlock()
		if answer != nil {
			answer <- openResponse(c.op, c.body)
		}
		return nil
	case frameReports:
		return l.n.reporter.take(body)
	case frameWant:
		defer l.n.reporter.reportDirect()
		return l.n.reporter.wantFrame(body)
	default:
		return fmt.Errorf("%w: type %d from an acceptor", errFrame, kind)
	}
}

// Codes of responses.
const (
	codeOK        = 0
	codeNotLeader = 1
	codeRefused   = 2 // ErrConfChange
	codeError     = 3
)

func openResponse(code uint8, body []byte) response {
	switch code {
	case codeOK:
		return response{body: body}
	case codeNotLeader:
		return response{err: ErrNotLeader}
	case codeRefused:
		return response{err: fmt.Errorf("%w: %s", ErrConfChange, body[:min(len(body), 300)])}
	default:
		return response{err: fmt.Errorf("consensus: peer answers: %s", body[:min(len(body), 300)])}
	}
}

func (l *link) down() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stream = nil
	for id, answer := range l.calls {
		answer <- response{err: errNoLink}
		delete(l.calls, id)
	}
}

func (l *link) send(kind uint8, fill func([]byte) []byte) bool {
	l.mu.Lock()
	s := l.stream
	l.mu.Unlock()
	return s != nil && s.send(kind, fill)
}

// call asks the peer something and waits for the answer.
func (l *link) call(ctx context.Context, op uint8, body []byte) ([]byte, error) {
	answer := make(chan response, 1)
	l.mu.Lock()
	s := l.stream
	if s == nil {
		l.mu.Unlock()
		return nil, errNoLink
	}
	l.nextCall++
	c := call{id: l.nextCall, op: op, body: body}
	l.calls[c.id] = answer
	l.mu.Unlock()
	if !s.send(frameRequest, c.append) {
		l.forget(c.id)
		return nil, errNoLink
	}
	select {
	case r := <-answer:
		return r.body, r.err
	case <-ctx.Done():
		l.forget(c.id)
		return nil, ctx.Err()
	}
}

func (l *link) forget(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.calls, id)
}

// askState asks a node what it knows of the cluster: over its link, or over a connection just for this. A node that has
// replaced it answers too.
func askState(ctx context.Context, n *Node, peer ID) ([]byte, error) {
	if l := n.link(peer); l != nil {
		if body, err := l.call(ctx, callState, nil); err == nil {
			return body, nil
		}
	}
	conn, err := n.greeter.dialAs(ctx, peer, anyStore(peer), purposePeer)
	if err != nil {
		return nil, err
	}
	s := newStream(conn, peer)
	defer s.close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	request := call{id: 1, op: callState}
	s.send(frameRequest, request.append)
	for {
		kind, body, err := s.read()
		if err != nil {
			return nil, err
		}
		if kind != frameResponse {
			continue // what the peer sends everyone who connects
		}
		c, err := decode[call](body)
		if err != nil {
			return nil, err
		}
		r := openResponse(c.op, c.body)
		return r.body, r.err
	}
}

// reached tells the loop and the proposals of a connection, but not of each one to a peer that comes and goes: votes
// need their time.
func (l *link) reached() {
	n, now := l.n, time.Now()
	steady := now.Sub(l.up) > n.tune.electionMax()
	l.up = now
	if steady {
		n.proposals.hopeAgain()
		n.box.event(func() {
			if c := n.loop.core; c != nil {
				c.Reached()
			}
		})
	}
}

// linkUp runs when a link has a connection again.
func (n *Node) linkUp(l *link) {
	n.mu.Lock()
	leader := n.state.leader
	n.mu.Unlock()
	signal(n.clocks.news)
	l.reached()
	if l.peer == leader {
		n.proposals.dispatchAll()
		n.reporter.reportAll()
		n.reporter.reportDirect()
	}
}

// askLeader calls the leader, whichever node becomes that, until ctx ends. Without patience it gives up where proposals
// do.
func (n *Node) askLeader(ctx context.Context, op uint8, body []byte, patient bool) ([]byte, error) {
	last := ErrNoQuorum
	for {
		n.mu.Lock()
		leader, changed, lost := n.state.leader, n.state.changed, n.proposals.hopelessLocked(time.Now())
		n.mu.Unlock()
		switch {
		case lost && !patient:
			return nil, ErrNoQuorum
		case leader == n.id:
			b, err := n.answer(ctx, op, body)
			if !errors.Is(err, ErrNotLeader) {
				return b, err
			}
			last = err
		case leader != 0:
			last = errNoLink
			if l := n.link(leader); l != nil {
				b, err := l.call(ctx, op, body)
				if err == nil || !errors.Is(err, errNoLink) && !errors.Is(err, ErrNotLeader) {
					return b, err
				}
				last = err
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", ctx.Err(), last)
		case <-n.ctx.Done():
			return nil, n.stopped()
		case <-changed:
		case <-time.After(redialMin):
		}
	}
}
