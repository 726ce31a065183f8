package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

const (
	watchInterval    = 500 * time.Millisecond
	watchIntervalMin = 50 * time.Millisecond
	watchQueue       = 256 // events that wait for one watcher; more are counted, and dropped
)

// watchers are the clients that follow what happens here.
type watchers struct {
	mu  sync.Mutex
	all map[*watcher]struct{}
}

// watcher is one of them.
type watcher struct {
	events   chan meta.Event
	missed   int  // events that found no room; guarded by watchers.mu, as is replaced
	replaced bool // the state was replaced: what led to it is not known here
}

func (w *watchers) join() *watcher {
	one := &watcher{events: make(chan meta.Event, watchQueue)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[*watcher]struct{}{}
	}
	w.all[one] = struct{}{}
	return one
}

func (w *watchers) leave(one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, one)
}

// notify hands events to the watchers without waiting for them.
func (w *watchers) notify(events []meta.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.all {
		for _, ev := range events {
			if ev.Kind != meta.EventNode && ev.Kind != meta.EventPublished {
				continue
			}
			select {
			case one.events <- ev:
			default:
				one.missed++
			}
		}
	}
}

// skip notes that the state of another node has taken the place of this one's.
func (w *watchers) skip() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.all {
		one.replaced = true
	}
}

// gap describes once what was not sent to a watcher; "" if all was.
func (w *watchers) gap(one *watcher) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	missed, replaced := one.missed, one.replaced
	one.missed, one.replaced = 0, false
	switch {
	case replaced:
		return "versions and changes of nodes may be missing here: this node has taken the state of another one"
	case missed > 0:
		return fmt.Sprintf("%d more versions and changes of nodes: this watch was too slow to be told of each", missed)
	}
	return ""
}

// watchReport answers the clients that watch.
type watchReport struct {
	ctx       context.Context // ends with the node
	db        *meta.DB
	raft      *lateRaft
	repl      *replicate.Replicator
	watchers  *watchers
	transfers *transfers
	nodes     *nodeReport
	versions  *versions
	changes   *changeReport
}

// watch reports transfers as they run, the end of each of them, new versions, and changes of nodes, until the client
// goes; or changes of names and versions, if it asks for these.
func (w *watchReport) watch(ctx context.Context, req admin.WatchRequest, each func(admin.Event) error) error {
	if req.Changes {
		return w.changes.watch(ctx, req, each)
	}
	interval := max(orDefault(req.Interval, watchInterval), watchIntervalMin)
	watcher := w.watchers.join()
	defer w.watchers.leave(watcher)
	feed := w.repl.FollowTransfers()
	defer feed.Close()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.ctx.Done():
			return w.tellTransfers(req, feed, false, each)
		case ev := <-watcher.events:
			if out, ok := w.describe(ev, req); ok {
				err = each(out)
			}
		case <-feed.Ready():
			err = w.tellTransfers(req, feed, false, each)
		case <-tick.C:
			if err = w.tellTransfers(req, feed, true, each); err == nil {
				err = w.watchers.notifyGap(watcher, each)
			}
		}
		if err != nil {
			return err
		}
	}
}

// tellTransfers sends the last state of each transfer that has ended, and, if asked to, the present state of each that
// runs.
func (w *watchReport) tellTransfers(
	req admin.WatchRequest, feed *replicate.TransferFeed, present bool, each func(admin.Event) error,
) error {
	now := time.Now()
	ended, missed, running := feed.Take()
	if !present {
		running = nil
	}
	tell := func(kind string, list []replicate.TransferStatus) error {
		for _, t := range list {
			line := w.transfers.line(t)
			if !below(line.Path, req.Path) {
				continue
			}
			if err := each(admin.Event{Time: now, Kind: kind, Transfer: &line}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := tell("transfer-end", ended); err != nil {
		return err
	}
	if missed > 0 {
		text := fmt.Sprintf("%d more transfers have ended: this watch was too slow to be told of each", missed)
		if err := each(admin.Event{Time: now, Kind: "message", Message: text}); err != nil {
			return err
		}
	}
	return tell("transfer", running)
}

// notifyGap sends a watcher a message if some versions and changes of nodes were not sent to it.
func (w *watchers) notifyGap(one *watcher, each func(admin.Event) error) error {
	text := w.gap(one)
	if text == "" {
		return nil
	}
	return each(admin.Event{Time: time.Now(), Kind: "message", Message: text})
}

func (w *watchReport) describe(ev meta.Event, req admin.WatchRequest) (admin.Event, bool) {
	out := admin.Event{Time: time.Now()}
	switch ev.Kind {
	case meta.EventNode:
		if rec, err := w.db.Node(ev.Node); err == nil && rec.State == meta.NodeEvicted { // status lists it no more
			out.Kind, out.Node = "node", &admin.Node{ID: uint32(rec.ID), Name: rec.Name, Addr: rec.Addr, Labels: rec.Labels,
				State: stateWords[rec.State], Reason: rec.Reason, Voter: rec.Voter, Incarnation: rec.Incarnation}
			return out, true
		}
		nodes, err := w.nodes.list(w.raft.status())
		if err != nil {
			return out, false
		}
		for _, line := range nodes {
			if line.ID == uint32(ev.Node) {
				out.Kind, out.Node = "node", &line
			}
		}
	case meta.EventPublished:
		c, err := w.db.Content(ev.Content)
		if err != nil {
			return out, false
		}
		if v := w.versions.line(c); below(v.Path, req.Path) {
			out.Kind, out.Version = "version", &v
		}
	}
	return out, out.Kind != ""
}
