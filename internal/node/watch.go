package node

import (
	"context"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	watchInterval    = 500 * time.Millisecond
	watchIntervalMin = 50 * time.Millisecond
	watchQueue       = 256 // events that wait for one watcher; more are dropped
)

// watchers are those who follow what happens here.
type watchers struct {
	mu  sync.Mutex
	all map[chan meta.Event]struct{}
}

func (w *watchers) join() chan meta.Event {
	c := make(chan meta.Event, watchQueue)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[chan meta.Event]struct{}{}
	}
	w.all[c] = struct{}{}
	return c
}

func (w *watchers) leave(c chan meta.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, c)
}

// tell hands events to the watchers without waiting for them.
func (w *watchers) tell(events []meta.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.all {
		for _, ev := range events {
			if ev.Kind != meta.EventNode && ev.Kind != meta.EventPublished {
				continue
			}
			select {
			case c <- ev:
			default:
			}
		}
	}
}

// watch tells about transfers as they run, new versions, and changes of nodes, until the client goes.
func (n *node) watch(ctx context.Context, req admin.WatchRequest, each func(admin.Event) error) error {
	interval := max(orDefault(req.Interval, watchInterval), watchIntervalMin)
	events := n.watched.join()
	defer n.watched.leave(events)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	running := map[string]admin.Transfer{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.ctx.Done():
			return nil
		case ev := <-events:
			if out, ok := n.describe(ev); ok {
				if err := each(out); err != nil {
					return err
				}
			}
		case <-tick.C:
			if err := n.tellTransfers(req, running, each); err != nil {
				return err
			}
		}
	}
}

// tellTransfers sends the state of each transfer, and the last one of those that have ended.
func (n *node) tellTransfers(req admin.WatchRequest, running map[string]admin.Transfer, each func(admin.Event) error) error {
	now := time.Now()
	seen := map[string]bool{}
	for _, t := range n.transfers() {
		if !below(t.Path, req.Path) {
			continue
		}
		seen[t.Session] = true
		running[t.Session] = t
		if err := each(admin.Event{Time: now, Kind: "transfer", Transfer: &t}); err != nil {
			return err
		}
	}
	for session, t := range running {
		if seen[session] {
			continue
		}
		delete(running, session)
		if err := each(admin.Event{Time: now, Kind: "transfer-end", Transfer: &t}); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) describe(ev meta.Event) (admin.Event, bool) {
	out := admin.Event{Time: time.Now()}
	switch ev.Kind {
	case meta.EventNode:
		nodes, err := n.nodeStatus(n.raft.status())
		if err != nil {
			return out, false
		}
		for _, line := range nodes {
			if line.ID == uint32(ev.Node) {
				out.Kind, out.Node = "node", &line
			}
		}
	case meta.EventPublished:
		c, err := n.db.Content(ev.Content)
		if err != nil {
			return out, false
		}
		v := n.version(c)
		out.Kind, out.Version = "version", &v
	}
	return out, out.Kind != ""
}
