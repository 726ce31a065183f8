package replicate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
	"github.com/rdmcfs/rdmcfs/replicate/slow"
)

// large pushes the bytes by multicast, and stores this node's own copy from the same blocks. A small content has a
// group to go by; large lets that go.
func (s *pushSession) large(ctx context.Context, kept *keptGroup) error {
	defer func() { s.p.rootGroups.letGo(kept) }()
	recv, continued, err := s.beginCopy()
	if err != nil {
		if errors.Is(err, content.ErrNoSpace) {
			return fmt.Errorf("%w: %w", ErrNoSpace, err)
		}
		return err
	}
	if stream := recv.Layout().StreamBytes(); stream <= smallMax && kept == nil {
		shape, err := recv.Layout().Shape().AppendBinary(nil)
		if err == nil && len(shape) <= maxPutShapeBytes {
			if kept = s.chooseWay(ctx, stream); kept == nil {
				s.status.stream(stream)
				return s.shaped(ctx, recv, shape)
			}
		}
	}
	local := newLocalCopy(s.p.cfg.Store, recv)
	defer s.dropBefore()
	staged, before, done := s.stagedOrKept()
	defer done()
	run, err := s.newRun(local, staged)
	if err != nil {
		return errors.Join(err, local.close(true))
	}
	run.kept = kept
	if continued || before {
		run.follows = s.before
	}
	src := run.source.(*copySource)
	if kept != nil {
		if err := src.readAhead(); err != nil {
			src.release()
			return errors.Join(ownCopyError(err), local.close(true))
		}
	}
	keep := make(chan struct{})
	localCtx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(keep)
		s.storeHere(localCtx, run, src, local)
	}()
	run.run(ctx)
	s.moved = run.sess.Gained()
	cancel()
	<-keep
	src.release()
	s.p.transfers.leftOut(s.p.cfg.Logger, "member left out", s.id, run.sess.Members())
	s.p.counters.epochs.Add(uint64(run.sess.Epoch()))
	_, missed := run.votes()
	s.p.counters.ejected.Add(uint64(len(missed)))
	err = s.concluded(ctx, run, src)
	if closeErr := local.close(err != nil && !s.mayFollow(ctx, run)); closeErr != nil {
		s.p.cfg.Logger.Warn("own copy let go with error", "content", s.id, "err", closeErr)
	}
	return err
}

// beginCopy opens this node's copy in the best shape that its store takes. If an earlier session left a copy, it
// continues that one: then all members get the bytes that were read there.
func (s *pushSession) beginCopy() (recv *content.Receiving, continued bool, err error) {
	if s.push.Size <= smallMax { // as by calls: no chain of deltas, no holes
		return s.p.cfg.Store.BeginFrom(storeID(s.id), storeID(s.before), content.Shape{Size: s.push.Size})
	}
	shape, delta := s.deltaShape()
	if delta {
		recv, continued, err = s.p.cfg.Store.BeginFrom(storeID(s.id), storeID(s.before), shape)
		if err == nil || !errors.Is(err, content.ErrNoBase) && !errors.Is(err, content.ErrTooDeep) &&
			!errors.Is(err, content.ErrBusy) {
			return recv, continued, err
		}
	}
	return s.p.cfg.Store.BeginFrom(storeID(s.id), storeID(s.before), plainShape(s.push.Size, s.push.Data))
}

// stagedOrKept returns the bytes to send: the bytes that an earlier session has read, if its copy here was whole, else
// the staged ones. The caller calls done.
func (s *pushSession) stagedOrKept() (staged io.ReaderAt, kept bool, done func()) {
	if s.before.IsZero() {
		return s.staged(), false, func() {}
	}
	r, err := s.p.cfg.Store.OpenUndecided(storeID(s.before))
	if err != nil {
		return s.staged(), false, func() {}
	}
	return r, true, func() {
		if err := r.Close(); err != nil {
			s.p.cfg.Logger.Warn("own copy of the session before let go with error", "content", s.before, "err", err)
		}
	}
}

// mayFollow reports whether another session may continue this node's copy, if the log fences this session; else the log
// drops the copy.
func (s *pushSession) mayFollow(ctx context.Context, run *rootRun) bool {
	own, _ := run.sess.Own()
	return own == session.OwnReading && ctx.Err() == nil
}

// dropBefore removes what the earlier session has left here, if it was not taken over.
func (s *pushSession) dropBefore() {
	if s.before.IsZero() {
		return
	}
	if err := s.p.cfg.Store.Abort(storeID(s.before)); err != nil {
		s.p.cfg.Logger.Debug("own copy of the session before", "content", s.before, "err", err)
	}
}

// newRun makes the shell of the session.
func (s *pushSession) newRun(local *localCopy, staged io.ReaderAt) (*rootRun, error) {
	shape, err := local.layout.Shape().AppendBinary(nil)
	if err != nil {
		return nil, err
	}
	others := s.targets.others
	if s.localFirst() {
		others = nil
	}
	look := func() (e session.View) {
		if !s.localFirst() {
			e, _ = s.p.look(&s.targets)
		}
		return e
	}
	stream := local.layout.StreamBytes()
	s.status.stream(stream)
	form, _, err := chooseForm(s.p.cfg.Names, append([]meta.NodeID{s.id.Node}, others...), stream, s.targets.policy.ID)
	if err != nil {
		return nil, err
	}
	groupBlock := form.BlockBytes
	src := newCopySource(local, staged, groupBlock)
	limits := s.p.cfg.Tuning.limits(groupBlock)
	return &rootRun{
		cfg: s.p.cfg, rootGroups: s.p.rootGroups, after: &s.p.wg, id: s.id, ino: s.push.Ino,
		policy: s.targets.policy.ID, capped: form.SendRate > 0 || stream <= smallMax,
		layout: local.layout, shape: shape, source: src, groupBlock: groupBlock, status: s.status,
		limits: limits,
		sess: session.NewRoot(session.RootConfig{
			Members: others, Blocks: int(local.layout.Blocks()), Limits: limits,
			Pace: s.p.rootGroups.paceOf(form),
		}),
		events: make(chan session.RootEvent, 64), views: s.p.viewChange, look: look,
		idle: func(ctx context.Context) { _ = src.readRest(ctx) }, // kept in src
	}, nil
}

// storeHere finishes this node's own copy as soon as every block was read, while members still receive. It reads them
// itself when that is urgent.
func (s *pushSession) storeHere(ctx context.Context, run *rootRun, src *copySource, local *localCopy) {
	select {
	case <-s.push.Urgent:
		_ = src.readRest(ctx) // kept in src
	case <-src.full:
	case <-src.broken:
	case <-ctx.Done():
	}
	select {
	case <-src.full:
		s.taken()
	case <-src.broken:
		run.feed(ctx, session.OwnCopy{Err: src.failure()})
		return
	case <-ctx.Done():
		return
	}
	root, err := local.recv.Root(ctx)
	if err != nil {
		run.feed(ctx, session.OwnCopy{Err: err})
		return
	}
	run.feed(ctx, session.Hashed{Hash: root})
	run.feed(ctx, session.OwnCopy{Err: local.finish(ctx, root)})
}

// concluded turns the end of the session into votes or an error.
func (s *pushSession) concluded(ctx context.Context, run *rootRun, src *copySource) error {
	sess := run.sess
	if err := ctx.Err(); err != nil {
		return err
	}
	if own, err := sess.Own(); own != session.OwnStored {
		return ownCopyError(errors.Join(err, src.failure()))
	}
	s.op.Root = sess.Hash()
	for _, m := range sess.Members() {
		if m.Called {
			s.asks(m.Node)
		}
	}
	votes, missed := run.votes()
	if s.targets.self {
		votes = append(votes, s.id.Node)
	}
	err := s.count(votes, s.deferred(missed))
	if err != nil && run.layout.Shape().IsDelta() && lackBase(missed) {
		return errAgain{whole: true, err: err}
	}
	return err
}

// ownCopyError is why this node has no copy of its own; err may be nil.
func ownCopyError(err error) error {
	switch {
	case errors.Is(err, content.ErrNoSpace):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case err == nil:
		err = errors.New("no progress")
	}
	return fmt.Errorf("own copy: %w", err)
}

// lackBase reports whether a member refused because it has not caught up with the base.
func lackBase(missed []meta.Missed) bool {
	for _, m := range missed {
		if m.Reason == meta.OwedJoined {
			return true
		}
	}
	return false
}

// leastPace is what still counts as progress, in bytes a second: a member may take that long over one block.
const leastPace = 256 << 10

func (t Tuning) limits(groupBlock int64) session.Limits {
	l := session.DefaultLimits()
	l.Silent, l.Stalled, l.Stuck = t.Silent, t.Stalled, t.Stuck
	l.Stalled += time.Duration(groupBlock) * time.Second / leastPace
	l.Slow = slow.Limits{Over: t.SlowFor, Trial: t.SlowFor * 3 / 10, Part: t.SlowPart, Step: groupBlock}
	return l
}

func (t *transfer) stream(n int64) {
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	t.st.Stream = n
}
