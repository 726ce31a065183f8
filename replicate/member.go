package replicate

import (
	"context"
	"errors"
	"fmt"
	"sync"

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
	cfg    Config
	groups *memberGroups
	held   *reports // contents that the log does not know to be here
	lost   *reports // contents that the log wrongly believes to be here
	// compared is the check whether the log's belief is right.
	compared comparison
	// retired holds what is deleted later.
	retired *retirements
	failed  failedCommits
	remote  *remoteReads
	stock   chan struct{}       // asks for a pass over what is owed to this node
	deep    chan meta.ContentID // deltas to look at
	// unchecked are contents to check before they are read without the daemon
	unchecked chan meta.ContentID

	ctx  context.Context
	stop context.CancelFunc
	quit chan struct{}
	wg   sync.WaitGroup

	putSlots chan struct{}

	mu     sync.Mutex
	runs   map[meta.ContentID]*memberRun
	roots  map[meta.ContentID][32]byte // of the votes of this process that are not decided
	kept   map[meta.ContentID]struct{} // bytes of sessions that were fenced
	closed bool
}

func newMember(cfg Config, remote *remoteReads) *Member {
	ctx, stop := context.WithCancel(context.Background())
	m := &Member{
		cfg: cfg, groups: newMemberGroups(cfg.Groups, cfg.Logger), held: newHeldReports(cfg), lost: newLostReports(cfg),
		retired: newRetirements(), remote: remote, stock: make(chan struct{}, 1), deep: make(chan meta.ContentID, 256),
		unchecked: make(chan meta.ContentID, 256),
		ctx:       ctx, stop: stop, quit: make(chan struct{}), putSlots: make(chan struct{}, putsAtOnce),
		runs: make(map[meta.ContentID]*memberRun), roots: make(map[meta.ContentID][32]byte),
		kept: make(map[meta.ContentID]struct{}),
	}
	m.lost.keep = m.stillLost
	m.held.taken = m.lookAtBacklog
	m.compared.due.Store(1)
	return m
}

// close ends all sessions; what they have stays in the store. No request may come in any more.
func (m *Member) close() {
	m.mu.Lock()
	if !m.closed {
		m.closed = true
		close(m.quit)
	}
	m.mu.Unlock()
	m.stop()
	m.groups.close()
	m.wg.Wait()
}

func (m *Member) find(id meta.ContentID) *memberRun {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runs[id]
}

func (m *Member) forget(h *memberRun) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runs[h.id] == h {
		delete(m.runs, h.id)
	}
}

// enter finds the session or makes it.
func (m *Member) enter(id meta.ContentID, root meta.NodeID, ino meta.Ino) (*memberRun, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	if h := m.runs[id]; h != nil {
		return h, nil
	}
	if len(m.runs) >= runsMax {
		return nil, fmt.Errorf("replicate: %d sessions here already", runsMax)
	}
	h := newMemberRun(m, id, root, ino)
	m.runs[id] = h
	m.wg.Go(h.run)
	return h, nil
}

// judge reads what the applied log says about a session.
func (m *Member) judge(id meta.ContentID) session.Verdict {
	c, err := m.cfg.Names.Content(id)
	if err == nil && c.State != meta.ContentRetired {
		return session.Published
	}
	if err == nil {
		return session.Aborted
	}
	if over, err := m.cfg.Names.Decided(id); err == nil && over {
		return session.Aborted // or published and retired since: nobody wants it
	}
	return session.Undecided
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
	if a.Published && !m.known(a.Content, a.Root) {
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

// already answers for a content that is stored here, or that nobody wants any more.
func (m *Member) already(id meta.ContentID, published bool) (standing, bool) {
	v := m.judge(id)
	if v == session.Aborted {
		return standing{id, session.Standing{Status: session.StatusGone}}, true
	}
	state, ok := m.cfg.Store.State(storeID(id))
	if !ok || state == content.Partial || m.find(id) != nil {
		return standing{}, false
	}
	if published && m.damaged(id) {
		return standing{}, false
	}
	if v == session.Published {
		m.commit(id)
	}
	return standing{id, session.Standing{Status: session.StatusVoted}}, true
}

func (m *Member) damaged(id meta.ContentID) bool {
	info, err := m.cfg.Store.Stat(storeID(id))
	return err != nil || info.Damaged || !m.cfg.Store.Whole(storeID(id), info.Size)
}

// beginStore opens the bytes of a session, in place of what a session of another shape or damage left. A stored
// content is mended where it lies, which ends with ErrExists. It is deleted only if it can't be mended though the
// other holders answer.
func (m *Member) beginStore(id, follows meta.ContentID, shape content.Shape) (*content.Receiving, error) {
	sid := storeID(id)
	recv, _, err := m.cfg.Store.BeginFrom(sid, storeID(follows), shape)
	if errors.Is(err, content.ErrNoSpace) && m.dropKept() {
		recv, err = m.cfg.Store.Begin(sid, shape)
	}
	state, ok := m.cfg.Store.State(sid)
	again := errors.Is(err, content.ErrBusy) && ok && state == content.Partial ||
		errors.Is(err, content.ErrExists) && state == content.Committed && m.damaged(id)
	if !again {
		return recv, err
	}
	if state == content.Committed {
		mended := m.mendBlocks(m.ctx, id)
		if mended == nil && !m.damaged(id) {
			return nil, err
		}
		if errors.Is(mended, errNoHolder) || errors.Is(mended, content.ErrBusy) || m.ctx.Err() != nil {
			return nil, mended // what is right here may be the last of it, or is being merged or mended
		}
		m.cfg.Logger.Warn("damaged content is fetched anew", "content", id, "err", mended)
	}
	if err := m.cfg.Store.Delete(sid); err != nil {
		return nil, err
	}
	return m.cfg.Store.Begin(sid, shape)
}

// refusalReason returns the reason that is reported for an error of the store.
func refusalReason(err error) meta.OwedReason {
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
	h := m.find(b.Content)
	if h == nil {
		return errSessionOver
	}
	refused, err := ask(ctx, h, func() error { return h.begun(from, b, ann, end) })
	return errors.Join(refused, err)
}

// finish handles KindFinish. It answers any node, but takes the word on the root of the bytes only from the session's
// root.
func (m *Member) finish(ctx context.Context, from meta.NodeID, f finish) (standing, error) {
	if h := m.find(f.Content); h != nil {
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
	h := m.find(s.Content)
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
