package replicate

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// pollWaitMax bounds how long a poll may wait at a member.
const pollWaitMax = 2 * time.Second

// prepareWait is how long an announcement waits for the bytes of its session to be opened before it is answered with
// preparing. To continue what an earlier session left takes a while: all of that is read.
const prepareWait = 500 * time.Millisecond

// epochEnd bounds the wait for the transfer of an older epoch to let go of the bytes.
const epochEnd = 2 * time.Second

// memberRun is the shell of a session.Member: one session at this node, with its bytes. One goroutine runs it; others
// hand it work by ask and post.
type memberRun struct {
	m    *Member
	id   meta.ContentID
	root meta.NodeID
	ino  meta.Ino
	wake chan struct{}
	over chan struct{} // closed when the goroutine has ended

	pushed atomic.Int64 // bytes that the writer sends to each member; 0 for catch-up

	// Of the goroutine alone.
	s        session.Member
	copy     *localCopy
	sink     *sink
	transfer Transfer
	endpoint *memberGroup
	checks   sync.WaitGroup
	spoiled  bool // the bytes failed their check and go with the copy

	mu      sync.Mutex
	box     []func()
	changed chan struct{} // closed and replaced when the answer to a poll may differ
}

func newMemberRun(m *Member, id meta.ContentID, root meta.NodeID, ino meta.Ino) *memberRun {
	return &memberRun{
		m: m, id: id, root: root, ino: ino, wake: make(chan struct{}, 1), over: make(chan struct{}),
		changed: make(chan struct{}),
	}
}

// run owns the session until it is over or the member closes.
func (h *memberRun) run() {
	defer h.m.runs.forget(h)
	defer close(h.over)
	for h.s.Phase() != session.Gone {
		select {
		case <-h.wake:
			h.drain()
		case <-h.m.runs.quit:
			h.letGo(false, false)
			return
		}
	}
	h.letGo(false, true)
}

// drain runs what was posted.
func (h *memberRun) drain() {
	for h.s.Phase() != session.Gone {
		h.mu.Lock()
		if len(h.box) == 0 {
			h.mu.Unlock()
			return
		}
		f := h.box[0]
		h.box = h.box[1:]
		h.mu.Unlock()
		f()
	}
}

// post hands f to the session's goroutine and does not wait.
func (h *memberRun) post(f func()) {
	h.mu.Lock()
	h.box = append(h.box, f)
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// letGo ends the transfer and closes the bytes. If patient is set, relays may come to their end.
func (h *memberRun) letGo(discard, patient bool) {
	h.endTransfer(patient)
	h.checks.Wait()
	if h.copy == nil {
		return
	}
	if err := h.copy.close(discard || h.spoiled); err != nil {
		h.m.cfg.Logger.Warn("session let go with error", "content", h.id, "err", err)
	}
	h.copy, h.spoiled = nil, false
}

// ask runs f in the session's goroutine and waits for what it returns. When ctx ends first f may still run.
func ask[T any](ctx context.Context, h *memberRun, f func() T) (T, error) {
	return askUntil(ctx, h, nil, f)
}

// askUntil is ask that waits only until late comes: then the error is errLate, and f still runs.
func askUntil[T any](ctx context.Context, h *memberRun, late <-chan time.Time, f func() T) (T, error) {
	done := make(chan T, 1)
	h.post(func() { done <- f() })
	var none T
	select {
	case v := <-done:
		return v, nil
	case <-h.over:
	case <-late:
		return none, errLate
	case <-ctx.Done():
		return none, ctx.Err()
	}
	select {
	case v := <-done: // it was the last thing that ran
		return v, nil
	default:
		return none, errSessionOver
	}
}

var (
	errSessionOver = errors.New("replicate: session is over")
	errLate        = errors.New("replicate: session has not answered yet")
)

// step steps the machine and carries out what it says.
func (h *memberRun) step(ev session.MemberEvent) {
	for _, act := range h.s.Step(ev) {
		switch a := act.(type) {
		case session.EndTransfer:
			h.endTransfer(false)
		case session.Check:
			h.check(a.Hash)
		case session.Commit:
			h.m.verdicts.commit(h.id)
			h.letGo(false, true)
		case session.Drop:
			h.letGo(true, false)
			h.m.votes.drop(h.id)
		case session.Discard:
			h.spoiled = true // relays may still read it
		case session.Release:
			h.letGo(false, false)
		case session.Keep:
			h.letGo(false, false)
			h.m.kept.keep(h.id)
		}
	}
	h.mu.Lock()
	close(h.changed)
	h.changed = make(chan struct{})
	h.mu.Unlock()
}

// endTransfer waits until no block of a running transfer comes any more. Its root has ended it already, or is
// about to; if it does not in time, the whole group is dropped here.
func (h *memberRun) endTransfer(patient bool) {
	if h.transfer == nil {
		return
	}
	if !patient && !waitDone(h.transfer, epochEnd) {
		h.endpoint.drop()
	}
	<-h.transfer.Done()
	h.transfer, h.endpoint, h.sink = nil, nil, nil
}

// check verifies and syncs beside the loop, so that polls are answered meanwhile.
func (h *memberRun) check(root [32]byte) {
	c := h.copy
	h.checks.Go(func() {
		err := c.finish(h.m.ctx, content.Hash(root))
		if err == nil {
			h.m.votes.voted(h.id, root)
			h.m.cfg.Point(PointVote)
		}
		reason := h.m.refusalReason(err)
		if c.layout.Shape().IsDelta() && (errors.Is(err, content.ErrMismatch) || errors.Is(err, content.ErrCorrupt)) {
			reason = meta.OwedJoined // the base here is not what it should be: as good as none
		}
		h.post(func() { h.step(session.Checked{Err: err, Reason: reason}) })
	})
}

// join takes an announcement, and the log's word if that was said before.
func (h *memberRun) join(from meta.NodeID, a announce, shape content.Shape) standing {
	h.root = from
	st := h.announce(a, shape)
	if h.s.Verdict() != session.Undecided {
		return st
	}
	switch v := h.m.applied.judge(a.Content); {
	case v == session.Aborted && isFenced(h.m.cfg.Names, a.Content):
		h.step(session.Fenced{})
	case v != session.Undecided:
		h.step(session.Decided{Verdict: v})
	}
	return st
}

// announce starts or continues the session for an epoch.
func (h *memberRun) announce(a announce, shape content.Shape) standing {
	if a.Epoch < h.s.Epoch() && !a.Published {
		return h.standing()
	}
	h.step(session.Announced{Epoch: a.Epoch, Published: a.Published, Hash: a.Root})
	if h.s.Phase() != session.Receiving {
		return h.standing()
	}
	if refused := h.begin(a.Follows, shape); refused != nil {
		refused.Epoch = a.Epoch
		h.step(session.Unopened{})
		return *refused
	}
	if !a.Published && h.copy != nil { // else it was stored here meanwhile
		h.pushed.Store(h.copy.layout.StreamBytes())
	}
	if h.s.Phase() == session.Receiving && h.copy.recv.Missing() == 0 {
		h.step(session.Whole{})
	}
	st := h.standing()
	if st.Status == session.StatusReceiving {
		st.Status, st.Have = session.StatusReady, h.copy.recv.Have()
	}
	return st
}

// begin opens the bytes for a shape; a refusal says why not.
func (h *memberRun) begin(follows meta.ContentID, shape content.Shape) *standing {
	if h.copy != nil && (h.copy.sealedNow() || !h.copy.layout.Shape().Equal(shape)) {
		h.letGo(true, false) // what is there is not what was wanted
	}
	if h.copy != nil {
		return nil
	}
	recv, err := h.m.beginStore(h.id, follows, shape)
	if errors.Is(err, content.ErrExists) {
		h.step(session.Found{})
		return nil
	}
	if err != nil {
		return &standing{h.id, session.Standing{Status: session.StatusRefused, Reason: h.m.refusalReason(err),
			Text: err.Error()}}
	}
	h.copy = newLocalCopy(h.m.cfg.Store, recv)
	return nil
}

// begun attaches the message of a group that brings the missing blocks of this epoch.
func (h *memberRun) begun(from meta.NodeID, b begin, ann rdmc.Announcement, end *memberGroup) error {
	if h.root != from {
		return errors.New("replicate: session of another root")
	}
	if b.Epoch != h.s.Epoch() || h.s.Phase() != session.Receiving || h.copy == nil {
		return errors.New("replicate: session is not in this epoch")
	}
	if h.transfer != nil {
		return nil // said twice
	}
	l := h.copy.layout
	if int64(ann.Size) != l.StreamBytes() {
		return errors.New("replicate: announcement of another size")
	}
	h.sink = newSink(h.copy, end.blockBytes)
	t, err := end.group.Receive(ann, rdmc.Receiver{Sink: h.sink, Have: groupHave(l, h.copy.recv.Have(), end.blockBytes)})
	if err != nil {
		return err
	}
	h.transfer, h.endpoint = t, end
	s := h.sink
	h.checks.Go(func() { h.await(t, s, b.Epoch) })
	return nil
}

// await notifies the session when its blocks are here.
func (h *memberRun) await(t Transfer, s *sink, epoch uint32) {
	<-t.Stored()
	if err := s.failure(); err != nil {
		h.post(func() { h.step(session.StoreFailed{Epoch: epoch, Err: err, Reason: h.m.refusalReason(err)}) })
		return
	}
	h.post(func() {
		if h.copy != nil && h.copy.recv.Missing() == 0 {
			h.step(session.Whole{})
		}
	})
}

// standing is what the session answers about itself.
func (h *memberRun) standing() standing {
	st := standing{h.id, h.s.Standing()}
	switch {
	case st.Status == session.StatusRefused:
	case h.s.Phase() == session.Voted:
	case h.copy != nil:
		st.Held = uint32(h.copy.layout.Blocks() - h.copy.recv.Missing())
	}
	return st
}

// answer waits until the session has voted or failed, or the time is over.
func (h *memberRun) answer(ctx context.Context, from meta.NodeID, f finish) (standing, error) {
	wait, stop := h.m.cfg.Clock.After(min(time.Duration(f.WaitMs)*time.Millisecond, pollWaitMax))
	defer stop()
	root := f.HasRoot
	for {
		h.mu.Lock()
		changed := h.changed
		h.mu.Unlock()
		withRoot := root
		st, err := ask(ctx, h, func() standing {
			if withRoot && h.root == from {
				h.step(session.HashTold{Epoch: f.Epoch, Hash: f.Root})
			}
			return h.standing()
		})
		if err != nil {
			return st, err
		}
		if st.Epoch != f.Epoch || st.Status != session.StatusReceiving && st.Status != session.StatusChecking {
			return st, nil
		}
		if root {
			root = false // if it was taken, that closed changed
			continue
		}
		select {
		case <-changed:
		case <-wait:
			return st, nil
		case <-ctx.Done():
			return st, ctx.Err()
		}
	}
}
