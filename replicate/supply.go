package replicate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

const (
	suppliesAtOnce = 4         // orders for one set of targets carried out at the same time
	suppliesMost   = 16        // for all sets: one that does not answer leaves room for the others
	putBatchBytes  = 512 << 10 // of one message to a target
	putBatchItems  = 128
	batchSilent    = 30 * time.Second // of which nothing may move of one message
	answerWait     = time.Second      // for the answer of a node that is to join a multicast
)

// supplier is the holder's part of catch-up: it pushes contents to the nodes that the leader named. An order
// that is asked for again is joined, not repeated.
type supplier struct {
	cfg        Config
	rootGroups *rootGroups
	transfers  *transfers
	counters   *counters
	moved      atomic.Uint64        // bytes
	view       atomic.Uint64        // of the log, as far as this node has acted on it
	missing    func(meta.ContentID) // called with a content that should be here and is not
	// views gives a channel that is closed when the log's view of the nodes changes; may be nil.
	views func() <-chan struct{}

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
	free chan struct{}

	mu     sync.Mutex
	jobs   map[meta.ContentID][]*supply // of one content, each has another set of targets
	flows  map[meta.ContentID]*shipment // multicasts under way, of one content the last that began
	sets   map[string]*supplySet        // with orders under way
	closed bool
}

// supplySet is the slots of one set of targets.
type supplySet struct {
	free  chan struct{}
	users int
	takes bool // all of them have taken what was sent to them last
}

// supply is one content that an order wants at a set of nodes.
type supply struct {
	id      meta.ContentID
	targets []meta.NodeID
	set     string // of targets
	view    uint64 // of the order
	passes  bool   // another holder can send it, if it is sent to other nodes from here already
	begun   bool
	done    chan struct{}
	passed  bool // to another holder
	absent  bool // not held here
	failed  []meta.NodeID
}

// shipment is a content on its way to the targets of all orders that share it.
type shipment struct {
	id      meta.ContentID
	jobs    []*supply
	targets []meta.NodeID
	run     *rootRun // that other nodes can join; nil if there is none
	over    bool
	sent    bool
	absent  bool
	failed  []meta.NodeID
}

func newSupplier(cfg Config, rg *rootGroups, tr *transfers, c *counters, missing func(meta.ContentID)) *supplier {
	ctx, stop := context.WithCancel(context.Background())
	s := &supplier{
		cfg: cfg, rootGroups: rg, transfers: tr, counters: c, missing: missing, ctx: ctx, stop: stop,
		free: make(chan struct{}, suppliesMost), jobs: make(map[meta.ContentID][]*supply),
		sets: make(map[string]*supplySet), flows: make(map[meta.ContentID]*shipment),
	}
	s.sawView()
	return s
}

// sawView notes that what was applied is known here, and to the calls to other nodes.
func (s *supplier) sawView() { s.view.Store(s.cfg.Names.View()) }

func (s *supplier) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
}

// work handles KindWork.
func (s *supplier) work(ctx context.Context, m work) workReply {
	began := s.moved.Load()
	jobs := s.jobsOf(m)
	timer, stop := s.cfg.Clock.After(min(time.Duration(m.WaitMs)*time.Millisecond, workWait))
	defer stop()
	for _, j := range jobs {
		select {
		case <-j.done:
			if !j.passed {
				continue
			}
		case <-timer:
		case <-ctx.Done():
		case <-s.ctx.Done():
		}
		break
	}
	reply := s.collect(jobs)
	reply.Progress = s.moved.Load() - began
	return reply
}

// jobsOf finds the jobs of an order, and starts the jobs that are not running.
func (s *supplier) jobsOf(m work) []*supply {
	targets := slices.Compact(slices.Sorted(slices.Values(m.Targets)))
	set := setKey(targets)
	var all, fresh []*supply
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(targets) == 0 {
		return nil
	}
	for _, id := range m.Contents {
		at := slices.IndexFunc(s.jobs[id], func(j *supply) bool { return j.set == set })
		if at < 0 {
			j := &supply{
				id: id, targets: targets, set: set, view: m.View, passes: m.Elsewhere, done: make(chan struct{}),
			}
			at = len(s.jobs[id])
			s.jobs[id] = append(s.jobs[id], j)
			fresh = append(fresh, j)
		}
		all = append(all, s.jobs[id][at])
	}
	if len(fresh) > 0 {
		s.wg.Go(func() { s.carry(fresh, m.View) })
	}
	return all
}

// collect reports what became of jobs and forgets the finished ones.
func (s *supplier) collect(jobs []*supply) (r workReply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range jobs {
		select {
		case <-j.done:
		default:
			r.Running = append(r.Running, j.id)
			continue
		}
		s.forget(j)
		if j.absent {
			r.Absent = append(r.Absent, j.id)
			continue
		}
		if j.passed {
			r.Begun = append(r.Begun, j.id)
			continue
		}
		r.Done = append(r.Done, j.id)
		for _, n := range j.failed {
			if !slices.Contains(r.Failed, n) {
				r.Failed = append(r.Failed, n)
			}
		}
	}
	return r
}

// forget drops a job of which the leader knows the end. The supplier is locked.
func (s *supplier) forget(j *supply) {
	left := slices.DeleteFunc(s.jobs[j.id], func(other *supply) bool { return other == j })
	if len(left) == 0 {
		delete(s.jobs, j.id)
		return
	}
	s.jobs[j.id] = left
}

// carry pushes the contents of an order: small ones in batches, large ones by multicast. Contents that another order
// has begun meanwhile are left to that order.
func (s *supplier) carry(jobs []*supply, view uint64) {
	leave := s.enter(jobs[0].set)
	defer leave()
	s.awaitView(view)
	b := &putBatch{s: s}
	for _, j := range jobs {
		if s.isSent(j.id) {
			b.flush() // so that all before this one is answered for
			if s.pass(j) || s.join(j) {
				continue
			}
		}
		sh := s.begin(j)
		if sh == nil {
			continue
		}
		if s.ctx.Err() != nil {
			s.finish(sh)
			continue
		}
		reader, ok := s.open(sh)
		switch {
		case !ok:
		case reader.Size() > smallMax:
			s.share(sh)
			s.pushLarge(sh, reader)
		default:
			b.add(sh, reader)
		}
	}
	b.flush()
}

// begin makes a shipment of a job; nil if that is under way.
func (s *supplier) begin(j *supply) *shipment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.begun {
		return nil
	}
	j.begun = true
	return &shipment{id: j.id, jobs: []*supply{j}, targets: j.targets}
}

// isSent reports whether a multicast of a content is under way.
func (s *supplier) isSent(id meta.ContentID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flows[id] != nil
}

// pass leaves a job to another holder, if there is one that has no more to push, and the content is not on its way to
// the same nodes: two sources would end each other's groups.
func (s *supplier) pass(j *supply) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.flows[j.id]
	if j.begun || !j.passes || sh == nil ||
		slices.ContainsFunc(j.targets, func(n meta.NodeID) bool { return slices.Contains(sh.targets, n) }) {
		return false
	}
	j.begun, j.passed = true, true
	close(j.done)
	return true
}

// join takes the targets of a job into the multicast of its content that is under way. That one begins again for all
// of them, and goes at the pace of the slowest, so they must answer.
func (s *supplier) join(j *supply) bool {
	s.mu.Lock()
	sh := s.flows[j.id]
	if j.begun || sh == nil || sh.run == nil {
		s.mu.Unlock()
		return false
	}
	j.begun = true // so that no other multicast shares it meanwhile
	run := sh.run
	more := slices.DeleteFunc(slices.Clone(j.targets), func(n meta.NodeID) bool { return slices.Contains(sh.targets, n) })
	s.mu.Unlock()
	taken := s.answer(more) && run.join(j.targets)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !taken || sh.over { // over with them already: what they have, they take in no second time
		j.begun = false
		return false
	}
	s.cfg.Logger.Debug("catch-up: joined", "content", j.id, "nodes", more)
	sh.jobs = append(sh.jobs, j)
	sh.targets = slices.Compact(slices.Sorted(slices.Values(slices.Concat(sh.targets, more))))
	return true
}

// answer reports whether all nodes answer a call soon.
func (s *supplier) answer(nodes []meta.NodeID) bool {
	ctx, cancel := context.WithTimeout(s.ctx, answerWait)
	defer cancel()
	var mute atomic.Bool
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			if _, err := s.cfg.Peers.Call(ctx, n, KindPut, encodePut(nil)); err != nil {
				mute.Store(true)
			}
		})
	}
	wg.Wait()
	return !mute.Load()
}

// share adds to a shipment what other orders want of the same content and have not begun. All its targets then get it
// at the pace of the slowest, so they must have taken what was sent to them last: a target that does not answer holds
// up no other.
func (s *supplier) share(sh *shipment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	takes := func(j *supply) bool { set := s.sets[j.set]; return set != nil && set.takes }
	if !takes(sh.jobs[0]) {
		return
	}
	for _, j := range s.jobs[sh.id] {
		if !j.begun && takes(j) && j.view <= s.view.Load() {
			j.begun = true
			sh.jobs = append(sh.jobs, j)
			sh.targets = slices.Compact(slices.Sorted(slices.Values(slices.Concat(sh.targets, j.targets))))
		}
	}
}

// awaitView waits until this node has applied, and acted on, what the leader went by when it gave an order, for upWait
// at most. A source that begins earlier would take a target that has just come back for one that is down or can't be
// reached, or for its former process, and leave it out.
func (s *supplier) awaitView(view uint64) {
	late, stop := s.cfg.Clock.After(upWait)
	defer stop()
	for {
		var changed <-chan struct{}
		if s.views != nil {
			changed = s.views() // before the look, so that no change is missed
		}
		if s.view.Load() >= view {
			return
		}
		again, stop := s.cfg.Clock.After(viewLook)
		select {
		case <-changed:
		case <-again: // not every change of the view is announced
		case <-late:
			stop()
			return
		case <-s.ctx.Done():
			stop()
			return
		}
		stop()
	}
}

// enter takes a slot of a set of targets, and one of all, as long as the supplier is not closed.
func (s *supplier) enter(key string) (leave func()) {
	s.mu.Lock()
	set := s.sets[key]
	if set == nil {
		set = &supplySet{free: make(chan struct{}, suppliesAtOnce)}
		s.sets[key] = set
	}
	set.users++
	s.mu.Unlock()
	var taken []chan struct{}
	for _, free := range []chan struct{}{set.free, s.free} {
		select {
		case free <- struct{}{}:
			taken = append(taken, free)
		case <-s.ctx.Done():
		}
	}
	return func() {
		for _, free := range taken {
			<-free
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if set.users--; set.users == 0 {
			delete(s.sets, key)
		}
	}
}

// putBatch gathers small contents for one message.
type putBatch struct {
	s     *supplier
	ships []*shipment
	items []putItem
	bytes int
}

// add reads a small content into the batch, after sending what is full.
func (b *putBatch) add(sh *shipment, reader *content.Reader) {
	item, err := readSmall(sh.id, reader)
	if err != nil {
		sh.absent = true
		b.s.finish(sh)
		return
	}
	if b.bytes+len(item.Bytes) > putBatchBytes || len(b.items) >= putBatchItems {
		b.flush()
	}
	b.ships, b.items, b.bytes = append(b.ships, sh), append(b.items, item), b.bytes+len(item.Bytes)
}

func (b *putBatch) flush() {
	if len(b.ships) > 0 {
		b.s.put(b.ships, b.items)
	}
	b.ships, b.items, b.bytes = nil, nil, 0
}

// finish ends the jobs of a shipment with what became of it.
func (s *supplier) finish(sh *shipment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Logger.Debug("catch-up: pushed", "content", sh.id, "targets", sh.targets, "failed", sh.failed, "absent",
		sh.absent)
	sh.over = true
	if s.flows[sh.id] == sh {
		delete(s.flows, sh.id)
	}
	for _, j := range sh.jobs {
		j.absent = sh.absent
		for _, n := range sh.failed {
			if slices.Contains(j.targets, n) {
				j.failed = append(j.failed, n)
			}
		}
		if set := s.sets[j.set]; set != nil && sh.sent {
			set.takes = !j.absent && len(j.failed) == 0
		}
		close(j.done)
	}
}

// open opens a content that is still wanted; otherwise the shipment is over.
func (s *supplier) open(sh *shipment) (*content.Reader, bool) {
	if _, err := s.cfg.Names.Content(sh.id); isNotFound(err) {
		s.finish(sh) // retired: nobody is owed it any more
		return nil, false
	}
	reader, err := s.cfg.Store.OpenUndecided(storeID(sh.id))
	if err != nil {
		s.cfg.Logger.Debug("catch-up: not held here", "content", sh.id, "err", err)
		s.missing(sh.id)
		sh.absent = true
		s.finish(sh)
		return nil, false
	}
	return reader, true
}

// readSmall reads a whole content and closes the reader.
func readSmall(id meta.ContentID, r *content.Reader) (putItem, error) {
	buf := make([]byte, r.Size())
	n, err := r.ReadAt(buf, 0)
	if n == len(buf) {
		err = nil
	}
	return putItem{Content: id, Published: true, Root: r.Root(), Bytes: buf}, errors.Join(err, r.Close())
}

// put sends small contents to all targets at once.
func (s *supplier) put(batch []*shipment, items []putItem) {
	request := encodePut(items)
	targets := batch[0].targets
	failed := make([][]meta.NodeID, len(batch))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range targets {
		wg.Go(func() {
			ok := s.putAt(s.ctx, n, request, len(items))
			mu.Lock()
			defer mu.Unlock()
			for i := range failed {
				if !ok[i] {
					failed[i] = append(failed[i], n)
				}
			}
		})
	}
	wg.Wait()
	for i, sh := range batch {
		sh.sent, sh.failed = true, failed[i]
		s.moved.Add(uint64(len(items[i].Bytes)) * uint64(len(targets)-len(failed[i])))
		s.count(int64(len(items[i].Bytes)), len(targets)-len(failed[i]))
		s.finish(sh)
	}
}

// count counts a content that targets have got, and the bytes that each of them has got for it.
func (s *supplier) count(bytes int64, targets int) {
	if targets > 0 {
		s.counters.caughtUp.Add(1)
		s.counters.caughtUpBytes.Add(uint64(bytes) * uint64(targets))
	}
}

// putAt returns for each item whether the target is done with it.
func (s *supplier) putAt(ctx context.Context, node meta.NodeID, request []byte, n int) []bool {
	ok := make([]bool, n)
	ctx, cancel := whileUp(ctx, &s.wg, s.cfg, s.views, node)
	defer cancel()
	answer, err := callWhileMoving(ctx, &s.cfg, node, KindPut, request, batchSilent)
	if err != nil {
		s.cfg.Logger.Debug("catch-up: put", "node", node, "err", err)
		return ok
	}
	list, err := decodeStandings(answer)
	if err != nil || len(list) != n {
		s.cfg.Logger.Warn("catch-up: bad answer", "node", node, "err", err)
		return ok
	}
	for i := range ok {
		ok[i] = list[i].Status == session.StatusVoted || list[i].Status == session.StatusGone
	}
	return ok
}

// pushLarge multicasts a content to the targets. It sends the form in which the content is stored; then, to targets
// that lack its base, one delta over the lowest base of its chain; then, to targets that lack that too, the whole.
func (s *supplier) pushLarge(sh *shipment, reader *content.Reader) {
	defer s.finish(sh)
	s.mu.Lock()
	sh.sent, s.flows[sh.id] = true, sh
	targets, form := sh.targets, formStored
	s.mu.Unlock()
	for len(targets) > 0 && form <= formWhole {
		missed, err := s.pushForm(sh, reader, form, targets)
		if form == formStored {
			reader = nil // it was closed
		}
		if err != nil {
			s.cfg.Logger.Warn("catch-up: push", "content", sh.id, "err", err)
			sh.absent = true
			return
		}
		targets = nil
		for _, m := range missed {
			if m.Reason == meta.OwedJoined && form < formWhole {
				targets = append(targets, m.Node)
			} else {
				sh.failed = append(sh.failed, m.Node)
			}
		}
		if form++; form == formMerged && !s.deep(sh.id) {
			form++
		}
	}
	s.mu.Lock()
	got := 0
	for _, n := range sh.targets {
		if !slices.Contains(sh.failed, n) {
			got++
		}
	}
	s.mu.Unlock()
	s.count(0, got) // multicast has counted the bytes
}

// deep reports whether a content is a delta over deltas.
func (s *supplier) deep(id meta.ContentID) bool {
	info, err := s.cfg.Store.Stat(storeID(id))
	return err == nil && info.Depth > 1
}

// The forms in which a content is pushed, from the cheapest on.
const (
	formStored = iota
	formMerged
	formWhole
)

// pushForm pushes a content in one form and closes the reader, which is opened here if it is nil.
func (s *supplier) pushForm(
	sh *shipment, reader *content.Reader, form int, targets []meta.NodeID,
) ([]meta.Missed, error) {
	if form == formMerged {
		err := s.cfg.Store.Merge(s.ctx, storeID(sh.id))
		if errors.Is(err, content.ErrBusy) || errors.Is(err, content.ErrNotFound) {
			return nil, err // it is being merged, or about to be committed: later it takes less than the whole
		}
		if err != nil {
			s.cfg.Logger.Debug("catch-up: deltas not merged", "content", sh.id, "err", err)
		}
	}
	var err error
	if reader == nil {
		if reader, err = s.cfg.Store.OpenUndecided(storeID(sh.id)); err != nil {
			return nil, err
		}
	}
	defer reader.Close()
	layout := reader.Layout()
	if form == formWhole && reader.Shape().IsDelta() {
		if layout, err = content.NewLayout(content.Shape{Size: reader.Size()}); err != nil {
			return nil, err
		}
	}
	return s.multicast(sh, reader, layout, targets, form == formStored)
}

// multicast runs one session for a published content, which more nodes can join if it is open; it returns the members
// that did not take it.
func (s *supplier) multicast(
	sh *shipment, reader *content.Reader, layout *content.Layout, targets []meta.NodeID, open bool,
) (missed []meta.Missed, err error) {
	shape, err := layout.Shape().AppendBinary(nil)
	if err != nil {
		return nil, err
	}
	stream := layout.StreamBytes()
	c, err := s.cfg.Names.Content(sh.id)
	if err != nil {
		return nil, err
	}
	status := s.transfers.begin(s.cfg.Clock, TransferStatus{
		Content: sh.id, Ino: c.Ino, Size: reader.Size(), Stream: stream, CatchUp: true, Phase: PhaseAnnouncing,
	})
	var votes []meta.NodeID
	defer func() { status.end(delivery(len(votes), err)) }()
	form, _, err := chooseForm(s.cfg.Names, append([]meta.NodeID{s.cfg.Self().Node}, targets...), stream)
	if err != nil {
		return nil, err
	}
	groupBlock := form.BlockBytes
	src := &storedSource{reader: reader, layout: layout, groupBlock: groupBlock}
	limits := s.cfg.Tuning.limits(groupBlock)
	sess := session.NewRoot(session.RootConfig{
		Members: targets, Blocks: int(layout.Blocks()), Limits: limits, Pace: float64(s.rootGroups.pace.Load()),
		Published: true, Hash: reader.Root(),
	})
	run := &rootRun{
		cfg: s.cfg, rootGroups: s.rootGroups, after: &s.wg, id: sh.id, ino: c.Ino, layout: layout, shape: shape,
		published: true,
		source:    src, groupBlock: groupBlock, status: status, limits: limits, sess: sess,
		events: make(chan session.RootEvent, 64), moved: &s.moved, views: s.views,
		look: func() session.View {
			s.letOut(sh, sess.Members())
			return looked(s.cfg.Names, nodesOf(sess))
		},
		joins: make(chan joining), over: make(chan struct{}),
	}
	s.offer(sh, run, open)
	run.run(s.ctx)
	if err := src.failure(); err != nil {
		return nil, err
	}
	votes, missed = run.votes()
	s.counters.caughtUpBytes.Add(uint64(stream) * uint64(len(votes)))
	s.transfers.leftOut(s.cfg.Logger, "catch-up: node left out", sh.id, sess.Members())
	return missed, s.ctx.Err()
}

// offer makes a session one that more nodes can join.
func (s *supplier) offer(sh *shipment, run *rootRun, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh.run = nil
	if open {
		sh.run = run
	}
}

// letOut ends the jobs of a multicast of which all nodes are lost. A node that is back, or was too slow for the others,
// then gets the content anew, and does not wait for them.
func (s *supplier) letOut(sh *shipment, members []session.MemberView) {
	lost := func(n meta.NodeID) bool {
		return slices.ContainsFunc(members, func(m session.MemberView) bool {
			return m.Node == n && m.State == session.MemberOut && session.MayPass(m.Reason)
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sh.jobs = slices.DeleteFunc(sh.jobs, func(j *supply) bool {
		if slices.ContainsFunc(j.targets, func(n meta.NodeID) bool { return !lost(n) }) {
			return false
		}
		j.failed = j.targets
		if set := s.sets[j.set]; set != nil {
			set.takes = false
		}
		close(j.done)
		return true
	})
	sh.targets = slices.DeleteFunc(slices.Clone(sh.targets), lost)
}

// nodesOf are the members of a session.
func nodesOf(sess *session.Root) (nodes []meta.NodeID) {
	for _, m := range sess.Members() {
		nodes = append(nodes, m.Node)
	}
	return nodes
}

// delivery is what the multicast of a published content came to.
func delivery(votes int, err error) (Ending, string) {
	switch {
	case votes > 0:
		return EndDelivered, ""
	case err != nil:
		return EndFailed, err.Error()
	}
	return EndFailed, "no node took it"
}
