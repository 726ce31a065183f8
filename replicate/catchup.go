package replicate

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	owedPage      = 1024             // contents offered per node and round
	lookPages     = 64               // times as many contents are looked at for them, at most
	workWait      = 15 * time.Second // an order is answered within this
	workRetryMin  = time.Second      // a content that could not be moved waits this long, a few times, then longer
	workRetrySame = 4                // times: a line that was cut for less than a lease is tried again at this pace
	workRetryMax  = time.Minute
	workOrderSize = 512             // contents of one order
	ordersAtOnce  = 16              // under way from this leader
	ordersOfOne   = 8               // of them at one source, so that one that does not answer leaves room for the others
	stoodStill    = 2 * time.Second // a look that is late by this much: this process was stopped
	// looks at what is owed take at most about 1/lookShare of the time, unless that would delay a look beyond
	// CatchUpEvery
	lookShare = 50
)

// assigner is the leader's part of catch-up: it looks at what is owed to nodes that are up, and asks holders to push
// it, to many nodes at once where they lack the same contents. It keeps nothing that matters: what is owed is in the
// log, and pushes are idempotent, so a new leader, or two leaders, only repeat work.
type assigner struct {
	cfg  Config
	own  func(context.Context, work) workReply // the leader is a holder too, and Peers has no way to itself
	wake chan struct{}
	wg   sync.WaitGroup
	free chan struct{} // slots of orders
	// views gives a channel that is closed when the log's view of the nodes changes; may be nil.
	views func() <-chan struct{}
	// pushing gives the bytes that writers are pushing, by node, as far as this node knows; may be nil.
	pushing func() map[meta.NodeID]int64

	mu    sync.Mutex
	tries map[owedItem]*try
	busy  map[meta.NodeID]load           // what is under way, by source
	came  map[meta.NodeID]time.Time      // when nodes last connected here, or when that counts
	seen  map[meta.NodeID]uint32         // incarnations of the nodes that were up
	from  map[meta.NodeID]uint64         // where the next look at what is owed to a node goes on; 0: at the begin
	at    map[meta.ContentID]meta.NodeID // the source that was asked last for what it has not begun, as far as is known
}

type owedItem struct {
	node    meta.NodeID
	content meta.ContentID
}

// try is what became of handing out an item.
type try struct {
	running bool
	fails   int
	next    time.Time
	avoid   meta.NodeID // the source that failed last, or passed it on
	passed  int         // how often a source has passed it on to another one
	nowhere bool        // no holder was up
	source  meta.NodeID // while it runs
	of, by  uint32      // incarnations of the target and of the source when it began
	view    uint64      // of the log when it began
}

func newAssigner(cfg Config) *assigner {
	return &assigner{
		cfg: cfg, wake: make(chan struct{}, 1), free: make(chan struct{}, ordersAtOnce), tries: make(map[owedItem]*try),
		busy: make(map[meta.NodeID]load), came: make(map[meta.NodeID]time.Time),
		seen: make(map[meta.NodeID]uint32), from: make(map[meta.NodeID]uint64), at: make(map[meta.ContentID]meta.NodeID),
	}
}

// nudge makes the leader look now; it does not wait.
func (a *assigner) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run looks for owed contents until ctx ends, and waits for its orders.
func (a *assigner) run(ctx context.Context) {
	defer a.wg.Wait()
	for {
		began := a.cfg.Clock.Now()
		if a.cfg.IsLeader() {
			a.round(ctx)
		} else {
			a.forgetAll()
		}
		rest := min(lookShare*a.cfg.Clock.Now().Sub(began), a.cfg.Tuning.CatchUpEvery) // of many thousands a look takes long
		began = a.cfg.Clock.Now()
		timer, stop := a.cfg.Clock.After(max(rest, a.untilNextTry(began)))
		select {
		case <-ctx.Done():
			stop()
			return
		case <-timer:
		case <-a.wake:
			stop()
			pause(ctx, a.cfg.Clock, max(rest, 10*time.Millisecond)) // let what comes together come together
		}
		if a.cfg.Clock.Now().Sub(began) > a.cfg.Tuning.CatchUpEvery+rest+stoodStill {
			a.resume()
		}
	}
}

// untilNextTry is how long it takes until something that failed is to be tried again, or CatchUpEvery if that is less.
func (a *assigner) untilNextTry(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := a.cfg.Tuning.CatchUpEvery
	for _, t := range a.tries {
		if left := t.next.Sub(now); !t.running && left > 0 && left < wait {
			wait = left
		}
	}
	return wait
}

// resume forgets what failed: this process stood still, and so did its calls.
func (a *assigner) resume() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tries {
		t.again()
	}
	clear(a.from)
}

// again makes an item be tried at once, from any source.
func (t *try) again() { t.fails, t.passed, t.next, t.avoid = 0, 0, time.Time{}, 0 }

func (a *assigner) forgetAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for item, t := range a.tries {
		if !t.running {
			delete(a.tries, item)
		}
	}
}

// round hands out what is owed now, as far as there are slots. The end of an order nudges.
func (a *assigner) round(ctx context.Context) {
	if len(a.free) == cap(a.free) {
		if nodes, err := a.cfg.Names.Nodes(); err == nil {
			a.returned(nodes)
		}
		return
	}
	orders, err := a.look()
	if err != nil {
		a.cfg.Logger.Warn("catch-up: nodes", "err", err)
		return
	}
	a.handOut(ctx, orders)
}

// look makes orders of what is owed now.
func (a *assigner) look() ([]*order, error) {
	view := a.cfg.Names.View() // before the nodes: they are of this view or a later one
	nodes, err := a.cfg.Names.Nodes()
	if err != nil {
		return nil, err
	}
	a.returned(nodes)
	up := make(map[meta.NodeID]bool)
	for _, n := range nodes {
		up[n.ID] = n.State == meta.NodeUp
	}
	wanted := make(map[meta.ContentID][]meta.NodeID)
	var ids []meta.ContentID
	for _, n := range nodes {
		if !up[n.ID] {
			continue
		}
		for _, o := range a.owed(n.ID) {
			if wanted[o.Content] == nil {
				ids = append(ids, o.Content)
			}
			wanted[o.Content] = append(wanted[o.Content], n.ID)
		}
	}
	orders := a.plan(ids, wanted, up)
	for _, o := range orders {
		o.view = view
	}
	return orders, nil
}

// returned clears the failure counts of every node that has restarted or come back: failures to bring it something, and
// failures to get something from it. It also clears what waits for any holder to be up. So a node that is back is
// served at once, however often it came and went.
func (a *assigner) returned(nodes []meta.Node) {
	a.mu.Lock()
	defer a.mu.Unlock()
	back := make(map[meta.NodeID]bool)
	for _, n := range nodes {
		if n.State == meta.NodeUp && a.seen[n.ID] != n.Incarnation {
			a.seen[n.ID], back[n.ID] = n.Incarnation, true
		}
	}
	if len(back) == 0 {
		return
	}
	clear(a.from)
	for item, t := range a.tries {
		if back[item.node] || back[t.avoid] || t.nowhere {
			t.again()
		}
	}
}

// seenAgain takes word that a node has connected to this one. What could not be brought to it, or got from it, while
// its line was cut is tried again at once, or a second after the connection before: a node may connect often.
func (a *assigner) seenAgain(node meta.NodeID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.cfg.Clock.Now()
	if last := a.came[node]; last.After(at) {
		at = last // waits already
	} else if soon := last.Add(workRetryMin); soon.After(at) {
		at = soon
	}
	a.came[node] = at
	for item, t := range a.tries {
		of := item.node == node || t.avoid == node || t.running && t.source == node
		if !of || !t.running && t.fails == 0 {
			continue
		}
		t.fails, t.view = 0, 0 // one that runs is repeated at once if it fails
		if t.avoid == node {
			t.avoid = 0
		}
		if !t.running && t.next.After(at) {
			t.next = at
			a.nudge()
		}
	}
}

// owed lists the first items of a node that are not under way and not waiting. If there are very many items, the next
// look continues after them.
func (a *assigner) owed(node meta.NodeID) (out []meta.Owed) {
	now := a.cfg.Clock.Now()
	a.mu.Lock()
	after := a.from[node]
	a.mu.Unlock()
	for range lookPages {
		page, err := a.cfg.Names.OwedTo(node, after, owedPage)
		if err != nil || len(page) == 0 {
			a.goOn(node, 0)
			return out
		}
		a.mu.Lock()
		for _, o := range page {
			t := a.tries[owedItem{node, o.Content}]
			if t == nil || !t.running && !now.Before(t.next) {
				out = append(out, o)
			}
		}
		a.mu.Unlock()
		if len(out) >= owedPage {
			return out
		}
		after = page[len(page)-1].Published
	}
	a.goOn(node, after)
	return out
}

// goOn makes the next look at a node begin after an index.
func (a *assigner) goOn(node meta.NodeID, after uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.from[node] = after
}

// order is work for one source.
type order struct {
	source    meta.NodeID
	view      uint64 // of the log when it was made
	index     uint64 // of the newest publish of its contents
	elsewhere bool   // another holder has no more to push
	targets   []meta.NodeID
	contents  []meta.ContentID
	left      map[meta.ContentID]int64 // bytes of the contents that it is not done with; of the assigner's lock
}

// handOut sends the orders for which there are slots.
func (a *assigner) handOut(ctx context.Context, orders []*order) {
	for _, o := range orders {
		if a.busyAt(o.source) >= ordersOfOne {
			continue // the end of one of them nudges
		}
		select {
		case a.free <- struct{}{}:
		default:
			return // the rest comes in a later round
		}
		a.orderBegun(o)
		a.cfg.Logger.Debug("catch-up: order", "source", o.source, "targets", o.targets, "contents", len(o.contents), "first",
			o.contents[0])
		began := a.cfg.Clock.Now()
		a.wg.Go(func() {
			defer func() { a.orderEnded(o); <-a.free; a.nudge() }()
			a.carry(ctx, o)
			a.cfg.Logger.Debug("catch-up: order is over", "source", o.source, "targets", o.targets, "first", o.contents[0],
				"took", a.cfg.Clock.Now().Sub(began))
		})
	}
}

func (a *assigner) busyAt(source meta.NodeID) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.busy[source].orders
}

func (a *assigner) orderEnded(o *order) {
	a.lessen(o, o.contents)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range o.contents {
		if a.at[id] == o.source {
			delete(a.at, id)
		}
	}
	l := a.busy[o.source]
	if l.orders == 1 {
		delete(a.busy, o.source)
		return
	}
	a.busy[o.source] = load{l.orders - 1, l.bytes}
}

func (a *assigner) orderBegun(o *order) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.busy[o.source]
	for _, bytes := range o.left {
		l.bytes += bytes
	}
	a.busy[o.source] = load{l.orders + 1, l.bytes}
	for _, id := range o.contents[1:] { // the first is sent at once: it can't be shared any more
		a.at[id] = o.source
	}
	view := a.cfg.Names.View()
	for _, n := range o.targets {
		for _, id := range o.contents {
			item := owedItem{n, id}
			if a.tries[item] == nil {
				a.tries[item] = &try{}
			}
			t := a.tries[item]
			t.running, t.source, t.of, t.by, t.view = true, o.source, a.seen[n], a.seen[o.source], view
		}
	}
}

// lessen takes contents that an order is done with off the load of its source.
func (a *assigner) lessen(o *order, ids []meta.ContentID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.busy[o.source]
	for _, id := range ids {
		l.bytes -= o.left[id]
		delete(o.left, id)
	}
	a.busy[o.source] = l
}

// carry asks the source until the order is done or the source fails, goes down or restarts.
func (a *assigner) carry(ctx context.Context, o *order) {
	ctx, cancel := whileUp(ctx, &a.wg, a.cfg, a.views, o.source)
	defer cancel()
	left := o.contents
	for ctx.Err() == nil && len(left) > 0 && a.cfg.IsLeader() {
		reply, err := a.ask(ctx, o, left)
		if err != nil {
			a.cfg.Logger.Debug("catch-up: source failed", "source", o.source, "err", err)
			break
		}
		a.done(o.targets, reply.Done, reply.Failed)
		a.failed(o.targets, reply.Absent, o.source)
		a.passedOn(o, reply.Begun)
		a.failed(o.targets, reply.unnamed(left), o.source)
		a.lessen(o, without(left, reply.Running))
		if len(reply.Running) >= len(left) && len(reply.Done)+len(reply.Absent) == 0 && reply.Progress == 0 {
			break // it makes no headway: look again with fresh eyes
		}
		left = reply.Running
	}
	a.failed(o.targets, left, o.source)
}

func (a *assigner) ask(ctx context.Context, o *order, left []meta.ContentID) (workReply, error) {
	ctx, cancel := context.WithTimeout(ctx, workWait+5*time.Second)
	defer cancel()
	m := work{
		WaitMs: uint32(workWait / time.Millisecond), View: o.view, Index: o.index, Elsewhere: o.elsewhere,
		Targets: o.targets, Contents: left,
	}
	if o.source == a.cfg.Self().Node {
		return a.own(ctx, m), nil
	}
	answer, err := a.cfg.Peers.Call(ctx, o.source, KindWork, m.encode())
	if err != nil {
		return workReply{}, err
	}
	reply, err := decodeWorkReply(answer)
	known := make(map[meta.ContentID]bool, len(left))
	for _, id := range left {
		known[id] = true
	}
	reply.Running = slices.DeleteFunc(reply.Running, func(id meta.ContentID) bool { return !known[id] })
	return reply, err
}

// passedOn makes items be offered to another source at once: this one is sending their contents to other nodes already.
func (a *assigner) passedOn(o *order, ids []meta.ContentID) {
	if len(ids) == 0 {
		return
	}
	a.mu.Lock()
	for _, id := range ids {
		if a.at[id] == o.source {
			delete(a.at, id)
		}
		for _, n := range o.targets {
			if t := a.tries[owedItem{n, id}]; t != nil && t.running && t.source == o.source {
				t.running, t.avoid, t.next = false, o.source, time.Time{}
				t.passed++
			}
		}
	}
	a.mu.Unlock()
	a.nudge()
}

// done drops the items that the source has carried out; the targets report them to the log. Items that failed at a
// target are tried again later.
func (a *assigner) done(targets []meta.NodeID, ids []meta.ContentID, unreached []meta.NodeID) {
	a.failed(unreached, ids, 0)
	now := a.cfg.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range targets {
		if slices.Contains(unreached, n) {
			continue
		}
		for _, id := range ids {
			if t := a.tries[owedItem{n, id}]; t != nil { // the log says soon that it is held
				t.running, t.next, t.fails, t.passed = false, now.Add(2*workRetryMin), 0, 0
			}
		}
	}
	a.prune(now)
}

// failed makes items wait, longer each time. If the source went down, or the source or the target restarted meanwhile,
// the failure says nothing about the next try, which then comes at once. So does the second try if any other node came
// or went meanwhile: that may have ended the group of all.
func (a *assigner) failed(targets []meta.NodeID, ids []meta.ContentID, source meta.NodeID) {
	now, view := a.cfg.Clock.Now(), a.cfg.Names.View()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range targets {
		for _, id := range ids {
			item := owedItem{n, id}
			t := a.tries[item]
			if t == nil {
				t = &try{}
				a.tries[item] = t
			}
			past := t.running && (a.seen[n] != t.of || a.seen[t.source] != t.by || !a.isUp(t.source))
			disturbed := t.running && t.fails == 0 && t.view != view
			t.running, t.avoid, t.nowhere = false, source, false
			switch {
			case past:
				t.again()
				a.nudge()
				continue
			case disturbed:
				t.fails, t.next = 1, time.Time{}
				a.nudge()
				continue
			}
			t.next = now.Add(min(workRetryMin<<min(max(t.fails-workRetrySame+1, 0), 6), workRetryMax))
			t.fails++
		}
	}
}

func (a *assigner) isUp(node meta.NodeID) bool {
	n, err := a.cfg.Names.Node(node)
	return err == nil && n.State == meta.NodeUp
}

// waitForHolder notes that no holder of a content is up.
func (a *assigner) waitForHolder(targets []meta.NodeID, id meta.ContentID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range targets {
		a.tries[owedItem{n, id}].nowhere = true
	}
}

// prune forgets items that were not tried for long: their node holds them, or they are retired.
func (a *assigner) prune(now time.Time) {
	maps.DeleteFunc(a.tries, func(_ owedItem, t *try) bool {
		return !t.running && now.Sub(t.next) > 2*workRetryMax
	})
}
