package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

const (
	snapshotsAtOnce = 2 // served by one node
	chunkTimeout    = 30 * time.Second
)

var errNoTerm = errors.New("its term is not known")

func (h *snapHead) base() raftlog.Base {
	return raftlog.Base{Index: h.index, Term: h.term, Time: h.timeNanos, Conf: h.conf}
}

// snapshotServer sends the state of this node to others, to a few at a time.
type snapshotServer struct {
	cfg  *Config
	feed *feed

	mu    sync.Mutex
	peers map[ID]bool // that get one now
}

// serve sends the state of this node on a connection of its own.
func (ss *snapshotServer) serve(conn net.Conn, peer ID) error {
	if !ss.begin(peer) {
		return writeFrame(conn, frameSnapFailed, func(b []byte) []byte { return append(b, "too many snapshots at once"...) })
	}
	defer ss.end(peer)
	data, index, err := ss.cfg.StateMachine.Snapshot()
	if err != nil {
		return errors.Join(fmt.Errorf("consensus: snapshot: %w", err),
			writeFrame(conn, frameSnapFailed, func(b []byte) []byte { return append(b, err.Error()...) }))
	}
	defer data.Close()
	head, ok := ss.head(index)
	if !ok {
		return writeFrame(conn, frameSnapFailed, func(b []byte) []byte {
			return append(b, "term or voters are not known yet"...)
		})
	}
	if err := writeFrame(conn, frameSnapBegin, head.append); err != nil {
		return err
	}
	total := uint64(0)
	for chunk := make([]byte, snapshotChunk); ; {
		got, err := io.ReadFull(data, chunk)
		if got > 0 {
			total += uint64(got)
			if err := writeFrame(conn, frameSnapChunk, func(b []byte) []byte { return append(b, chunk[:got]...) }); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			if err := writeFrame(conn, frameSnapEnd, func(b []byte) []byte { return appendNumber(b, total) }); err != nil {
				return err
			}
			_ = conn.SetReadDeadline(time.Now().Add(chunkTimeout))
			_, err := conn.Read(make([]byte, 1)) // the receiver closes
			return ignoreEOF(err)
		case err != nil:
			return errors.Join(fmt.Errorf("consensus: read snapshot: %w", err),
				writeFrame(conn, frameSnapFailed, func(b []byte) []byte { return append(b, err.Error()...) }))
		}
	}
}

// head is the head of a snapshot of the state at index. An observer that has received nothing since its start knows
// neither the term nor, for sure, the voters.
func (ss *snapshotServer) head(index uint64) (h snapHead, ok bool) {
	base, ok := ss.feed.at(index)
	if ok && base.Term > 0 && base.Conf != nil {
		return snapHead{index: index, term: base.Term, timeNanos: base.Time, conf: base.Conf}, true
	}
	if ss.cfg.LogTime == nil {
		return h, false
	}
	h = snapHead{index: index, timeNanos: ss.cfg.LogTime()}
	return h, index > 0 && h.timeNanos > 0 && ss.cfg.StateMachine.Applied() == index // the time is that of this index
}

func ignoreEOF(err error) error {
	if quiet(err) {
		return nil
	}
	return err
}

func writeFrame(conn net.Conn, kind uint8, fill func([]byte) []byte) error {
	_ = conn.SetWriteDeadline(time.Now().Add(chunkTimeout))
	_, err := conn.Write(appendFrame(nil, kind, fill))
	return err
}

func (ss *snapshotServer) begin(peer ID) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if len(ss.peers) >= snapshotsAtOnce || ss.peers[peer] {
		return false
	}
	ss.peers[peer] = true
	return true
}

func (ss *snapshotServer) end(peer ID) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.peers, peer)
}

func (ss *snapshotServer) serves(peer ID) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.peers[peer]
}

// fetchSnapshot replaces the state machine by a peer's state. The log learns of it before it begins, so that a crash
// in the middle is understood.
func (n *Node) fetchSnapshot(ctx context.Context, peer ID) (raftlog.Base, error) {
	conn, head, err := n.greeter.openSnapshot(ctx, peer)
	if err != nil {
		return raftlog.Base{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	base := head.base()
	if base.Term == 0 {
		return base, fmt.Errorf("consensus: snapshot of %x: %w", peer, errNoTerm)
	}
	if err := n.persistNow(ctx, &raftlog.Batch{Intent: &base}); err != nil {
		return base, err
	}
	n.log.Info("taking a snapshot", "peer", fmt.Sprintf("%x", peer), "index", head.index)
	job := &restoreJob{head: head, data: &chunkReader{conn: conn}, replace: n.replacer.why() != nil,
		done: make(chan error, 1)}
	n.applyQ.add(applyJob{restore: job})
	select {
	case err = <-job.done:
	case <-n.ctx.Done():
		err = n.stopped()
	}
	if err != nil {
		return base, err
	}
	n.box.event(func() { n.restoredObserver(base) })
	return base, nil
}

// openSnapshot asks a peer for its state. The chunks are to be read from conn, which is the caller's.
func (g *greeter) openSnapshot(ctx context.Context, peer ID) (conn net.Conn, head snapHead, err error) {
	if conn, err = g.dial(ctx, peer, purposeBulk); err != nil {
		return nil, head, err
	}
	opened := conn // a return without it sets conn to nil
	defer func() {
		if err != nil {
			_ = opened.Close()
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = opened.Close() })
	defer stop()
	_ = conn.SetReadDeadline(time.Now().Add(chunkTimeout))
	kind, body, err := readFrame(conn, maxFrame)
	if err != nil {
		return nil, head, fmt.Errorf("consensus: snapshot of %x: %w", peer, err)
	}
	if kind != frameSnapBegin {
		return nil, head, fmt.Errorf("consensus: snapshot of %x: %w", peer, snapshotRefusal(kind, body))
	}
	head, err = decode[snapHead](body)
	return conn, head, err
}

// restoredObserver makes an observer's log begin at a snapshot it has taken; it runs in the loop.
func (n *Node) restoredObserver(base raftlog.Base) {
	if n.loop.core != nil {
		return // raft writes its own
	}
	begin := outside(n.id, base)
	n.persist.add(persistJob{batch: &raftlog.Batch{Base: &begin, Reset: true}, done: func() {}})
	n.learn(clusterState{confIndex: base.Index, conf: base.Conf}, "")
	if n.joinsWith(base.Index, base.Index, base.Conf) {
		n.loop.join(base)
	}
}

// persistNow writes a batch through the queue and waits for it.
func (n *Node) persistNow(ctx context.Context, b *raftlog.Batch) error {
	done := make(chan struct{})
	n.persist.add(persistJob{batch: b, done: func() { close(done) }})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-n.ctx.Done():
		return n.stopped()
	}
}

func snapshotRefusal(kind uint8, body []byte) error {
	if kind == frameSnapFailed {
		return fmt.Errorf("refused: %s", body[:min(len(body), 300)])
	}
	return fmt.Errorf("%w: type %d in a snapshot", errFrame, kind)
}

// chunkReader reads the chunks of a snapshot as one stream; io.EOF only comes after all of it.
type chunkReader struct {
	conn  net.Conn
	chunk []byte
	total uint64
	err   error
}

// Read implements io.Reader.
func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.chunk) == 0 && r.err == nil {
		r.next()
	}
	if len(r.chunk) == 0 {
		return 0, r.err
	}
	got := copy(p, r.chunk)
	r.chunk = r.chunk[got:]
	return got, nil
}

func (r *chunkReader) next() {
	_ = r.conn.SetReadDeadline(time.Now().Add(chunkTimeout))
	kind, body, err := readFrame(r.conn, maxFrame)
	switch {
	case err == io.EOF:
		r.err = io.ErrUnexpectedEOF
	case err != nil:
		r.err = err
	case kind == frameSnapChunk:
		r.chunk = body
		r.total += uint64(len(body))
	case kind == frameSnapEnd:
		if total, err := decode[number](body); err != nil || uint64(total) != r.total {
			r.err = errors.Join(err, snapshotRefusal(kind, body))
			return
		}
		r.err = io.EOF
	default:
		r.err = snapshotRefusal(kind, body)
	}
}

// receiveSnapshot handles raft's snapshot message. It fetches the state first, then tells raft what was fetched, which
// may be newer than what the message announced.
func (rl *raftLoop) receiveSnapshot(m *raftpb.Message) {
	if err := rl.core.Check(m); err != nil {
		rl.stepped(err)
		return
	}
	index := m.GetSnapshot().GetMetadata().GetIndex()
	if rl.restored != nil && rl.restored.Index >= index {
		rl.stepSnapshot(m, *rl.restored)
		return
	}
	if rl.fetching || index <= rl.core.Status().Commit {
		if !rl.fetching {
			rl.stepped(rl.core.Step(m)) // raft answers with what it has
		}
		return
	}
	rl.fetching = true
	core, from := rl.core, m.GetFrom()
	rl.n.wg.Go(func() {
		base, err := rl.n.fetchSnapshot(rl.n.ctx, from)
		rl.n.box.event(func() {
			rl.fetching = false
			if err != nil {
				rl.n.log.Warn("snapshot", "error", err)
				return
			}
			rl.restored = &base
			if rl.core == core {
				rl.stepSnapshot(m, base)
			}
		})
	})
}

func (rl *raftLoop) stepSnapshot(m *raftpb.Message, base raftlog.Base) {
	m = proto.Clone(m).(*raftpb.Message)
	m.Snapshot = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(base.Index), Term: new(base.Term),
		ConfState: base.Conf}}
	core.SetSnapshotTime(m.Snapshot, base.Time)
	rl.stepped(rl.core.Step(m))
}
