package sim

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// reconcile compares what is owed to this node with its store, and proposes what was noted.
func (l *life) reconcile() {
	l.rep.Reconcile()
	l.rep.Sweep()
	ops := l.noted.ops
	l.noted.ops = nil
	for _, op := range ops {
		l.propose(op, func(meta.Result, error) {})
	}
}

// tellReports tells the log what is here against its belief, and what is not.
func (l *life) tellReports() {
	if l.rep.StockAsked() {
		l.reconcile()
	}
	self := l.m.node
	l.tellReport("held", l.rep.Held(), func(ids []meta.ContentID) meta.Op { return &meta.Held{Node: self, Contents: ids} }, l.rep.HeldTold)
	l.tellReport("lost", l.rep.Lost(), func(ids []meta.ContentID) meta.Op {
		return &meta.Unheld{Node: self, Contents: ids, Reason: meta.OwedLost}
	}, l.rep.LostTold)
}

// tellReport proposes one batch; the next goes when it is answered.
func (l *life) tellReport(kind string, ids []meta.ContentID, op func([]meta.ContentID) meta.Op, told func([]meta.ContentID)) {
	if len(ids) == 0 || l.supplies[kind] != nil {
		return
	}
	l.supplies[kind] = &supply{}
	ids = slices.Clone(ids)
	l.propose(op(ids), func(res meta.Result, err error) {
		delete(l.supplies, kind)
		if err == nil && res.Errno != syscall.EAGAIN {
			told(ids)
		}
	})
}

// releaseSpares offers what other nodes are to hold instead of this one.
func (l *life) releaseSpares() {
	if ids := l.rep.Spares(64); len(ids) > 0 {
		l.propose(&meta.Release{Node: l.m.node, Contents: ids}, func(meta.Result, error) {})
	}
}

// nudge makes the leader look at what is owed soon.
func (l *life) nudge() {
	if l.leads() {
		l.w.after(10*time.Millisecond, l, l.assign)
	}
}

// assign is one round of the leader's part of catch-up.
func (l *life) assign() {
	if !l.leads() {
		l.rep.NoLeader()
		return
	}
	for _, o := range l.rep.Orders() {
		l.carry(o, o.Contents)
	}
}

// workReply says what became of the contents of an order.
type workReply struct {
	done, absent, running []meta.ContentID
	failed                []meta.NodeID
}

// carry asks the source of an order until it is done.
func (l *life) carry(o replicate.Order, left []meta.ContentID) {
	l.call(o.Source, 20*time.Second, func(at *life, reply func(any)) { at.work(o.Targets, left, reply) }, func(a any, err error) {
		if err != nil {
			l.rep.OrderDone(o, nil, nil, nil, left)
			return
		}
		r := a.(workReply)
		l.rep.OrderDone(o, r.done, r.failed, r.absent, r.running)
	})
}

// supply is one content on its way to a set of nodes.
type supply struct {
	absent  bool
	over    bool
	failed  []meta.NodeID
	waiting []func()
}

func (s *supply) end() {
	s.over = true
	for _, f := range s.waiting {
		f()
	}
	s.waiting = nil
}

// work carries out an order, and answers when all is done, or after a while.
func (l *life) work(targets []meta.NodeID, ids []meta.ContentID, reply func(any)) {
	jobs := make([]*supply, len(ids))
	answered := false
	answer := func(late bool) {
		var r workReply
		for i, j := range jobs {
			switch {
			case !j.over:
				r.running = append(r.running, ids[i])
			case j.absent:
				r.absent = append(r.absent, ids[i])
			default:
				r.done = append(r.done, ids[i])
				r.failed = append(r.failed, j.failed...)
			}
		}
		if answered || len(r.running) > 0 && !late {
			return
		}
		answered = true
		reply(r)
	}
	for i, id := range ids {
		key := fmt.Sprint(id, targets)
		j := l.supplies[key]
		if j == nil {
			j = &supply{}
			l.supplies[key] = j
			j.waiting = append(j.waiting, func() { delete(l.supplies, key) })
			l.w.after(l.diskTime(), l, func() { l.supply(id, targets, j) })
		}
		jobs[i] = j
		j.waiting = append(j.waiting, func() { l.w.after(0, l, func() { answer(false) }) })
	}
	l.w.after(15*time.Second, l, func() { answer(true) })
}

// supply pushes one content to nodes that are owed it.
func (l *life) supply(id meta.ContentID, targets []meta.NodeID, j *supply) {
	c, err := l.db.Content(id)
	if err != nil {
		j.end() // retired
		return
	}
	b := l.store.blobs[storeID(id)]
	if b == nil || b.state == content.Partial {
		l.rep.Missing(id)
		j.absent = true
		j.end()
		return
	}
	l.w.stats.CaughtUp++
	if data := l.w.oracle.bytes(id); data != nil {
		l.supplySmall(id, c, data, targets, j)
		return
	}
	root := [32]byte(b.root)
	r := l.newRoot(id, &file{size: b.size, leaves: slices.Clone(b.leaves)}, targets, &root)
	r.ended = func() {
		_, missed := r.s.Votes()
		for _, m := range missed {
			j.failed = append(j.failed, m.Node)
		}
		j.end()
	}
	r.start()
}

// supplySmall puts one content at each target.
func (l *life) supplySmall(id meta.ContentID, c meta.Content, data []byte, targets []meta.NodeID, j *supply) {
	from, open := l.m.node, len(targets)
	item := &replicate.PutItem{Content: id, Published: true, Root: c.Root, Bytes: data}
	for _, n := range targets {
		l.call(n, 30*time.Second, func(at *life, reply func(any)) { at.put(from, item, reply) }, func(a any, err error) {
			st, _ := a.(replicate.Standing)
			if err != nil || st.Status != replicate.StatusVoted && st.Status != replicate.StatusGone {
				j.failed = append(j.failed, n)
			}
			if open--; open == 0 {
				j.end()
			}
		})
	}
}
