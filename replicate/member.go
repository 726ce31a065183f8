package replicate

import (
	"context"
	"errors"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

const (
	// runsMax bounds the sessions that a member takes part in at once.
	runsMax = 4096
	// putsAtOnce bounds the small contents that are stored at the same time.
	putsAtOnce = 16
)

// Member takes part in the sessions of other nodes: it stores their contents, votes, keeps each vote until the
// log decides, and carries out what the log decides.
type Member struct {
	cfg     *Config
	applied applied
	groups  *memberGroups
	runs    *memberRuns
	remote  *remoteReads
	held    *reports // contents that the log does not know to be here
	lost    *reports // contents that the log wrongly believes to be here
	mender  *mender
	votes   *votes
	kept    *fencedBlocks
	room    *roomWatch
	retired *retirements

	verdicts   *verdicts
	reconciler *reconciler
	contents   contentServer

	ctx      context.Context
	stop     context.CancelFunc
	putSlots chan struct{}
}

func newMember(cfg Config, remote *remoteReads) *Member {
	m := &Member{
		cfg: &cfg, applied: applied{cfg.Names, cfg.Self}, groups: newMemberGroups(cfg.Groups, cfg.Logger),
		runs: newMemberRuns(), remote: remote, held: newHeldReports(cfg), lost: newLostReports(cfg),
		putSlots: make(chan struct{}, putsAtOnce),
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.room = newRoomWatch(cfg)
	failed := &failedCommits{}
	m.mender = newMender(m.cfg, m.applied, remote, m.lost, failed)
	m.votes = newVotes(m.cfg)
	m.kept = newFencedBlocks(m.cfg, m.votes)
	m.retired = newRetirements(m.cfg, m.applied, m.runs, m.held)
	m.verdicts = &verdicts{cfg: m.cfg, applied: m.applied, groups: m.groups, runs: m.runs, votes: m.votes, kept: m.kept,
		mender: m.mender, retired: m.retired, failed: failed}
	m.reconciler = &reconciler{cfg: m.cfg, applied: m.applied, runs: m.runs, verdicts: m.verdicts, mender: m.mender,
		retired: m.retired, held: m.held, lost: m.lost, stock: make(chan struct{}, 1)}
	m.contents = contentServer{cfg: m.cfg, applied: m.applied, mender: m.mender}
	m.verdicts.report, m.mender.settle = m.reconciler.report, m.verdicts.settle
	m.lost.keep = m.reconciler.stillLost
	m.held.taken = m.reconciler.lookAtBacklog
	m.reconciler.compared.due.Store(1)
	return m
}

// close ends all sessions; what they have stays in the store. No request may come in any more.
func (m *Member) close() {
	m.runs.stop()
	m.kept.stop()
	m.stop()
	m.groups.close()
	m.runs.wg.Wait()
	m.kept.wg.Wait()
}

// startUp judges what an earlier process left, and finds what was retired meanwhile.
func (m *Member) startUp() {
	for _, id := range m.verdicts.undecided() {
		if v := m.applied.judge(id); v != session.Undecided {
			m.verdicts.decided(id, v)
		}
	}
	now := m.cfg.Clock.Now()
	for _, id := range m.cfg.Store.List(content.Committed) {
		if !m.applied.wanted(metaID(id)) {
			m.retired.add(metaID(id), now)
		}
	}
}

// enter finds the session or makes it.
func (m *Member) enter(id meta.ContentID, root meta.NodeID, ino meta.Ino) (*memberRun, error) {
	return m.runs.enter(id, func() *memberRun { return newMemberRun(m, id, root, ino) })
}

// announce handles KindAnnounce.
func (m *Member) announce(ctx context.Context, from meta.NodeID, a announce) (st standing, err error) {
	refused := standing{a.Content, session.Standing{Epoch: a.Epoch, Status: session.StatusRefused,
		Reason: meta.OwedFailed}}
	shape, err := content.DecodeShape(a.Shape)
	if err != nil {
		return refused, err
	}
	if a.Content.IsZero() || !a.Published && a.Content.Node != from {
		return refused, fmt.Errorf("replicate: node %d announces content %v", from, a.Content)
	}
	if st, ok := m.already(a.Content, a.Published); ok {
		st.Epoch = a.Epoch
		return st, nil
	}
	m.awaitKnown(ctx, []putItem{{Content: a.Content, Published: a.Published, Root: a.Root}})
	if a.Published && !m.applied.known(a.Content, a.Root) {
		refused.Reason, refused.Text = meta.OwedSlow, errNotKnown.Error()
		return refused, nil
	}
	m.awaitLeft(ctx, from, &a)
	h, err := m.enter(a.Content, from, a.Ino)
	if err != nil {
		refused.Text = err.Error()
		return refused, nil
	}
	late, stop := m.cfg.Clock.After(prepareWait)
	defer stop()
	st, err = askUntil(ctx, h, late, func() standing { return h.join(from, a, shape) })
	if errors.Is(err, errLate) {
		return standing{a.Content, session.Standing{Epoch: a.Epoch, Status: session.StatusPreparing}}, nil
	}
	if !errors.Is(err, errSessionOver) {
		return st, err
	}
	if st, ok := m.already(a.Content, a.Published); ok {
		st.Epoch = a.Epoch
		return st, nil
	}
	refused.Text = err.Error()
	return refused, nil
}

// awaitLeft waits a moment until the session that an announcement follows has ended here: its root knows of the fence a
// little before. It clears Follows if that names no session of the same root.
func (m *Member) awaitLeft(ctx context.Context, from meta.NodeID, a *announce) {
	f := a.Follows
	if f.IsZero() || a.Published || f.Node != from || f == a.Content {
		a.Follows = meta.ContentID{}
		return
	}
	for limit := m.cfg.Clock.Now().Add(knownWait); m.runs.find(f) != nil && ctx.Err() == nil &&
		m.cfg.Clock.Now().Before(limit); {
		pause(ctx, m.cfg.Clock, knownPoll)
	}
}

// already answers for a content that is stored here, or that nobody wants any more.
func (m *Member) already(id meta.ContentID, published bool) (standing, bool) {
	v := m.applied.judge(id)
	if v == session.Aborted {
		return standing{id, session.Standing{Status: session.StatusGone}}, true
	}
	state, ok := m.cfg.Store.State(storeID(id))
	if !ok || state == content.Partial || m.runs.find(id) != nil {
		return standing{}, false
	}
	if published && m.mender.damaged(id) {
		return standing{}, false
	}
	if v == session.Published {
		m.verdicts.commit(id)
	}
	return standing{id, session.Standing{Status: session.StatusVoted}}, true
}

// beginStore opens the bytes of a session, in place of what a session of another shape or damage left. A stored
// content is mended where it lies, which ends with ErrExists. It is deleted only if it can't be mended though the
// other holders answer.
func (m *Member) beginStore(id, follows meta.ContentID, shape content.Shape) (*content.Receiving, error) {
	sid := storeID(id)
	recv, _, err := m.cfg.Store.BeginFrom(sid, storeID(follows), shape)
	if errors.Is(err, content.ErrNoSpace) && m.kept.dropAll() {
		recv, err = m.cfg.Store.Begin(sid, shape)
	}
	state, ok := m.cfg.Store.State(sid)
	again := errors.Is(err, content.ErrBusy) && ok && state == content.Partial ||
		errors.Is(err, content.ErrExists) && state == content.Committed && m.mender.damaged(id)
	if !again {
		return recv, err
	}
	if state == content.Committed {
		mended := m.mender.mendBlocks(m.ctx, id)
		if mended == nil && !m.mender.damaged(id) {
			return nil, err
		}
		if errors.Is(mended, errNoHolder) || errors.Is(mended, content.ErrBusy) || m.ctx.Err() != nil {
			return nil, mended // what is right here may be the last of it, or is being merged or mended
		}
		m.cfg.Logger.Warn("damaged content is fetched again", "content", id, "err", mended)
	}
	if err := m.cfg.Store.Delete(sid); err != nil {
		return nil, err
	}
	return m.cfg.Store.Begin(sid, shape)
}

// refusalReason returns the reason that is reported for an error of the store.
func (m *Member) refusalReason(err error) meta.OwedReason {
	m.room.refused(err)
	switch {
	case errors.Is(err, content.ErrNoSpace):
		return meta.OwedFull
	case errors.Is(err, content.ErrNoBase), errors.Is(err, content.ErrTooDeep):
		return meta.OwedJoined
	case errors.Is(err, content.ErrBusy):
		return meta.OwedSlow
	}
	return meta.OwedFailed
}

// begin handles KindBegin.
func (m *Member) begin(ctx context.Context, from meta.NodeID, b begin) error {
	end, err := m.groups.find(from, b.Group)
	if err != nil {
		return err
	}
	ann, err := rdmc.DecodeAnnouncement(b.Announcement)
	if err != nil {
		return err
	}
	h := m.runs.find(b.Content)
	if h == nil {
		return errSessionOver
	}
	refused, err := ask(ctx, h, func() error { return h.begun(from, b, ann, end) })
	return errors.Join(refused, err)
}

// finish handles KindFinish. It answers any node, but takes the word on the root of the bytes only from the session's
// root.
func (m *Member) finish(ctx context.Context, from meta.NodeID, f finish) (standing, error) {
	if h := m.runs.find(f.Content); h != nil {
		st, err := h.answer(ctx, from, f)
		if !errors.Is(err, errSessionOver) {
			return st, err
		}
	}
	st, ok := m.already(f.Content, false)
	if !ok {
		// it restarted
		st = standing{f.Content, session.Standing{Status: session.StatusRefused, Reason: meta.OwedUnreachable,
			Text: "no such session here"}}
	}
	st.Epoch = f.Epoch
	return st, nil
}

// stopped handles KindStop.
func (m *Member) stopped(ctx context.Context, from meta.NodeID, s stop) error {
	h := m.runs.find(s.Content)
	if h == nil {
		return nil
	}
	_, err := ask(ctx, h, func() bool {
		if h.root == from {
			h.step(session.Stopped{Epoch: s.Epoch, Drop: s.Drop})
		}
		return true
	})
	if errors.Is(err, errSessionOver) {
		return nil
	}
	return err
}
