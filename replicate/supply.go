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
	missing    func(meta.ContentID) // tells of a content that should be here
	// views gives a channel that is closed when the log's view of the nodes changes; may be nil.
	views func() <-chan struct{}

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
	free chan struct{}

	mu     sync.Mutex
	jobs   map[supplyKey]*supply
	sets   map[string]*supplySet // with orders under way
	closed bool
}

// supplySet is the slots of one set of targets.
type supplySet struct {
	free  chan struct{}
	users int
}

type supplyKey struct {
	content meta.ContentID
	targets string
}

// supply is one content on its way to a set of nodes.
type supply struct {
	id      meta.ContentID
	targets []meta.NodeID
	done    chan struct{}
	absent  bool // not held here
	failed  []meta.NodeID
}

func newSupplier(cfg Config, rg *rootGroups, tr *transfers, c *counters, missing func(meta.ContentID)) *supplier {
	ctx, stop := context.WithCancel(context.Background())
	s := &supplier{
		cfg: cfg, rootGroups: rg, transfers: tr, counters: c, missing: missing, ctx: ctx, stop: stop,
		free: make(chan struct{}, suppliesMost), jobs: make(map[supplyKey]*supply),
		sets: make(map[string]*supplySet),
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
			continue
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

// jobsOf finds the jobs of an order, and starts those that do not run.
func (s *supplier) jobsOf(m work) []*supply {
	targets := slices.Compact(slices.Sorted(slices.Values(m.Targets)))
	key := setKey(targets)
	var all, fresh []*supply
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(targets) == 0 {
		return nil
	}
	for _, id := range m.Contents {
		k := supplyKey{id, key}
		j := s.jobs[k]
		if j == nil {
			j = &supply{id: id, targets: targets, done: make(chan struct{})}
			s.jobs[k] = j
			fresh = append(fresh, j)
		}
		all = append(all, j)
	}
	if len(fresh) > 0 {
		s.wg.Go(func() { s.carry(fresh, m.View) })
	}
	return all
}

// collect tells what became of jobs and forgets those that are done.
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
		delete(s.jobs, supplyKey{j.id, setKey(j.targets)})
		if j.absent {
			r.Absent = append(r.Absent, j.id)
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

// carry pushes the contents of an order: small ones in batches, large ones by multicast.
func (s *supplier) carry(jobs []*supply, view uint64) {
	leave := s.enter(setKey(jobs[0].targets))
	defer leave()
	s.awaitView(view)
	b := &putBatch{s: s}
	for _, j := range jobs {
		if s.ctx.Err() != nil {
			s.finish(j)
			continue
		}
		reader, ok := s.open(j)
		switch {
		case !ok:
		case reader.Size() > smallMax:
			s.pushLarge(j, reader)
		default:
			b.add(j, reader)
		}
	}
	b.flush()
}

// awaitView waits until this node has applied, and acted on, what the leader went by when it gave an order, for
// upWait at most. Who begins earlier takes a target that has just come back for one that is down or can't be reached,
// or for its process of before, and leaves it out.
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
		case <-again: // not every change of the view is told
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
	jobs  []*supply
	items []putItem
	bytes int
}

// add reads a small content into the batch, after sending what is full.
func (b *putBatch) add(j *supply, reader *content.Reader) {
	item, err := readSmall(j.id, reader)
	if err != nil {
		j.absent = true
		b.s.finish(j)
		return
	}
	if b.bytes+len(item.Bytes) > putBatchBytes || len(b.items) >= putBatchItems {
		b.flush()
	}
	b.jobs, b.items, b.bytes = append(b.jobs, j), append(b.items, item), b.bytes+len(item.Bytes)
}

func (b *putBatch) flush() {
	if len(b.jobs) > 0 {
		b.s.put(b.jobs, b.items)
	}
	b.jobs, b.items, b.bytes = nil, nil, 0
}

func (s *supplier) finish(j *supply) {
	s.cfg.Logger.Debug("catch-up: pushed", "content", j.id, "targets", j.targets, "failed", j.failed, "absent", j.absent)
	close(j.done)
}

// open opens a content that is still wanted; otherwise the job is over.
func (s *supplier) open(j *supply) (*content.Reader, bool) {
	if _, err := s.cfg.Names.Content(j.id); isNotFound(err) {
		s.finish(j) // retired: nobody is owed it any more
		return nil, false
	}
	reader, err := s.cfg.Store.OpenUndecided(storeID(j.id))
	if err != nil {
		s.cfg.Logger.Debug("catch-up: not held here", "content", j.id, "err", err)
		s.missing(j.id)
		j.absent = true
		s.finish(j)
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
func (s *supplier) put(batch []*supply, items []putItem) {
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
	for i, j := range batch {
		j.failed = failed[i]
		s.moved.Add(uint64(len(items[i].Bytes)) * uint64(len(targets)-len(failed[i])))
		s.count(int64(len(items[i].Bytes)), len(targets)-len(failed[i]))
		s.finish(j)
	}
}

// count counts a content that targets have got, and the bytes that each of them has got for it.
func (s *supplier) count(bytes int64, targets int) {
	if targets > 0 {
		s.counters.caughtUp.Add(1)
		s.counters.caughtUpBytes.Add(uint64(bytes) * uint64(targets))
	}
}

// putAt tells for each item whether the target is done with it.
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

// pushLarge multicasts a content to the targets: in the form in which it is stored, to those that lack its base as
// one delta over the lowest base of its chain, and to those that lack that too as a whole.
func (s *supplier) pushLarge(j *supply, reader *content.Reader) {
	defer s.finish(j)
	targets, form := j.targets, formStored
	for len(targets) > 0 && form <= formWhole {
		missed, err := s.pushForm(j, reader, form, targets)
		if form == formStored {
			reader = nil // it was closed
		}
		if err != nil {
			s.cfg.Logger.Warn("catch-up: push", "content", j.id, "err", err)
			j.absent = true
			return
		}
		targets = nil
		for _, m := range missed {
			if m.Reason == meta.OwedJoined && form < formWhole {
				targets = append(targets, m.Node)
			} else {
				j.failed = append(j.failed, m.Node)
			}
		}
		if form++; form == formMerged && !s.deep(j.id) {
			form++
		}
	}
	s.count(0, len(j.targets)-len(j.failed)) // multicast has counted the bytes
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
func (s *supplier) pushForm(j *supply, reader *content.Reader, form int, targets []meta.NodeID) ([]meta.Missed, error) {
	if form == formMerged {
		err := s.cfg.Store.Merge(s.ctx, storeID(j.id))
		if errors.Is(err, content.ErrBusy) || errors.Is(err, content.ErrNotFound) {
			return nil, err // it is being merged, or about to be committed: later it takes less than the whole
		}
		if err != nil {
			s.cfg.Logger.Debug("catch-up: deltas not merged", "content", j.id, "err", err)
		}
	}
	var err error
	if reader == nil {
		if reader, err = s.cfg.Store.OpenUndecided(storeID(j.id)); err != nil {
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
	return s.multicast(j, reader, layout, targets)
}

// multicast runs one session for a published content; it returns who did not take it.
func (s *supplier) multicast(
	j *supply, reader *content.Reader, layout *content.Layout, targets []meta.NodeID,
) (missed []meta.Missed, err error) {
	shape, err := layout.Shape().AppendBinary(nil)
	if err != nil {
		return nil, err
	}
	stream := layout.StreamBytes()
	c, err := s.cfg.Names.Content(j.id)
	if err != nil {
		return nil, err
	}
	status := s.transfers.begin(s.cfg.Clock, TransferStatus{
		Content: j.id, Ino: c.Ino, Size: reader.Size(), Stream: stream, CatchUp: true, Phase: PhaseAnnouncing,
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
		cfg: s.cfg, rootGroups: s.rootGroups, after: &s.wg, id: j.id, ino: c.Ino, layout: layout, shape: shape,
		published: true,
		source:    src, groupBlock: groupBlock, status: status, limits: limits, sess: sess,
		events: make(chan session.RootEvent, 64), moved: &s.moved, views: s.views,
		look: func() session.View { return looked(s.cfg.Names, targets) },
	}
	run.run(s.ctx)
	if err := src.failure(); err != nil {
		return nil, err
	}
	votes, missed = run.votes()
	s.counters.caughtUpBytes.Add(uint64(stream) * uint64(len(votes)))
	s.transfers.leftOut(s.cfg.Logger, "catch-up: node left out", j.id, sess.Members())
	return missed, s.ctx.Err()
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
