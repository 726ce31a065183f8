package replicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	// smallMax is the largest content that goes to each member in one message.
	smallMax = maxSmallBytes
	// inlineVoters is how many voters the log needs before bytes ride in it.
	inlineVoters = 3
	// proposeMax bounds the wait for the log, beyond the log's own time limit.
	proposeMax = 31 * time.Second
	// attemptsMax bounds the sessions of one push.
	attemptsMax = 6
	// elsewhereMax bounds the sessions that only found that other nodes are to be asked.
	elsewhereMax = 64
	// endWait bounds how long a push that failed waits to learn whether its session was fenced, and for its node's
	// next incarnation.
	endWait = 10 * time.Second
	// endWaitMin is what is left of that for a push that has stood still for long: a close ends 30 s after bytes or
	// votes last came.
	endWaitMin = 5 * time.Second
	// bootPoll is how often a push looks whether its node has its next incarnation.
	bootPoll = 50 * time.Millisecond
	// extentsMax bounds the extents of a delta; closer ones are joined beyond it.
	extentsMax = 1 << 16
)

// Pusher replicates the files written on this node.
type Pusher struct {
	cfg        Config
	rootGroups *rootGroups
	numbers    sessionNumbers
	transfers  *transfers
	aborts     *abortQueue
	counters   *counters
	sharing    sharingWatch
	rooms      *roomBook
	settle     func(meta.ContentID) bool // carries out a decision that came before the bytes were stored

	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	changed chan struct{} // closed and replaced when the log's view of the nodes changes
	wg      sync.WaitGroup
}

func newPusher(
	cfg Config, rg *rootGroups, tr *transfers, c *counters, rooms *roomBook, settle func(meta.ContentID) bool,
) *Pusher {
	ctx, stop := context.WithCancel(context.Background())
	return &Pusher{
		cfg: cfg, rootGroups: rg, transfers: tr, counters: c, rooms: rooms, settle: settle,
		numbers: sessionNumbers{self: cfg.Self}, aborts: newAbortQueue(cfg), ctx: ctx, stop: stop,
		changed: make(chan struct{}),
	}
}

// close ends all sessions and waits for them.
func (p *Pusher) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.wg.Wait()
}

// viewChanged wakes sessions that wait for members which may be down now.
func (p *Pusher) viewChanged() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Pusher) viewChange() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// enter counts a Publish in; the caller's goroutine may be gone before it ends.
func (p *Pusher) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	p.wg.Add(1)
	return nil
}

// Publish implements Publisher. The work goes on after ctx was cancelled until the session is ended in the log.
func (p *Pusher) Publish(ctx context.Context, push Push) (Outcome, error) {
	if push.Size < 0 || push.Size > maxFileBytes {
		return Outcome{}, fmt.Errorf("replicate: publish inode %d: size %d: %w", push.Ino, push.Size, syscall.EFBIG)
	}
	if err := p.enter(); err != nil {
		return Outcome{}, err
	}
	type result struct {
		out Outcome
		err error
	}
	done := make(chan result, 1)
	inner, cancel := mergeDone(ctx, p.ctx)
	go func() {
		defer p.wg.Done()
		defer cancel()
		out, err := p.publish(inner, &push)
		if err == nil {
			p.cfg.Point(PointReply)
		}
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		return r.out, r.err
	case <-ctx.Done():
		return Outcome{}, fmt.Errorf("replicate: publish inode %d: %w", push.Ino, ctx.Err())
	}
}

// mergeDone is a context that ends with either, or with cancel.
func mergeDone(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(a)
	unhook := context.AfterFunc(b, cancel)
	return ctx, func() { unhook(); cancel() }
}

// publish tries once, and again where another form of the push can do better.
func (p *Pusher) publish(ctx context.Context, push *Push) (Outcome, error) {
	p.counters.pushes.Add(1)
	s, out, err := p.attempt(ctx, push, nil)
	var again errAgain
	for tries, full := 1, 0; tries < attemptsMax && full < elsewhereMax; {
		if !errors.As(err, &again) || ctx.Err() != nil {
			break
		}
		if again.elsewhere {
			full++
		} else {
			tries++
		}
		if p.nameless(push) {
			ino, noName := push.named(ctx)
			if noName != nil {
				err = errors.Join(noName, again)
				break
			}
			push.Ino = ino
		}
		if again.whole {
			push.Dirty = nil // members lack the base
		}
		s, out, err = p.attempt(ctx, push, s)
	}
	if s != nil {
		s.status.end(ending(out, err))
	}
	if err != nil {
		p.counters.failures.Add(1)
		return out, fmt.Errorf("replicate: publish inode %d: %w", push.Ino, err)
	}
	return out, nil
}

// nameless reports whether a new file has lost its inode, most often by the fence that ended the session before: what
// would be pushed now would be an orphan, and be placed by the policy of no directory.
func (p *Pusher) nameless(push *Push) bool {
	if push.LinkName != "" || !push.Base.IsZero() {
		return false
	}
	_, err := p.cfg.Names.Inode(push.Ino)
	return isNotFound(err)
}

// errAgain says that another attempt, in a new session, may succeed.
type errAgain struct {
	whole     bool // without the base
	elsewhere bool // at nodes that were not asked yet
	err       error
}

func (e errAgain) Error() string { return e.err.Error() }

func (e errAgain) Unwrap() error { return e.err }

// attempt is one session, from its number to its end in the log. It continues from where the session before came to, if
// that was fenced. The session before, nil for the first, is shown as repeated when the next one begins. attempt
// returns the session that is shown last: its end is not shown yet.
func (p *Pusher) attempt(ctx context.Context, push *Push, before *pushSession) (*pushSession, Outcome, error) {
	t, err := p.choose(push)
	if err != nil {
		return before, Outcome{}, err
	}
	s := &pushSession{
		p: p, push: push, targets: t, id: p.numbers.next(), asked: make(map[meta.NodeID]uint32),
		op: &meta.Publish{
			Ino: push.Ino, Base: push.Base, Size: push.Size, Holes: min(push.Holes, push.Size), Attr: push.Attr,
			Hint:       hintOf(push.Path),
			LinkParent: push.LinkParent, LinkName: push.LinkName, Btime: push.Btime,
		},
	}
	if push.LinkName != "" {
		s.op.Ino = 0
	}
	s.op.Session = s.id
	if before != nil {
		s.before, s.asked = before.id, before.asked
		before.status.end(EndRepeated, before.failed.Error())
	}
	if t.self {
		s.asks(s.id.Node)
	}
	s.status = p.transfers.begin(p.cfg.Clock, TransferStatus{
		Content: s.id, Ino: push.Ino, Path: push.Path, Size: push.Size, Stream: push.Size, Phase: PhaseProposing,
	})
	out, err := s.carry(ctx)
	s.failed = err
	return s, out, err
}

// carry brings the bytes to the members and the version into the log.
func (s *pushSession) carry(ctx context.Context) (Outcome, error) {
	if s.push.Allowed != nil {
		if err := s.push.Allowed(); err != nil {
			s.giveUp()
			return Outcome{}, err
		}
	}
	if err := s.gather(ctx); err != nil {
		s.giveUp()
		return Outcome{}, s.fenced(ctx, err)
	}
	return s.propose(ctx)
}

// fenced checks whether a failed session belonged to an incarnation that has ended. Then its members dropped what they
// had, since the cluster took this node for dead, and another session may succeed. This is known when the log has ended
// the session: all entries before are applied here then. fenced waits for that, and for the node's next incarnation,
// for at most endWait.
func (s *pushSession) fenced(ctx context.Context, err error) error {
	var again errAgain
	fullHere := errors.Is(err, ErrNoSpace) && !errors.Is(err, ErrCopies) // another session can't help
	if errors.As(err, &again) || errors.Is(err, ErrCut) || fullHere || ctx.Err() != nil {
		return err
	}
	now := s.p.cfg.Clock.Now()
	wait := endWait
	if !s.moved.IsZero() {
		wait = min(endWait, max(endWaitMin, s.p.cfg.Tuning.Stuck+endWaitMin-now.Sub(s.moved)))
	}
	patience, stop := s.p.cfg.Clock.After(wait)
	defer stop()
	select {
	case <-s.ended:
	case <-patience:
	case <-ctx.Done():
	}
	old := meta.Lease{Node: s.id.Node, Incarnation: s.id.Incarnation}
	n, readErr := s.p.cfg.Names.Node(old.Node)
	if s.p.cfg.Self() == old && (readErr != nil || n.State == meta.NodeUp && n.Incarnation == old.Incarnation) {
		return err
	}
	for until := now.Add(wait); s.p.cfg.Self() == old; pause(ctx, s.p.cfg.Clock, bootPoll) {
		if ctx.Err() != nil || s.p.cfg.Clock.Now().After(until) {
			return err
		}
	}
	return errAgain{err: err}
}

// hintOf is what an orphan is remembered by.
func hintOf(path string) string { return path[max(0, len(path)-1024):] }

// pushSession is one session of a push.
type pushSession struct {
	p       *Pusher
	push    *Push
	targets targets
	id      meta.ContentID
	before  meta.ContentID // the session of this push before; zero for the first
	op      *meta.Publish
	status  *transfer
	asked   map[meta.NodeID]uint32 // whom this push has asked for a copy, in which incarnations
	failed  error                  // what came of it; nil if it was published
	moved   time.Time              // when bytes or votes last came to a gathering that has ended; zero: not known
	ended   <-chan struct{}        // closed when the log has ended a session that was given up; nil before
}

// gather brings the bytes to the members, by the cheapest way for their size, and fills the votes in.
func (s *pushSession) gather(ctx context.Context) error {
	size := s.push.Size
	switch {
	case size == 0:
		s.taken()
		return nil
	case s.targets.rideInLog(size):
		return s.inline()
	case size <= smallMax:
		if kept := s.chooseWay(ctx, size); kept != nil {
			return s.large(ctx, kept)
		}
		return s.small(ctx)
	}
	return s.large(ctx, nil)
}

// inline puts the bytes into the entry: every node gets them with the log.
func (s *pushSession) inline() error {
	buf, err := s.readAll()
	if err != nil {
		return err
	}
	s.op.Inline = buf
	s.op.Root = contentRoot(buf)
	return nil
}

// readAll reads the staged bytes of a small file.
func (s *pushSession) readAll() ([]byte, error) {
	layout, err := content.NewLayout(content.Shape{Size: s.push.Size})
	if err != nil {
		return nil, err
	}
	buf := make([]byte, s.push.Size)
	if err := layout.ReadStream(s.staged(), buf, 0); err != nil {
		return nil, fmt.Errorf("read staged bytes: %w", err)
	}
	s.taken()
	return buf, nil
}

// contentRoot is the Merkle root of a content of one block.
func contentRoot(b []byte) [32]byte {
	return content.Root(int64(len(b)), []content.Hash{content.Leaf(b)})
}

// count fills in the votes; too few are an error.
func (s *pushSession) count(votes []meta.NodeID, missed []meta.Missed) error {
	gone := s.p.refresh(&s.targets) // a member that died meanwhile is not asked for a copy, and has none
	have := 0
	for _, n := range votes {
		if slices.Contains(gone, n) {
			missed = append(missed, meta.Missed{Node: n, Reason: meta.OwedDown})
			continue
		}
		s.op.Votes.Add(n)
		have++
	}
	for _, n := range s.targets.down {
		if !slices.Contains(votes, n) && !missing(missed, n) {
			missed = append(missed, meta.Missed{Node: n, Reason: meta.OwedDown})
		}
	}
	missed = s.cameLater(s.targets.unasked(missed))
	s.op.Votes.View, s.op.Missing = s.targets.view, missed
	s.status.counted(s.id.Node, votes, missed)
	if s.localFirst() {
		s.status.later(s.targets.others)
	}
	if want := s.targets.needed; have < want {
		return s.tooFew(have, missed, fmt.Errorf("%d of %d copies stored: %w%s", have, want, ErrCopies, s.reasons(missed)))
	}
	return nil
}

// missing reports whether a node is listed.
func missing(missed []meta.Missed, n meta.NodeID) bool {
	return slices.ContainsFunc(missed, func(m meta.Missed) bool { return m.Node == n })
}

// asks notes that a node is asked for a copy.
func (s *pushSession) asks(n meta.NodeID) { s.asked[n] = s.targets.booted[n] }

// asksMore reports whether a session with these targets would ask a node that no session of this push has asked, or not
// since the node booted.
func (s *pushSession) asksMore(t *targets) bool {
	fresh := func(n meta.NodeID) bool { return s.fresh(t, n) }
	return t.self && fresh(s.id.Node) || !t.localFirst() && slices.ContainsFunc(t.others, fresh)
}

// fresh reports whether no session of this push has asked the node since it booted.
func (s *pushSession) fresh(t *targets, n meta.NodeID) bool {
	by, asked := s.asked[n]
	return !asked || by != t.booted[n]
}

// cameLater gives the nodes that are up, and were not asked since the others were enough, their reason: they stand in
// for others, or came up, since the push began.
func (s *pushSession) cameLater(missed []meta.Missed) []meta.Missed {
	missed = slices.Clone(missed)
	for i, m := range missed {
		_, asked := s.asked[m.Node]
		if m.Reason == meta.OwedDown && slices.Contains(s.targets.others, m.Node) && !asked {
			missed[i].Reason = meta.OwedJoined
		}
	}
	if self := s.id.Node; !s.targets.self && slices.Contains(s.targets.members, self) {
		missed = append(missed, meta.Missed{Node: self, Reason: meta.OwedJoined})
	}
	return missed
}

// tooFew is the error of a session that has too few copies. Nodes that were not asked may stand in: for members that
// said that they have no room, or were declared down. If nobody does, and no more than room was missing, it is
// ErrNoSpace.
func (s *pushSession) tooFew(have int, missed []meta.Missed, err error) error {
	for _, m := range missed {
		if m.Reason != meta.OwedFull {
			continue
		}
		have++
		if !slices.Contains(s.targets.full, m.Node) {
			s.p.rooms.refused(m.Node, s.push.bytes())
		}
	}
	if next, err2 := s.p.choose(s.push); err2 == nil && s.asksMore(&next) {
		return errAgain{elsewhere: true, err: err}
	}
	if have >= s.targets.needed {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// reasons lists why members did not vote.
func (s *pushSession) reasons(missed []meta.Missed) string {
	out := ""
	for _, m := range missed {
		out += fmt.Sprintf("; node %d: %v", m.Node, m.Reason)
	}
	return out
}

// giveUp ends the session in the log, in the background, until the log has it.
func (s *pushSession) giveUp() { s.ended = s.p.aborts.add(s.id) }

// propose lets the log decide, and waits until every node shows the result.
func (s *pushSession) propose(ctx context.Context) (Outcome, error) {
	p := s.p
	if err := ctx.Err(); err != nil {
		s.giveUp()
		return Outcome{}, err
	}
	p.cfg.Point(PointPropose)
	s.status.phase(PhaseProposing)
	logCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), proposeMax)
	res, err := p.cfg.Log.Propose(logCtx, s.op)
	cancel()
	if err != nil {
		if !errors.Is(err, ErrUnknown) { // it was not proposed, also if the time was over
			s.giveUp()
		}
		return Outcome{}, fmt.Errorf("propose: %w", err)
	}
	if res.Errno != 0 {
		s.giveUp()
		return Outcome{}, s.refused(res)
	}
	p.cfg.Point(PointCommit)
	return s.show(ctx, res)
}

// refused explains why apply did not take the publish.
func (s *pushSession) refused(res meta.Result) error {
	err := fmt.Errorf("publish refused: %w", res.Errno)
	switch res.Errno {
	case syscall.ESTALE:
		err = errors.Join(ErrFenced, err)
		now := s.p.cfg.Self()
		if now.Node == s.id.Node && now.Incarnation != s.id.Incarnation {
			return errAgain{err: err}
		}
	case syscall.EIO:
		// a member restarted on the way of the votes to the log, or the file has another policy now
		return errAgain{err: errors.Join(ErrCopies, err)}
	}
	return err
}

// show waits for the barrier of G3.
func (s *pushSession) show(ctx context.Context, res meta.Result) (Outcome, error) {
	p := s.p
	p.cfg.Point(PointVisible)
	s.status.phase(PhaseVisible)
	out := Outcome{Result: res}
	if s.push.Size > 0 {
		out.Content = s.id
	}
	behind, err := p.cfg.Log.Barrier(ctx, res.Index)
	if err != nil {
		p.cfg.Logger.Warn("barrier not reached", "content", s.id, "index", res.Index, "err", err)
		out.Unseen = err
	} else {
		out.Behind = behind
		s.shown(res.Index, behind)
	}
	p.counters.published.Add(1)
	p.counters.publishedBytes.Add(uint64(s.push.Size))
	return out, nil
}

// shown notes which members show the version, and which were no longer waited for.
func (s *pushSession) shown(index uint64, behind []meta.NodeID) {
	if s.push.Size == 0 || len(s.op.Inline) > 0 {
		s.status.rides(s.targets.others, behind)
	}
	if len(behind) == 0 {
		return
	}
	p := s.p
	p.cfg.Logger.Warn("a version was published and these nodes have not shown it in time", "path", s.push.Path, "content",
		s.id,
		"index", index, "nodes", behind)
	p.transfers.leftBehind(behind, lateShow{index: index, path: s.push.Path, at: p.cfg.Clock.Now()})
	s.status.behind(behind)
}
