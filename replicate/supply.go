package replicate

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	suppliesAtOnce = 4         // orders for one set of targets carried out at the same time
	suppliesMost   = 16        // for all sets: one that does not answer leaves room for the others
	putBatchBytes  = 512 << 10 // of one message to a target
	putBatchItems  = 128
	batchSilent    = 30 * time.Second // of which nothing may move of one message
	answerWait     = 3 * time.Second  // for the answer of a node that is to join a multicast
	answerAgain    = 50 * time.Millisecond
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
		s.wg.Go(func() { s.carry(fresh, m.View, m.Index) })
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
func (s *supplier) carry(jobs []*supply, view, index uint64) {
	leave := s.enter(jobs[0].set)
	defer leave()
	s.awaitView(view, index)
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

// awaitView waits until this node has applied, and acted on, what the leader went by when it gave an order, for upWait
// at most. A source that begins earlier would take a target that has just come back for one that is down or can't be
// reached, or for its former process, and leave it out. It also waits for the index at which the contents were
// published: the writer itself may hear of its publish later than the leader.
func (s *supplier) awaitView(view, index uint64) {
	late, stop := s.cfg.Clock.After(upWait)
	defer stop()
	for {
		var changed <-chan struct{}
		if s.views != nil {
			changed = s.views() // before the look, so that no change is missed
		}
		if s.view.Load() >= view && s.cfg.Names.Index() >= index {
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
		over, err := s.cfg.Names.Decided(sh.id)
		sh.absent = err != nil || !over // else it is retired: nobody is owed it any more
		s.finish(sh)
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
