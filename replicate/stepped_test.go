package replicate

import (
	"context"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// stepped is the member's part of a node without goroutines: its calls return at once. It is not safe for concurrent
// use.
type stepped struct {
	cfg      Config
	member   *Member
	pusher   *Pusher
	assigner *assigner
	session  func(id meta.ContentID, published bool) bool
}

// newStepped judges what an earlier process left, as New does. session is called with the log's word on a session; it
// reports whether a live session of the caller took it.
func newStepped(cfg Config, session func(id meta.ContentID, published bool) bool) (*stepped, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &counters{}
	s := &stepped{cfg: cfg, assigner: newAssigner(cfg), session: session}
	s.member = newMember(cfg, newRemoteReads(cfg, c))
	s.pusher = newPusher(cfg, newRootGroups(cfg.Peers, cfg.Groups, cfg.Logger, cfg.Clock.Now), newTransfers(), c,
		newRoomBook(cfg), s.member.verdicts.settle)
	s.member.startUp()
	return s, nil
}

func (s *stepped) decided(id meta.ContentID, published bool) {
	if s.session(id, published) {
		return
	}
	v := session.Aborted
	if published {
		v = session.Published
	}
	s.member.verdicts.decided(id, v)
}

// Restored is called when the state was replaced by a snapshot.
func (s *stepped) Restored() {
	for _, id := range s.member.verdicts.undecided() {
		if v := s.member.applied.judge(id); v != session.Undecided {
			s.decided(id, v == session.Published)
		}
	}
	s.member.reconciler.compared.due.Add(1)
	s.member.startUp()
}

// Put takes a small content and answers with the vote.
func (s *stepped) Put(from meta.NodeID, item *putItem) standing { return s.member.putOne(from, item) }

// Settle carries out what the log says of a stored content; it is false if nobody wants it.
func (s *stepped) Settle(id meta.ContentID) bool { return s.member.verdicts.settle(id) }

// Commit makes a stored content live and reports it where the log does not know of it.
func (s *stepped) Commit(id meta.ContentID) { s.member.verdicts.commit(id) }

// Reconcile compares what the log says is owed to this node with what its store has.
func (s *stepped) Reconcile() { s.member.reconciler.reconcileOnce(context.Background()) }

// Sweep deletes what was retired long enough ago.
func (s *stepped) Sweep() { s.member.retired.sweep() }

// Held returns a batch of contents to report to the log as held; HeldTold says that the log has taken them.
func (s *stepped) Held() []meta.ContentID { return s.member.held.next() }

// HeldTold removes what Held lists.
func (s *stepped) HeldTold(ids []meta.ContentID) { s.member.held.done(ids) }

// Lost returns a batch of contents that the log wrongly believes to be here; LostTold says that they were reported.
func (s *stepped) Lost() []meta.ContentID { return s.member.lost.next() }
