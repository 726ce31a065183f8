package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// ErrNoCopy means that a damaged state can't be remade: no other node has one, and the log does not reach back to the
// beginning.
var ErrNoCopy = errors.New("consensus: no other node has the state, and the log does not hold all of it any more: " +
	"restore the data directory from a backup")

const (
	// rebuildPatience is how long the other nodes are asked before a log that holds everything is applied again.
	rebuildPatience = 10 * time.Second
	rebuildPause    = time.Second // between two rounds of asking
	rebuildPauseMax = 15 * time.Second
)

// RebuildOptions say how to remake a state.
type RebuildOptions struct {
	// Promised is the index that the lost state had reached. An observer takes no older one, since it has no log to
	// go on from.
	Promised uint64
	// StartOver makes the state machine that of index 0, durably.
	StartOver func() error
	// Say hears what is being done and what went wrong, for status.
	Say func(text string)
}

// Rebuild replaces a state machine that has lost its state, before Open: by a snapshot of another node, or from this
// node's own log if that still holds everything. The log is kept, and so is what this node has promised with it.
// Rebuild tries until ctx ends or it is clear that nobody has the state.
func Rebuild(ctx context.Context, cfg Config, opts RebuildOptions) error {
	disk, state, err := raftlog.Open(cfg.logOptions())
	if err != nil {
		return fmt.Errorf("consensus: rebuild: %w", err)
	}
	r := &rebuilder{n: newNode(cfg), disk: disk, state: state, opts: opts}
	defer r.n.cancel(ErrClosed)
	err = r.run(ctx)
	return errors.Join(err, disk.Close())
}

type rebuilder struct {
	n     *Node // not started: it only dials
	disk  *raftlog.Log
	state *raftlog.State
	opts  RebuildOptions
}

func (r *rebuilder) run(ctx context.Context) error {
	member := slices.Contains(core.MembersOf(r.state.Base.Conf), r.n.id)
	whole := member && r.state.Base.Index == 0
	least := r.opts.Promised
	if member {
		least = r.state.Base.Index // the log goes on from there
	}
	for began := time.Now(); ; {
		peers := r.peers()
		for _, peer := range peers {
			r.opts.Say(fmt.Sprintf("taking the state of node %d", peer>>32))
			err := r.take(ctx, peer, least)
			if err == nil {
				return nil
			}
			r.n.log.Warn("rebuild", "peer", fmt.Sprintf("%x", peer), "error", err)
			r.opts.Say(fmt.Sprintf("node %d: %v", peer>>32, err))
		}
		switch {
		case whole && (len(peers) == 0 || time.Since(began) > rebuildPatience):
			r.opts.Say("applying this node's own log from its beginning")
			return r.opts.StartOver()
		case len(peers) == 0:
			return ErrNoCopy
		}
		r.n.pause(ctx.Done(), rebuildPause)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// peers are the other nodes, voters first.
func (r *rebuilder) peers() []ID {
	conf := r.state.Base.Conf
	return otherThan(r.n.id, core.VotersOf(conf), core.MembersOf(conf), r.n.peers())
}

// stateReplacer replaces a wrong state while the node runs.
type stateReplacer struct {
	n *Node

	// Protected by Node.mu.
	wrong error  // why the state is being replaced; nil if it is not
	count uint64 // how often wrong was set
	says  string // how the last round of asking for another state went, "" if none failed
}

// Rebuild replaces a wrong state by another node's, while the log goes on: nothing is applied until then. It returns at
// once; the replacement is done when the state machine's Restore has succeeded.
func (n *Node) Rebuild(why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.replacer.wrong != nil || n.state.closed || n.ctx.Err() != nil {
		return
	}
	n.replacer.wrong = why
	n.replacer.count++
	number := n.replacer.count
	n.log.Error("the state is wrong: it is replaced by another node's", "error", why)
	n.wg.Go(func() { n.replacer.run(number) })
}

// why is why the state is being replaced, nil normally.
func (sr *stateReplacer) why() error {
	sr.n.mu.Lock()
	defer sr.n.mu.Unlock()
	return sr.wrong
}

// done is called by the applier when the state has been replaced.
func (sr *stateReplacer) done() {
	sr.n.histories.forget() // what others found about the state before
	sr.n.mu.Lock()
	defer sr.n.mu.Unlock()
	sr.wrong, sr.says = nil, ""
}

// rebuilds says whether the state is still to be replaced for the reason with this number.
func (sr *stateReplacer) rebuilds(number uint64) bool {
	sr.n.mu.Lock()
	defer sr.n.mu.Unlock()
	return sr.wrong != nil && sr.count == number
}

// run asks all others for their states in turn, until one was taken: again after a second, then less and less
// often.
func (sr *stateReplacer) run(number uint64) {
	for round := 0; sr.n.ctx.Err() == nil; round++ {
		sr.n.mu.Lock()
		ids := core.VotersOf(sr.n.state.conf)
		sr.n.mu.Unlock()
		peers := otherThan(sr.n.id, ids, sr.n.peers())
		said := noOtherNode
		for _, peer := range peers {
			_, err := sr.n.fetchSnapshot(sr.n.ctx, peer)
			if !sr.rebuilds(number) {
				return
			}
			said = fmt.Sprintf("node %d: %v", peer>>32, err)
			if round == 0 {
				sr.n.log.Warn("rebuild", "peer", fmt.Sprintf("%x", peer), "error", err)
			}
		}
		pause := min(rebuildPause<<min(round, 5), rebuildPauseMax)
		sr.say(fmt.Sprintf("%s; asked again in %v", said, pause))
		sr.n.pause(nil, pause)
	}
}

// noOtherNode is the error text if a wrong state can't be taken from any other node.
const noOtherNode = "there is no other node to take it from: start this one again, it then applies its own log if " +
	"that still holds everything; " +
	"else restore the data directory from a backup"

// say notes for status how the last round went.
func (sr *stateReplacer) say(text string) {
	sr.n.mu.Lock()
	defer sr.n.mu.Unlock()
	sr.says = text
}

// otherThan joins lists of nodes, in order, without self.
func otherThan(self ID, lists ...[]ID) (out []ID) {
	for _, id := range slices.Concat(lists...) {
		if id != self && id != 0 && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// take replaces the state by a peer's, if that is not below least. The log learns of it before, as in fetchSnapshot.
func (r *rebuilder) take(ctx context.Context, peer ID, least uint64) error {
	conn, head, err := r.n.greeter.openSnapshot(ctx, peer)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if head.index < least {
		return fmt.Errorf("consensus: snapshot of %x is at %d, %d is needed", peer, head.index, least)
	}
	if head.term == 0 {
		head.term, head.conf = r.termOf(&head), r.state.Base.Conf // the log stays, and with it what it says of the voters
	}
	if head.term == 0 {
		return fmt.Errorf("consensus: snapshot of %x at %d: %w", peer, head.index, errNoTerm)
	}
	base := head.base()
	if err := r.disk.Append(&raftlog.Batch{Intent: &base}); err != nil {
		return err
	}
	if err := r.n.cfg.StateMachine.Restore(head.index, head.term, &chunkReader{conn: conn}); err != nil {
		return err
	}
	r.n.log.Info("state rebuilt", "peer", fmt.Sprintf("%x", peer), "index", head.index)
	return nil
}

// termOf finds the term of a snapshot in this node's own log; it is 0 if the log may not hold the snapshot's entry. The
// time of the last proposal shows whether both are of one history: it is different for each. An entry behind that must
// be known to be committed.
func (r *rebuilder) termOf(head *snapHead) uint64 {
	s := r.state
	if !slices.Contains(core.MembersOf(s.Base.Conf), r.n.id) || head.index < s.Base.Index || head.index > s.LastIndex() {
		return 0
	}
	entries := s.Entries[:head.index-s.Base.Index]
	term, last := s.Base.Term, s.Base.Time
	alone := len(core.VotersOf(s.Base.Conf)) == 1 // what the only voter has written is committed
	certain := true
	for _, e := range entries {
		term = e.GetTerm()
		alone = alone && e.GetType() == raftpb.EntryNormal
		certain = alone || e.GetIndex() <= s.Hard.GetCommit() || core.TimeOf(e) > 0
		if at := core.TimeOf(e); at > 0 {
			last = at
		}
	}
	if !certain || last != head.timeNanos {
		return 0
	}
	return term
}
