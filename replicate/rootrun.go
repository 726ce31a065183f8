package replicate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

const (
	rootTick    = 200 * time.Millisecond
	stopTimeout = time.Second
)

// blockSource gives the blocks of a session to groups of one block size.
type blockSource interface {
	rdmc.Source
	// failure is the first error of the source itself.
	failure() error
}

// rootRun is the shell of a session.Root: it carries out its actions and feeds it events. All its fields but
// events are of the goroutine that runs it.
type rootRun struct {
	cfg        Config
	rootGroups *rootGroups
	after      *sync.WaitGroup // of the owner: for what goes on when the session has ended

	id         meta.ContentID
	ino        meta.Ino
	policy     meta.PolicyID
	capped     bool       // the policy has a SendRate, or the content is small: what is reached says nothing of the links
	kept       *keptGroup // the group for the first epoch, if all members take part in it; may be nil
	layout     *content.Layout
	shape      []byte
	published  bool
	follows    meta.ContentID // the session before, whose blocks members may have kept; zero if none
	source     blockSource
	groupBlock int64
	status     *transfer
	moved      *atomic.Uint64 // counts bytes that members have stored; may be nil
	heldBytes  uint64

	limits session.Limits
	sess   *session.Root
	events chan session.RootEvent
	wg     sync.WaitGroup
	groups []*partRun                // of the present epoch, by part
	look   func() session.View       // what the log says of the members
	views  func() <-chan struct{}    // closed when that may have changed; may be nil
	idle   func(ctx context.Context) // reads what no group asks for; once, may be nil
	joins  chan joining              // nil if no node can join
	over   chan struct{}             // closed when no node can join any more; nil as joins is
}

// joining asks for more members of a session that runs.
type joining struct {
	nodes []meta.NodeID
	taken chan bool // has room for the answer
}

// join takes nodes into the session while it runs; false if it is over or too far. It waits for an answer.
func (r *rootRun) join(nodes []meta.NodeID) bool {
	j := joining{nodes, make(chan bool, 1)}
	select {
	case r.joins <- j:
		return <-j.taken
	case <-r.over:
		return false
	}
}

// takeIn answers a joining. A member that has half of the blocks gets the rest sooner without one. Nodes that are
// members already change nothing, and one that is out has had its turn.
func (r *rootRun) takeIn(ctx context.Context, j joining) {
	taken, late := true, false
	more := slices.Clone(j.nodes)
	for _, m := range r.sess.Members() {
		out := m.State == session.MemberOut
		late = late || !out && 2*int64(m.Held) >= r.layout.Blocks()
		if i := slices.Index(more, m.Node); i >= 0 {
			more = slices.Delete(more, i, i+1)
			taken = taken && !out
		}
	}
	taken = taken && (len(more) == 0 || !late)
	if taken && len(more) > 0 {
		r.step(ctx, session.Joined{Nodes: more})
	}
	j.taken <- taken
}

// partRun is one group of an epoch. ctx ends with it.
type partRun struct {
	number uint32
	part   int
	cancel context.CancelFunc
	ahead  map[int][2]uint64      // by rank: what it had done when our turn had not come; of the session's goroutine
	had    map[meta.NodeID]uint64 // blocks of the group that are sent, and that a member had before

	mu       sync.Mutex
	group    *rootGroup
	transfer Transfer
	ended    bool
	suspects []meta.NodeID
}

// run drives the session to its end. It returns when no goroutine of it is left.
func (r *rootRun) run(ctx context.Context) {
	defer r.wg.Wait()
	if !r.capped {
		defer func() { r.rootGroups.pace.Store(int64(r.sess.Pace())) }()
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if r.over != nil {
		defer close(r.over)
	}
	r.perform(inner, r.sess.Start(r.cfg.Clock.Now()))
	r.lookAround(inner)
	done := ctx.Done()
	tick, stop := r.cfg.Clock.After(rootTick)
	defer func() { stop() }()
	for r.sess.Phase() != session.RootEnded {
		r.startIdle(inner)
		r.status.show(r.sess)
		views := r.viewChange()
		select {
		case <-views:
			r.lookAround(inner)
		case ev := <-r.events:
			r.step(inner, ev)
		case j := <-r.joins:
			r.takeIn(inner, j)
		case <-tick:
			tick, stop = r.cfg.Clock.After(rootTick)
			r.lookAround(inner)
			r.reportProgress(inner)
			r.countMoved()
			r.step(inner, session.Tick{})
		case <-done: // nil after the first time
			done = nil
			r.step(inner, session.Cancel{})
		}
	}
	r.status.show(r.sess)
	r.countMoved()
}

func (r *rootRun) viewChange() <-chan struct{} {
	if r.views == nil {
		return nil
	}
	return r.views()
}

// lookAround reports to the session what the log says of its members.
func (r *rootRun) lookAround(ctx context.Context) {
	r.step(ctx, r.look())
}

// startIdle reads the source without a group, when no group is going to.
func (r *rootRun) startIdle(ctx context.Context) {
	if r.idle == nil || r.sess.Phase() != session.RootSettling {
		return
	}
	idle := r.idle
	r.idle = nil
	r.wg.Go(func() { idle(ctx) })
}

// feed hands an event to the session, unless it has ended.
func (r *rootRun) feed(ctx context.Context, ev session.RootEvent) {
	select {
	case r.events <- ev:
	case <-ctx.Done():
	}
}

// step steps the session and carries out what it says.
func (r *rootRun) step(ctx context.Context, ev session.RootEvent) {
	r.perform(ctx, r.sess.Step(r.cfg.Clock.Now(), ev))
}

func (r *rootRun) perform(ctx context.Context, acts []session.RootAction) {
	for _, act := range acts {
		switch a := act.(type) {
		case session.Announce:
			r.wg.Go(func() { r.announce(ctx, a) })
		case session.Send:
			r.send(ctx, a)
		case session.EndGroup:
			r.endGroup(a.Part, a.Suspects)
		case session.Poll:
			r.wg.Go(func() { r.finish(ctx, a) })
		case session.Stop:
			r.after.Go(func() { r.stop(a) })
		case session.End:
			r.endGroups()
		}
	}
}

// ask makes a call, twice if the connection broke.
func (r *rootRun) ask(ctx context.Context, node meta.NodeID, kind Kind, request []byte) (standing, error) {
	answer, err := r.cfg.Peers.Call(ctx, node, kind, request)
	if err != nil && ctx.Err() == nil {
		answer, err = r.cfg.Peers.Call(ctx, node, kind, request)
	}
	if err != nil {
		return standing{}, err
	}
	return decodeStanding(answer)
}

func (r *rootRun) announce(ctx context.Context, a session.Announce) {
	m := announce{
		Content: r.id, Ino: r.ino, Epoch: a.Epoch, Published: r.published, Shape: r.shape, Follows: r.follows,
	}
	if r.published {
		m.Root = r.sess.Hash()
	}
	call, cancel := context.WithTimeout(ctx, 2*r.limits.Announce)
	defer cancel()
	st, err := r.ask(call, a.Node, KindAnnounce, m.encode())
	if err != nil {
		r.feed(ctx, session.Unreachable{Node: a.Node, Epoch: a.Epoch, Text: err.Error()})
		return
	}
	st.Epoch = a.Epoch
	r.feed(ctx, session.Answered{Node: a.Node, Standing: st.Standing})
}

func (r *rootRun) finish(ctx context.Context, a session.Poll) {
	m := finish{
		Content: r.id, Epoch: a.Epoch, WaitMs: uint32(r.limits.PollWait / time.Millisecond), HasRoot: a.HasHash, Root: a.Hash,
	}
	call, cancel := context.WithTimeout(ctx, r.limits.PollWait+4*r.limits.Silent)
	defer cancel()
	st, err := r.ask(call, a.Node, KindFinish, m.encode())
	if err != nil {
		r.feed(ctx, session.Unreachable{Node: a.Node, Epoch: a.Epoch, Text: err.Error()})
		return
	}
	r.feed(ctx, session.Polled{Node: a.Node, Standing: st.Standing})
}

// stop lets a member know that nothing more comes; it outlives the session.
func (r *rootRun) stop(a session.Stop) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	m := stop{r.id, a.Epoch, a.Drop}
	if err := askOutcome(ctx, r.cfg.Peers, a.Node, KindStop, m.encode()); err != nil {
		r.cfg.Logger.Debug("stop not told", "content", r.id, "node", a.Node, "err", err)
	}
}

// send starts the group of an epoch.
func (r *rootRun) send(ctx context.Context, a session.Send) {
	inner, cancel := context.WithCancel(ctx)
	e := &partRun{
		number: a.Epoch, part: a.Part, cancel: cancel, ahead: make(map[int][2]uint64), had: r.hadBefore(a),
	}
	if a.Part == 0 {
		r.endGroups()
		r.groups = nil
	}
	r.groups = append(r.groups, e)
	r.wg.Go(func() {
		err := r.multicast(inner, e, a)
		cancel()
		if err == nil {
			r.feed(ctx, session.GroupDone{Epoch: a.Epoch, Part: a.Part})
			return
		}
		if srcErr := r.source.failure(); srcErr != nil {
			r.feed(ctx, session.OwnCopy{Err: srcErr})
			return
		}
		ev := session.GroupFailed{Epoch: a.Epoch, Part: a.Part, Text: err.Error()}
		var fault *groupFault
		if errors.As(err, &fault) {
			ev.Suspects = fault.suspects
		}
		r.feed(ctx, ev)
	})
}

// hadBefore is how many blocks of the group each member has of what is sent: a group counts them as stored there.
func (r *rootRun) hadBefore(a session.Send) map[meta.NodeID]uint64 {
	had := make(map[meta.NodeID]uint64)
	all := groupBlocks(r.layout, a.Blocks, r.groupBlock).Count()
	for i, n := range a.Members {
		lacks := blockset.MissingIn(a.Blocks.Blocks(), a.Have[i:i+1])
		had[n] = all - groupBlocks(r.layout, lacks, r.groupBlock).Count()
	}
	return had
}

// multicast sends the blocks of an epoch and waits until every member has them.
func (r *rootRun) multicast(ctx context.Context, e *partRun, a session.Send) error {
	blocks := groupBlocks(r.layout, a.Blocks, r.groupBlock)
	bytes := int64(blocks.Count()) * r.groupBlock
	self := r.cfg.Self()
	members := append([]meta.NodeID{self.Node}, slices.Sorted(slices.Values(a.Members))...)
	form, choice, err := chooseForm(r.cfg.Names, members, r.layout.StreamBytes(), r.policy)
	if err != nil {
		return err
	}
	rg := r.kept.take(groupKey(self, members, form))
	if rg != nil {
		bytes, choice = r.kept.bytes, r.kept.choice
	}
	r.status.chose(choice)
	if rg == nil {
		if rg, err = r.rootGroups.acquire(ctx, self, members, bytes, form); err != nil {
			return err
		}
	}
	defer r.rootGroups.release(rg, bytes)
	t, err := rg.group.Send(rdmc.Outgoing{
		Size: uint64(r.layout.StreamBytes()), Partial: true, Blocks: blocks, Source: r.source,
	})
	if err != nil {
		r.rootGroups.drop(rg)
		return faultAt(rg, math.MaxUint64, err)
	}
	e.attach(rg, t)
	if err := r.begin(ctx, rg, t, a.Epoch); err != nil {
		failGroup(rg, cmp.Or(ctx.Err(), err)) // when the epoch has ended, a member that is still silent is not to blame
		<-t.Done()
		return err
	}
	r.feed(ctx, session.Flowing{Epoch: a.Epoch, Part: a.Part})
	<-t.Done() // bounded: endGroup fails the group
	if err := t.Err(); err != nil {
		r.rootGroups.drop(rg)
		return faultAt(rg, t.Announcement().Seq, err)
	}
	return nil
}

// begin lets the members know which message of the group is theirs.
func (r *rootRun) begin(ctx context.Context, rg *rootGroup, t Transfer, epoch uint32) error {
	ctx, cancel := context.WithTimeout(ctx, groupSetup)
	defer cancel()
	m := begin{r.id, epoch, rg.number, t.Announcement().AppendBinary(nil)}
	request := m.encode()
	return r.rootGroups.each(rg, func(_ int, node meta.NodeID) error {
		return askOutcome(ctx, r.cfg.Peers, node, KindBegin, request)
	})
}

// failGroup ends a group with the members of a fault as suspects, unless the fault is that one of them has refused:
// that member is well, and only never had this session or no longer has it.
func failGroup(rg *rootGroup, err error) {
	var fault *groupFault
	var ranks []int
	if errors.As(err, &fault) && !errors.Is(err, errRefused) {
		for _, s := range fault.suspects {
			ranks = append(ranks, slices.Index(rg.members, s.Node))
		}
	}
	rg.group.Fail(ranks, err)
}

// attach notes what ends with the epoch; if it has ended already, that is now.
func (e *partRun) attach(rg *rootGroup, t Transfer) {
	e.mu.Lock()
	e.group, e.transfer = rg, t
	ended := e.ended
	e.mu.Unlock()
	if ended {
		e.fail()
	}
}

// fail fails the group of an epoch, unless its transfer has come to its end: others may still need the group then.
func (e *partRun) fail() bool {
	select {
	case <-e.transfer.Done():
		return false
	default:
	}
	fault := &groupFault{err: fmt.Errorf("epoch %d ended by the root", e.number)}
	for _, n := range e.suspects {
		fault.suspects = append(fault.suspects, session.Suspect{Node: n})
	}
	failGroup(e.group, fault)
	return true
}

// endGroups ends all groups that still run.
func (r *rootRun) endGroups() {
	for i := range r.groups {
		r.endGroup(i, nil)
	}
}

// endGroup ends a group of the present epoch, if it still runs.
func (r *rootRun) endGroup(part int, suspects []meta.NodeID) {
	if part >= len(r.groups) || r.groups[part] == nil {
		return
	}
	e := r.groups[part]
	r.groups[part] = nil
	e.cancel()
	e.mu.Lock()
	e.ended, e.suspects = true, suspects
	attached := e.transfer != nil
	e.mu.Unlock()
	if attached && e.fail() {
		r.rootGroups.drop(e.group)
	}
}

// reportProgress reports to the session what the groups know of their members.
func (r *rootRun) reportProgress(ctx context.Context) {
	for _, e := range slices.Clone(r.groups) {
		if e != nil {
			r.progressOf(ctx, e)
		}
	}
}

func (r *rootRun) progressOf(ctx context.Context, e *partRun) {
	e.mu.Lock()
	rg, t := e.group, e.transfer
	e.mu.Unlock()
	if t == nil {
		return
	}
	seq := t.Announcement().Seq
	total := t.Announcement().Blocks.Count()
	for _, p := range rg.group.Progress() {
		if p.Rank <= 0 || p.Rank >= len(rg.members) {
			continue
		}
		node := rg.members[p.Rank]
		if p.Done+1 < seq { // other messages go first
			if at := [2]uint64{p.Done, p.Blocks}; e.ahead[p.Rank] != at {
				e.ahead[p.Rank] = at
				r.step(ctx, session.Ahead{Node: node, Epoch: e.number})
			}
			continue
		}
		moved := p.Blocks
		if p.Done >= seq {
			moved = total
		}
		r.step(ctx, session.Progressed{
			Node: node, Epoch: e.number, Bytes: int64(max(moved, e.had[node])-e.had[node]) * r.groupBlock,
			Sending: p.Sending, Waiting: p.Waiting,
		})
	}
}

// countMoved adds what members have stored since it was last called.
func (r *rootRun) countMoved() {
	if r.moved == nil {
		return
	}
	sum := uint64(0)
	for _, m := range r.sess.Members() {
		sum += uint64(m.Held) * content.BlockBytes
	}
	if sum > r.heldBytes {
		r.moved.Add(sum - r.heldBytes)
		r.heldBytes = sum
	}
}

// votes returns the members that have voted, and in missed the members that are owed the content, with the reasons.
func (r *rootRun) votes() (votes []meta.NodeID, missed []meta.Missed) {
	for _, m := range r.sess.Members() {
		if m.State == session.MemberVoted {
			votes = append(votes, m.Node)
		} else {
			missed = append(missed, meta.Missed{Node: m.Node, Reason: m.Reason})
		}
	}
	return votes, missed
}
