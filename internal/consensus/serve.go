package consensus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
)

const (
	callsAtOnce      = 4096 // per connection
	followQueueBytes = 4 << 20
)

// MayBeInRaft reports whether an id is a member of raft by the newest voters that this node has heard of. This node may
// not have reached the entries that let the peer in.
func (n *Node) MayBeInRaft(id ID) bool { return slices.Contains(core.MembersOf(n.conf()), id) }

// Serve handles a connection that a peer has dialled until it ends or the node is closed; it closes conn. authentic
// reports whether the authenticated caller may speak as an id. The error says why it ended; io.EOF and net.ErrClosed
// are not reported.
func (n *Node) Serve(conn net.Conn, authentic func(ID) bool) error {
	defer conn.Close()
	if !n.enter() {
		return n.stopped()
	}
	defer n.wg.Done()
	stop := context.AfterFunc(n.ctx, func() { _ = conn.Close() })
	defer stop()
	h, err := n.greeter.accept(conn, authentic)
	if err != nil {
		return err
	}
	peer := h.from
	switch h.purpose {
	case purposePeer:
		err = n.serveStream(newStream(conn, peer), n.servePeer)
	case purposeFollow:
		err = n.serveStream(newStreamPinging(conn, peer, followPing), n.serveFollow)
	case purposeBulk:
		err = n.snapshots.serve(conn, peer)
	default:
		err = fmt.Errorf("%w: purpose %d", errFrame, h.purpose)
	}
	if quiet(err) || n.ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("consensus: serve %x: %w", peer, err)
}

// enter counts a goroutine of a caller, unless the node is closed.
func (n *Node) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state.closed || n.ctx.Err() != nil {
		return false
	}
	n.wg.Add(1)
	return true
}

func (n *Node) serveStream(s *stream, serve func(*stream) error) error {
	peer := s.peer
	defer s.close()
	n.mu.Lock()
	n.state.streams[s] = struct{}{}
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.state.streams, s)
		if n.state.inbound[peer] == s {
			delete(n.state.inbound, peer)
		}
	}()
	return serve(s)
}

// servePeer takes raft messages, forwarded proposals, calls and reports.
func (n *Node) servePeer(s *stream) error {
	n.mu.Lock()
	n.state.inbound[s.peer] = s
	back := n.state.links[s.peer]
	n.mu.Unlock()
	if back != nil {
		signal(back.kick)
	}
	ctx, cancel := context.WithCancel(n.ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	slots := make(chan struct{}, callsAtOnce)
	for {
		kind, body, err := s.read()
		if err != nil {
			return err
		}
		switch kind {
		case frameRaft:
			err = n.raftFrame(s, body)
		case framePropose:
			err = n.proposeFrame(s, body)
		case frameReports:
			err = n.reporter.take(body)
		case frameMarks:
			err = n.loop.marksFrame(s, body)
		case frameDiverged:
			n.histories.note(s.peer, whyText(body))
		case frameRequest:
			var c call
			// here, so that the answer does not wait for others
			if c, err = decode[call](body); err == nil && c.op == callClock {
				n.respond(ctx, s, &c)
			} else if err == nil {
				select {
				case slots <- struct{}{}:
					calls.Go(func() {
						n.respond(ctx, s, &c)
						<-slots
					})
				default:
					err = fmt.Errorf("%w: more than %d calls at once", errFrame, callsAtOnce)
				}
			}
		default:
			err = fmt.Errorf("%w: type %d from a dialler", errFrame, kind)
		}
		if err != nil {
			return err
		}
	}
}

func (n *Node) raftFrame(s *stream, body []byte) error {
	m := &raftpb.Message{}
	if err := proto.Unmarshal(body, m); err != nil {
		return fmt.Errorf("%w: raft message: %w", errFrame, err)
	}
	if m.GetFrom() != s.peer {
		return fmt.Errorf("%w: raft message of %x on the connection of %x", errFrame, m.GetFrom(), s.peer)
	}
	n.box.message(m)
	return nil
}

// marksFrame takes what a member knows of the members. It may be called by any goroutine.
func (rl *raftLoop) marksFrame(s *stream, body []byte) error {
	marks, err := decode[markList](body)
	if err != nil {
		return err
	}
	rl.n.box.event(func() {
		if c := rl.core; c != nil {
			rl.stepped(c.TakeMarks(s.peer, marks.term, marks.list))
		}
	})
	return nil
}

func (n *Node) proposeFrame(s *stream, body []byte) error {
	p, err := decodeForward(body, s.peer)
	if err != nil {
		return err
	}
	if len(p.Data) > n.tune.MaxProposalBytes || !n.box.propose(arrival{Proposal: p, from: s}) {
		refuse := nack{run: p.Run, seq: p.Seq, reason: nackDropped, text: "too large, or too many"}
		s.send(frameNack, refuse.append)
	}
	return nil
}

func (n *Node) respond(ctx context.Context, s *stream, c *call) {
	var body []byte
	var err error
	if c.op == callClock {
		body, err = n.clocks.answer(s.peer, c.body)
	} else {
		body, err = n.answer(ctx, c.op, c.body)
	}
	if c.op == callReadIndex && err == nil {
		n.reporter.heard(s.peer) // before it hears the answer: see [Node.ReadBarrier]
	}
	code := uint8(codeOK)
	switch {
	case err == nil:
	case errors.Is(err, ErrNotLeader):
		code = codeNotLeader
	case errors.Is(err, ErrConfChange):
		code = codeRefused
	default:
		code = codeError
	}
	if err != nil {
		body = []byte(err.Error())
	}
	r := call{id: c.id, op: code, body: body}
	s.send(frameResponse, r.append)
}

// answer does what a call asks for, on this node.
func (n *Node) answer(ctx context.Context, op uint8, body []byte) ([]byte, error) {
	switch op {
	case callBarrier:
		return n.reporter.answerBarrier(ctx, body)
	case callReadIndex:
		index, err := n.readIndex(ctx)
		return appendNumber(nil, index), err
	case callVoters:
		v, err := decode[votersCall](body)
		if err != nil {
			return nil, err
		}
		return nil, n.voters.changeVoters(ctx, v.add, v.remove)
	case callState:
		s := n.clusterState()
		return s.append(nil), nil
	default:
		return nil, fmt.Errorf("%w: call %d", errFrame, op)
	}
}

// clusterState is what this node tells others. An observer names a leader only while it follows a voter itself. What it
// has from another observer may have come from the very nodes that it would tell, and they would go on believing each
// other when all voters are gone.
func (n *Node) clusterState() clusterState {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := &n.state
	s := clusterState{leader: st.leader, term: st.term, commit: st.commit, confIndex: st.confIndex, conf: st.conf}
	if st.role == RoleObserver && (st.follower == nil || !slices.Contains(core.VotersOf(st.conf), st.follower.peer)) {
		s.leader = 0
	}
	return s
}

// serveFollow sends committed entries to a follower and takes its reports.
func (n *Node) serveFollow(s *stream) error {
	kind, body, err := s.read()
	if err != nil {
		return err
	}
	ask, err := decode[followCall](body)
	if err != nil || kind != frameFollow {
		return errors.Join(err, fmt.Errorf("%w: type %d for a follow request", errFrame, kind))
	}
	why := n.histories.divergence(s.peer, ask.proof)
	n.histories.note(s.peer, why)
	var sender sync.WaitGroup
	sender.Go(func() {
		if why != "" {
			s.send(frameDiverged, func(b []byte) []byte { return append(b, why...) })
			return
		}
		n.sendFollow(s, ask.next)
	})
	defer sender.Wait()
	defer s.conn.Close()
	defer func() { // let the sender see the end before waiting for it
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			s.closed = true
			close(s.gone)
		}
	}()
	for {
		kind, body, err := s.read()
		if err != nil {
			return err
		}
		if kind != frameReports {
			return fmt.Errorf("%w: type %d from a follower", errFrame, kind)
		}
		if err := n.reporter.take(body); err != nil {
			return err
		}
	}
}

// sendFollow sends what is committed from index on, and each change of leader and voters.
func (n *Node) sendFollow(s *stream, index uint64) {
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	var told <-chan struct{} // closed when what was sent of leader and voters is old
	for {
		n.mu.Lock()
		news := n.state.changed
		n.mu.Unlock()
		if news != told {
			told = news
			if state := n.clusterState(); !s.send(frameState, state.append) {
				return
			}
		}
		list, more, ok := n.feed.after(index, maxBatchBytes)
		if !ok {
			s.send(frameTruncated, nil)
			return
		}
		if len(list) > 0 {
			if !s.send(frameEntries, func(b []byte) []byte { return appendEntries(b, list) }) || !s.drained(pace.C) {
				return
			}
			index = list[len(list)-1].Index + 1
			continue
		}
		select {
		case <-s.gone:
			return
		case <-s.done:
			return
		case <-more:
		case <-news:
		}
	}
}

// drained waits until little is queued; false if the stream has ended.
func (s *stream) drained(pace <-chan time.Time) bool {
	for s.queued() > followQueueBytes {
		select {
		case <-s.gone:
			return false
		case <-s.done:
			return false
		case <-pace:
		}
	}
	return true
}

func (rp *reporter) wantFrame(body []byte) error {
	index, err := decode[number](body)
	if err == nil {
		rp.want(uint64(index))
	}
	return err
}
