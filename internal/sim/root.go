package sim

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// rootRun is the shell of a replicate.SteppedRoot, as replicate's rootRun is of its rootSession.
type rootRun struct {
	l         *life
	id        meta.ContentID
	file      *file
	published bool
	root      [32]byte
	s         *replicate.SteppedRoot
	epoch     uint32
	groups    []*endpoint // of the epoch, by part
	look      func() replicate.View
	ended     func()
	over      bool
}

// newRoot makes a session; published is the root that the log has, for catch-up.
func (l *life) newRoot(id meta.ContentID, f *file, members []meta.NodeID, published *[32]byte) *rootRun {
	r := &rootRun{l: l, id: id, file: f, s: replicate.NewSteppedRoot(members, len(f.leaves), l.tuning(), published)}
	r.look = func() replicate.View { return l.rep.Look(members) }
	if published != nil {
		r.published, r.root = true, *published
	}
	return r
}

func (r *rootRun) start() {
	l := r.l
	l.roots = append(l.roots, r)
	r.perform(r.s.Start(l.w.time()))
	r.viewChanged()
	l.w.after(200*time.Millisecond, l, r.tick)
}

func (r *rootRun) tick() {
	if r.over {
		return
	}
	l := r.l
	r.viewChanged()
	r.reportProgress()
	r.perform(r.s.Tick(l.w.time()))
	l.w.after(200*time.Millisecond, l, r.tick)
}

// reportProgress tells the session what the group knows of its members.
func (r *rootRun) reportProgress() {
	for _, ep := range slices.Clone(r.groups) {
		if ep == nil || ep.closed {
			continue
		}
		for rank := 1; rank < len(ep.g.members); rank++ {
			blocks, done := ep.c.Progress(rank)
			if done {
				blocks = ep.g.blocks.Count()
			}
			r.perform(r.s.Progress(r.l.w.time(), ep.g.members[rank], r.epoch, int(blocks)))
		}
	}
}

// viewChanged tells the session what the log says of its members.
func (r *rootRun) viewChanged() {
	if !r.over {
		r.perform(r.s.View(r.l.w.time(), r.look()))
	}
}

// perform carries out what the session says.
func (r *rootRun) perform(acts []replicate.RootAct) {
	for _, a := range acts {
		if r.over {
			return
		}
		switch a.Kind {
		case replicate.RootAnnounce:
			r.announce(a, 2)
		case replicate.RootSend:
			r.send(a)
		case replicate.RootEndGroup:
			r.endGroup(a.Part, a.Members)
		case replicate.RootFinish:
			r.finish(a, 2)
		case replicate.RootStop:
			r.stop(a)
		case replicate.RootEnd:
			r.endGroups()
			r.over = true
			r.l.roots = slices.DeleteFunc(r.l.roots, func(x *rootRun) bool { return x == r })
			r.ended()
		}
	}
}

func (r *rootRun) announce(a replicate.RootAct, tries int) {
	l := r.l
	from := l.m.node
	m := announcement{id: r.id, epoch: a.Epoch, published: r.published, root: r.root, size: r.file.size, blocks: len(r.file.leaves)}
	l.call(a.Node, 6*time.Second, func(at *life, reply func(any)) { reply(at.announce(from, m)) }, func(x any, err error) {
		switch {
		case r.over:
		case err != nil && tries > 1:
			r.announce(a, tries-1)
		case err != nil:
			r.perform(r.s.Unreachable(l.w.time(), a.Node, a.Epoch))
		default:
			st := x.(replicate.Standing)
			st.Epoch = a.Epoch
			r.perform(r.s.Answer(l.w.time(), a.Node, st))
		}
	})
}

func (r *rootRun) finish(a replicate.RootAct, tries int) {
	l := r.l
	var root *[32]byte
	if a.HasRoot {
		root = &a.Root
	}
	l.call(a.Node, 8300*time.Millisecond, func(at *life, reply func(any)) { at.finish(r.id, a.Epoch, root, reply) }, func(x any, err error) {
		switch {
		case r.over:
		case err != nil && tries > 1:
			r.finish(a, tries-1)
		case err != nil:
			r.perform(r.s.Unreachable(l.w.time(), a.Node, a.Epoch))
		default:
			r.perform(r.s.Standing(l.w.time(), a.Node, x.(replicate.Standing)))
		}
	})
}

func (r *rootRun) stop(a replicate.RootAct) {
	from := r.l.m.node
	r.l.call(a.Node, time.Second, func(at *life, reply func(any)) {
		at.stopped(from, r.id, a.Epoch, a.Drop)
		reply(nil)
	}, func(any, error) {})
}

// send opens the group of an epoch at all members; those that do not come along spoil it.
func (r *rootRun) send(a replicate.RootAct) {
	l := r.l
	members := append([]meta.NodeID{l.m.node}, a.Members...)
	g := l.w.newGroup(members, r.file.size, a.Blocks)
	if g == nil {
		return
	}
	if a.Part == 0 {
		r.endGroups()
		r.groups = nil
	}
	r.epoch = a.Epoch
	open := len(a.Members)
	var failed []meta.NodeID
	src := &blob{size: r.file.size, leaves: r.file.leaves}
	ep := g.join(l, 0, src)
	r.groups = append(r.groups, ep)
	ep.onDone = func() { r.perform(r.s.GroupDone(l.w.time(), a.Epoch, a.Part)) }
	ep.onFailed = func(suspects []meta.NodeID) { r.groupFailed(ep, a.Epoch, a.Part, suspects) }
	for i, n := range a.Members {
		rank := i + 1
		l.call(n, 5*time.Second, func(at *life, reply func(any)) { reply(at.begun(r.id, a.Epoch, g, rank)) }, func(x any, err error) {
			if ok, _ := x.(bool); err != nil || !ok {
				failed = append(failed, n)
			}
			if open--; open > 0 {
				return
			}
			if len(failed) > 0 {
				r.groupFailed(ep, a.Epoch, a.Part, failed)
			} else if !r.over {
				r.perform(r.s.Flowing(l.w.time(), a.Epoch, a.Part))
			}
		})
	}
	ep.run(func() {}) // what happened before the callbacks were set
}

func (r *rootRun) groupFailed(ep *endpoint, epoch uint32, part int, suspects []meta.NodeID) {
	if r.over || part >= len(r.groups) || r.groups[part] != ep {
		return
	}
	r.endGroup(part, suspects)
	r.perform(r.s.GroupFailed(r.l.w.time(), epoch, part, suspects))
}

// endGroups ends the groups that run.
func (r *rootRun) endGroups() {
	for i := range r.groups {
		r.endGroup(i, nil)
	}
}

// endGroup ends a group of the present epoch; its members are told.
func (r *rootRun) endGroup(part int, suspects []meta.NodeID) {
	if part >= len(r.groups) || r.groups[part] == nil {
		return
	}
	ep := r.groups[part]
	r.groups[part] = nil
	ep.onDone, ep.onFailed = nil, nil
	if ep.done {
		ep.leave()
		return
	}
	var ranks []int
	for _, n := range suspects {
		if i := slices.Index(ep.g.members, n); i > 0 {
			ranks = append(ranks, i)
		}
	}
	ep.run(func() { ep.c.Fail(ranks, errLink) })
	r.l.w.after(500*time.Millisecond, r.l, ep.cut)
}
