package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// file is what a client has written: bytes when it is small, else the leaves of its blocks.
type file struct {
	size   int64
	data   []byte
	leaves []content.Hash
}

func (f *file) root() [32]byte { return content.Root(f.size, f.leaves) }

// pushSession is a push from its session's number to the answer of close.
type pushSession struct {
	l       *life
	push    replicate.Push
	file    *file
	id      meta.ContentID
	op      *meta.Publish
	targets *replicate.Targets
	tries   int
	cb      func(pushOutcome, error)
}

// pushOutcome is what close learns.
type pushOutcome struct {
	res    meta.Result
	id     meta.ContentID
	size   int64
	behind []meta.NodeID
	blind  bool // nothing was heard of the other nodes
}

// publish pushes a file and answers when its close may return.
func (l *life) publish(p replicate.Push, f *file, cb func(pushOutcome, error)) {
	l.w.stats.Pushes++
	l.attempt(p, f, 0, cb)
}

func (l *life) attempt(p replicate.Push, f *file, tries int, cb func(pushOutcome, error)) {
	s := &pushSession{l: l, push: p, file: f, tries: tries, cb: cb, id: l.rep.NextSession()}
	s.op = &meta.Publish{Ino: p.Ino, Base: p.Base, Size: f.size, Session: s.id, Attr: p.Attr}
	if s.id.Incarnation == 0 {
		cb(pushOutcome{}, errFenced)
		return
	}
	targets, err := l.rep.Choose(&s.push, s.op)
	if err != nil {
		cb(pushOutcome{}, err)
		return
	}
	s.targets = targets
	l.w.oracle.begun(l, s.id, f)
	switch {
	case f.size == 0:
		s.propose()
	case f.data != nil && targets.Inline():
		l.w.stats.Inline++
		s.op.Inline, s.op.Root = f.data, f.root()
		s.propose()
	case f.data != nil:
		l.w.stats.Small++
		s.small()
	default:
		l.w.stats.Large++
		s.large()
	}
}

// gathered takes the votes and goes on to the log.
func (s *pushSession) gathered(votes []meta.NodeID, missed []meta.Missed) {
	if err := s.targets.Count(votes, missed); err != nil {
		s.giveUp()
		s.cb(pushOutcome{id: s.id}, err)
		return
	}
	s.propose()
}

func (s *pushSession) propose() {
	l := s.l
	l.point("propose")
	l.propose(s.op, func(res meta.Result, err error) {
		switch {
		case errors.Is(err, errUnknown):
			s.cb(pushOutcome{id: s.id}, err)
		case err != nil:
			s.giveUp()
			s.cb(pushOutcome{id: s.id}, err)
		case res.Errno != 0:
			s.giveUp()
			refused, again := s.targets.Refused(res)
			if again && s.tries < 2 {
				l.attempt(s.push, s.file, s.tries+1, s.cb)
				return
			}
			s.cb(pushOutcome{id: s.id}, refused)
		default:
			l.point("commit")
			s.show(res)
		}
	})
}

// show waits for the barrier.
func (s *pushSession) show(res meta.Result) {
	l := s.l
	l.point("visible")
	l.barrier(res.Index, func(behind []meta.NodeID, err error) {
		if err != nil {
			behind = s.targets.Others()
		}
		l.point("reply")
		s.cb(pushOutcome{res: res, id: s.id, size: s.file.size, behind: behind, blind: err != nil}, nil)
	})
}

// giveUp ends the session in the log, for as long as it takes.
func (s *pushSession) giveUp() { s.l.abort(s.id) }

func (l *life) abort(id meta.ContentID) {
	if l.rep.Settled(id) {
		return
	}
	l.propose(&meta.Abort{Session: id}, func(_ meta.Result, err error) {
		if err != nil {
			l.w.after(time.Second, l, func() { l.abort(id) })
		}
	})
}

// smallPush gathers the votes for a small content, as replicate's small does.
type smallPush struct {
	s      *pushSession
	open   map[meta.NodeID]bool
	here   bool // the writer's own copy is being stored
	again  bool // those that were lost will be asked again
	votes  []meta.NodeID
	missed []meta.Missed
	over   bool
	turn   int // of the timer that counts
}

func (s *pushSession) small() {
	l := s.l
	s.op.Root = s.file.root()
	p := &smallPush{s: s, open: map[meta.NodeID]bool{}}
	l.proposer.puts = append(l.proposer.puts, p)
	for _, n := range s.targets.Others() {
		p.open[n] = true
		p.putAt(n, 2)
	}
	if s.targets.Self() {
		p.here = true
		p.putHere()
	}
	p.patience(25 * time.Second)
	l.w.after(20*time.Second, l, p.silent)
	p.endIfOver()
}

func (p *smallPush) putAt(n meta.NodeID, tries int) {
	s := p.s
	from := s.l.m.node
	item := &replicate.PutItem{Content: s.id, Ino: s.push.Ino, Root: s.op.Root, Bytes: s.file.data}
	s.l.call(n, 20*time.Second, func(at *life, reply func(any)) { at.put(from, item, reply) }, func(a any, err error) {
		if err != nil && tries > 1 {
			p.putAt(n, tries-1)
			return
		}
		st, _ := a.(replicate.Standing)
		p.answer(n, st, err)
	})
}

// put handles a small content.
func (l *life) put(from meta.NodeID, item *replicate.PutItem, reply func(any)) {
	l.w.after(l.diskTime(), l, func() {
		st := l.rep.Put(from, item)
		if st.Status == replicate.StatusVoted {
			l.w.oracle.voted(l, item.Content)
		}
		reply(st)
	})
}

func (p *smallPush) putHere() {
	s := p.s
	s.l.w.after(s.l.diskTime(), s.l, func() {
		err := s.l.rep.PutHere(s.id, s.op.Root, s.file.data)
		if err == nil {
			s.l.w.oracle.voted(s.l, s.id)
		}
		p.answer(s.id.Node, replicate.Standing{Status: replicate.StatusVoted}, err)
	})
}

func (p *smallPush) answer(n meta.NodeID, st replicate.Standing, err error) {
	self := p.s.id.Node
	if p.over || n != self && !p.open[n] {
		return
	}
	if n == self {
		p.here = false
	}
	delete(p.open, n)
	switch {
	case err == nil && st.Status == replicate.StatusVoted:
		p.votes = append(p.votes, n)
	case err != nil && n != self:
		p.missed = append(p.missed, meta.Missed{Node: n, Reason: meta.OwedUnreachable})
	default:
		p.missed = append(p.missed, meta.Missed{Node: n, Reason: meta.OwedFailed})
	}
	if len(p.votes) >= p.s.targets.MinCopies() {
		p.patience(2 * time.Second)
	}
	p.viewChanged()
}

// viewChanged takes out members that are down by now.
func (p *smallPush) viewChanged() {
	if p.over {
		return
	}
	for _, gone := range p.s.targets.Refresh() {
		voted := slices.Index(p.votes, gone)
		if voted >= 0 {
			p.votes = slices.Delete(p.votes, voted, voted+1)
		}
		if p.open[gone] || voted >= 0 {
			delete(p.open, gone)
			p.missed = append(p.missed, meta.Missed{Node: gone, Reason: meta.OwedDown})
		}
	}
	p.endIfOver()
}

// endIfOver ends the wait when nobody is asked any more; members that were lost and are needed are asked again.
func (p *smallPush) endIfOver() {
	if len(p.open) > 0 || p.here {
		return
	}
	if len(p.s.targets.Lost(p.votes, p.missed)) == 0 {
		p.end()
		return
	}
	if p.again {
		return
	}
	p.again = true
	p.s.l.w.after(time.Second, p.s.l, func() {
		p.again = false
		if p.over || len(p.open) > 0 {
			return
		}
		for _, n := range p.s.targets.Lost(p.votes, p.missed) {
			p.missed = slices.DeleteFunc(p.missed, func(m meta.Missed) bool { return m.Node == n })
			p.open[n] = true
			p.putAt(n, 2)
		}
		p.endIfOver()
	})
}

// patience ends the wait after a time, unless it is called again.
func (p *smallPush) patience(d time.Duration) {
	p.turn++
	turn := p.turn
	p.s.l.w.after(d, p.s.l, func() {
		if turn == p.turn {
			p.silent()
		}
	})
}

// silent goes on without those that have not answered.
func (p *smallPush) silent() {
	if p.over {
		return
	}
	for _, n := range p.s.targets.Others() {
		if p.open[n] {
			p.missed = append(p.missed, meta.Missed{Node: n, Reason: meta.OwedSlow})
		}
	}
	p.end()
}

func (p *smallPush) end() {
	if p.over {
		return
	}
	p.over = true
	list := &p.s.l.proposer.puts
	for i, x := range *list {
		if x == p {
			*list = append((*list)[:i:i], (*list)[i+1:]...)
			break
		}
	}
	p.s.gathered(p.votes, p.missed)
}

// large runs a session with the writer's own copy.
func (s *pushSession) large() {
	l := s.l
	b, _, err := l.store.receive(s.id, s.file.size, len(s.file.leaves))
	if err != nil || b == nil {
		s.giveUp()
		s.cb(pushOutcome{id: s.id}, errRefused)
		return
	}
	r := l.newRoot(s.id, s.file, s.targets.Others(), nil)
	r.look = s.targets.Look
	r.ended = func() {
		l.store.shut(b, !r.s.Stored())
		if !r.s.Stored() {
			s.giveUp()
			s.cb(pushOutcome{id: s.id}, errRefused)
			return
		}
		s.op.Root = s.file.root()
		votes, missed := r.s.Votes()
		if s.targets.Self() {
			votes = append(votes, s.id.Node)
		}
		s.gathered(votes, missed)
	}
	r.start()
	read := time.Duration(len(s.file.leaves)) * l.w.between(500*time.Microsecond, 10*time.Millisecond)
	l.w.after(read, l, func() { s.storeHere(r, b) })
}

// storeHere finishes the writer's own copy while members still receive.
func (s *pushSession) storeHere(r *rootRun, b *blob) {
	l := s.l
	copy(b.leaves, s.file.leaves)
	for i := range b.have {
		b.have[i] = true
	}
	r.perform(r.s.Root(l.w.time(), s.file.root()))
	l.w.after(l.diskTime(), l, func() {
		err := l.store.finish(b, content.Hash(s.file.root()))
		if err == nil {
			l.w.oracle.voted(l, s.id)
		}
		r.perform(r.s.Local(l.w.time(), err))
	})
}
