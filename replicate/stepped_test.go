package replicate

import (
	"bytes"
	"context"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Stepped is the replication of a node without goroutines, waits and transfers, for a simulator: the same decisions as those
// of a Replicator, made by the same code, in calls that return at once. Its caller is the shell: it moves the bytes of
// sessions (with SteppedRoot and SteppedMember), calls peers and proposes.
//
// Config.Log, Peers and Groups may be of types that only note what they are asked for. Config.Store needs not be able to
// Begin, Open or OpenUndecided. It is not safe for concurrent use.
type Stepped struct {
	cfg      Config
	member   *Member
	pusher   *Pusher
	assigner *assigner
	session  func(id meta.ContentID, published bool) bool
}

// PutItem is one small content with all its bytes.
type PutItem = putItem

// Standing is a member's answer to announcements, polls and puts.
type Standing = standing

// Status is the first thing that a Standing says.
type Status = status

// The statuses of a Standing.
const (
	StatusReady     = statusReady
	StatusReceiving = statusReceiving
	StatusChecking  = statusChecking
	StatusVoted     = statusVoted
	StatusRefused   = statusRefused
	StatusGone      = statusGone
)

// NewStepped judges what an earlier process left, as New does. session is called with the log's word on a session; it
// reports whether a live session of the caller took it.
func NewStepped(cfg Config, session func(id meta.ContentID, published bool) bool) (*Stepped, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &counters{}
	s := &Stepped{cfg: cfg, assigner: newAssigner(cfg), session: session}
	s.member = newMember(cfg, newRemoteReads(cfg, c))
	s.pusher = newPusher(cfg, newLanes(cfg.Peers, cfg.Groups, cfg.Logger, cfg.Clock.Now), newTransfers(), c, s.member.settle)
	s.member.startUp()
	return s, nil
}

// Enter and Leave say that a session of the caller holds a content's bytes, or no longer does.
func (s *Stepped) Enter(id meta.ContentID, root meta.NodeID) {
	s.member.holds[id] = newHold(s.member, id, root, 0)
}

// Leave undoes Enter.
func (s *Stepped) Leave(id meta.ContentID) { delete(s.member.holds, id) }

// CarryOut acts on one event of the log, as Replicator does behind Applied.
func (s *Stepped) CarryOut(e meta.Event) {
	switch e.Kind {
	case meta.EventDecided:
		s.decided(e.Session, e.Commit)
	case meta.EventFenced:
		for _, id := range s.member.undecided() {
			if id.Node == e.Node && id.Incarnation <= e.Incarnation && s.member.judge(id) == verdictAborted {
				s.decided(id, false)
			}
		}
	case meta.EventRetired:
		if e.Node == 0 || e.Node == s.cfg.Self().Node {
			s.member.retiredNow(e.Content)
		}
	}
}

func (s *Stepped) decided(id meta.ContentID, published bool) {
	if s.session(id, published) {
		return
	}
	v := verdictAborted
	if published {
		v = verdictPublished
	}
	s.member.decided(id, v)
}

// Restored tells that the state was replaced by a snapshot.
func (s *Stepped) Restored() {
	for _, id := range s.member.undecided() {
		if v := s.member.judge(id); v != verdictOpen {
			s.decided(id, v == verdictPublished)
		}
	}
	s.member.compared.due.Add(1)
	s.member.startUp()
}

// Put takes a small content and answers with the vote.
func (s *Stepped) Put(from meta.NodeID, item *PutItem) Standing { return s.member.putOne(from, item) }

// PutHere stores the writer's own copy of a small content; nil is stored.
func (s *Stepped) PutHere(id meta.ContentID, root [32]byte, data []byte) error {
	got, err := s.cfg.Store.Put(context.Background(), storeID(id), content.Shape{Size: int64(len(data))}, bytes.NewReader(data))
	if err == nil && got != content.Hash(root) {
		err = content.ErrMismatch
	}
	if err == nil {
		s.member.settle(id)
	}
	return err
}

// Already answers for a content that is stored here, or that nobody wants any more.
func (s *Stepped) Already(id meta.ContentID, published bool) (Standing, bool) {
	return s.member.already(id, published)
}

// Judge reads what the applied log says about a session.
func (s *Stepped) Judge(id meta.ContentID) (decided, published bool) {
	v := s.member.judge(id)
	return v != verdictOpen, v == verdictPublished
}

// Settle carries out what the log says of a stored content; it is false if nobody wants it.
func (s *Stepped) Settle(id meta.ContentID) bool { return s.member.settle(id) }

// Commit makes a stored content live and reports it where the log does not know of it.
func (s *Stepped) Commit(id meta.ContentID) { s.member.commit(id) }

// Drop deletes what is stored of an aborted session.
func (s *Stepped) Drop(id meta.ContentID) { s.member.drop(id) }

// Damaged reports whether a stored content is known to be damaged.
func (s *Stepped) Damaged(id meta.ContentID) bool { return s.member.damaged(id) }

// Reconcile compares what the log says is owed to this node with what its store has.
func (s *Stepped) Reconcile() { s.member.reconcileOnce(context.Background()) }

// StockAsked reports, once, whether Reconcile was asked for.
func (s *Stepped) StockAsked() bool {
	select {
	case <-s.member.stock:
		return true
	default:
		return false
	}
}

// Sweep deletes what was retired long enough ago.
func (s *Stepped) Sweep() { s.member.sweep() }

// Held is a batch of contents to be told to the log; HeldTold says that it has taken them.
func (s *Stepped) Held() []meta.ContentID { return s.member.held.take() }

// HeldTold undoes what Held lists.
func (s *Stepped) HeldTold(ids []meta.ContentID) { s.member.held.done(ids) }

// Lost is a batch of contents that the log believes to be here in vain; LostTold says that it has been told.
func (s *Stepped) Lost() []meta.ContentID { return s.member.lost.take() }

// LostTold undoes what Lost lists.
func (s *Stepped) LostTold(ids []meta.ContentID) { s.member.lost.done(ids) }

// Missing looks after a content that should be here and is not.
func (s *Stepped) Missing(id meta.ContentID) { s.member.missing(id) }

// Spares lists contents to be offered to the log in a Release.
func (s *Stepped) Spares(limit int) []meta.ContentID { return s.member.spares(limit) }

// Known reports whether the log has published a content with this root.
func (s *Stepped) Known(id meta.ContentID, root [32]byte) bool { return s.member.known(id, root) }

// Voted notes the root of a content that a session has stored.
func (s *Stepped) Voted(id meta.ContentID, root [32]byte) { s.member.voted(id, root) }

// Targets is who is to get a version.
type Targets struct {
	s *pushSession
}

// NextSession gives out a session number of this node.
func (s *Stepped) NextSession() meta.ContentID { return s.pusher.numbers.next() }

// Choose reads the placement of a push from the applied log, for the publish that op will be.
func (s *Stepped) Choose(push *Push, op *meta.Publish) (*Targets, error) {
	t, err := s.pusher.choose(push)
	if err != nil {
		return nil, err
	}
	return &Targets{&pushSession{p: s.pusher, push: push, targets: t, id: op.Session, op: op}}, nil
}

// Others are the members that are up, without this node.
func (t *Targets) Others() []meta.NodeID { return slices.Clone(t.s.targets.others) }

// Self reports whether this node is a member.
func (t *Targets) Self() bool { return t.s.targets.self }

// MinCopies is how many members must hold the version before it is proposed.
func (t *Targets) MinCopies() int { return t.s.targets.minCopies() }

// Look reads the log's view of the members for the session of the push.
func (t *Targets) Look() View {
	v, _ := t.s.p.look(&t.s.targets)
	return v
}

// Look reads the log's view of the members for a session of catch-up.
func (s *Stepped) Look(members []meta.NodeID) View { return looked(s.cfg.Names, members) }

// Lost are the members to ask again, because too few have voted without them.
func (t *Targets) Lost(votes []meta.NodeID, missed []meta.Missed) []meta.NodeID {
	return t.s.targets.lost(votes, missed)
}

// Refresh looks at the members again, and returns those that went down or restarted meanwhile.
func (t *Targets) Refresh() []meta.NodeID { return t.s.p.refresh(&t.s.targets) }

// Inline reports whether the bytes ride in the publish.
func (t *Targets) Inline() bool {
	return t.s.push.Size <= meta.MaxInline && t.s.targets.policy.Placement == meta.PlaceAll && t.s.targets.voters >= inlineVoters
}

// Count fills votes into the publish; too few are an error.
func (t *Targets) Count(votes []meta.NodeID, missed []meta.Missed) error {
	return t.s.count(votes, missed)
}

// Refused explains why apply did not take the publish; again says that a new session may succeed.
func (t *Targets) Refused(res meta.Result) (err error, again bool) {
	err = t.s.refused(res)
	_, again = err.(errAgain)
	return err, again
}

// Settled reports whether a session given up needs no abort any more.
func (s *Stepped) Settled(id meta.ContentID) bool {
	if over, err := s.cfg.Names.Decided(id); err == nil && over {
		return true
	}
	return id.Incarnation != s.cfg.Self().Incarnation
}

// Order is catch-up work for one source.
type Order struct {
	Source   meta.NodeID
	Targets  []meta.NodeID
	Contents []meta.ContentID
}

// Orders is one round of the leader's look at what is owed.
func (s *Stepped) Orders() []Order {
	orders, err := s.assigner.look()
	if err != nil {
		return nil
	}
	var out []Order
	for _, o := range orders {
		s.assigner.begin(o)
		out = append(out, Order{o.source, o.targets, o.contents})
	}
	return out
}

// OrderDone tells what came of contents of an order: done but at the targets in failed, or to be tried again later, if
// absent with another source.
func (s *Stepped) OrderDone(o Order, done []meta.ContentID, failed []meta.NodeID, absent, left []meta.ContentID) {
	s.assigner.done(o.Targets, done, failed)
	s.assigner.failed(o.Targets, absent, o.Source)
	s.assigner.failed(o.Targets, left, o.Source)
}

// NoLeader forgets orders: another node leads.
func (s *Stepped) NoLeader() { s.assigner.forgetAll() }
