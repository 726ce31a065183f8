package sim

import (
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// hold is one session at a member: the shell of a replicate.SteppedMember, as replicate's hold is of its memberSession.
type hold struct {
	l       *life
	id      meta.ContentID
	root    meta.NodeID
	size    int64
	s       replicate.SteppedMember
	blob    *blob
	ep      *endpoint
	spoiled bool
	polls   []func()
}

// announcement opens a session at a member, or moves it to a new epoch.
type announcement struct {
	id        meta.ContentID
	epoch     uint32
	published bool
	root      [32]byte
	size      int64
	blocks    int
}

// announce handles an announcement.
func (l *life) announce(from meta.NodeID, a announcement) replicate.Standing {
	refused := replicate.Standing{Content: a.id, Epoch: a.epoch, Status: replicate.StatusRefused, Reason: meta.OwedFailed}
	if st, ok := l.already(a.id, a.published); ok {
		st.Epoch = a.epoch
		return st
	}
	if a.published && !l.rep.Known(a.id, a.root) {
		refused.Reason = meta.OwedSlow
		return refused
	}
	h := l.holds[a.id]
	if h == nil {
		h = &hold{l: l, id: a.id, size: a.size}
		l.holds[a.id] = h
		l.rep.Enter(a.id, from)
	}
	h.root = from
	st := h.announce(a)
	if h.s.Open() && !h.s.Gone() {
		if decided, published := l.rep.Judge(a.id); decided {
			h.take(h.s.Decided(published))
		}
	}
	h.forgetIfGone()
	return st
}

// already answers for a content that is here, or that nobody wants; a vote that is told is remembered by the oracle.
func (l *life) already(id meta.ContentID, published bool) (replicate.Standing, bool) {
	st, ok := l.rep.Already(id, published)
	if ok && st.Status == replicate.StatusVoted {
		l.w.oracle.voted(l, id)
	}
	return st, ok
}

func (h *hold) announce(a announcement) replicate.Standing {
	if a.epoch < h.s.Epoch() && !a.published {
		return h.standing()
	}
	if h.s.Fixed() {
		h.s.Continue(a.epoch)
		return h.standing()
	}
	h.take(h.s.Announced(a.epoch, a.published, a.root))
	if refused := h.begin(a); refused != nil {
		h.s.End()
		return *refused
	}
	if h.s.Receiving() && h.blob.missing() == 0 {
		h.take(h.s.Whole())
	}
	st := h.standing()
	if st.Status == replicate.StatusReceiving {
		st.Status, st.Have = replicate.StatusReady, packBits(h.blob.have)
	}
	return st
}

func (h *hold) begin(a announcement) *replicate.Standing {
	if h.blob != nil && (h.s.Refused() || h.blob.state != content.Partial) {
		h.letGo(true)
	}
	if h.blob != nil {
		return nil
	}
	b, exists, err := h.l.store.receive(h.id, a.size, a.blocks)
	switch {
	case exists:
		h.s.Found()
	case err != nil:
		return &replicate.Standing{Content: h.id, Epoch: a.epoch, Status: replicate.StatusRefused, Reason: meta.OwedSlow}
	}
	h.blob = b
	return nil
}

func packBits(have []bool) []byte {
	out := make([]byte, (len(have)+7)/8)
	for i, h := range have {
		if h {
			out[i/8] |= 1 << (i % 8)
		}
	}
	return out
}

func (h *hold) standing() replicate.Standing {
	held := 0
	if h.blob != nil {
		held = len(h.blob.have) - h.blob.missing()
	}
	return h.s.Standing(h.id, held)
}

// take carries out what the session says.
func (h *hold) take(acts []replicate.MemberAct) {
	for _, a := range acts {
		switch a.Kind {
		case replicate.MemberEndTransfer:
			h.endTransfer()
		case replicate.MemberCheck:
			h.check(a.Root)
		case replicate.MemberCommit:
			h.l.rep.Commit(h.id)
			h.letGo(false)
		case replicate.MemberDrop:
			h.letGo(true)
			h.l.rep.Drop(h.id)
		case replicate.MemberDiscard:
			h.spoiled = true
		case replicate.MemberRelease:
			h.letGo(false)
		}
	}
	polls := h.polls
	h.polls = nil
	for _, p := range polls {
		p()
	}
}

// forgetIfGone ends the shell of a session that is over.
func (h *hold) forgetIfGone() {
	if h.s.Gone() && h.l.holds[h.id] == h {
		h.letGo(false)
		delete(h.l.holds, h.id)
		h.l.rep.Leave(h.id)
		h.take(nil)
	}
}

func (h *hold) letGo(discard bool) {
	h.endTransfer()
	if h.blob != nil {
		h.l.store.shut(h.blob, discard || h.spoiled)
	}
	h.blob, h.spoiled = nil, false
}

func (h *hold) endTransfer() {
	if h.ep != nil {
		h.ep.leave()
		h.ep = nil
	}
}

// check verifies the bytes, makes them durable and votes.
func (h *hold) check(root [32]byte) {
	l := h.l
	l.w.after(l.diskTime(), l, func() {
		if h.blob == nil {
			return
		}
		err := l.store.finish(h.blob, content.Hash(root))
		if err == nil {
			l.rep.Voted(h.id, root)
			l.point("vote")
		}
		h.take(h.s.Checked(err))
		h.forgetIfGone()
	})
}

// finish handles a poll: how far are you, or with a root, vote when you can.
func (l *life) finish(id meta.ContentID, epoch uint32, root *[32]byte, reply func(any)) {
	h := l.holds[id]
	if h == nil {
		st, ok := l.already(id, false)
		if !ok {
			st = replicate.Standing{Content: id, Status: replicate.StatusRefused, Reason: meta.OwedUnreachable}
		}
		st.Epoch = epoch
		reply(st)
		return
	}
	if root != nil {
		h.take(h.s.Root(epoch, *root))
		h.forgetIfGone()
	}
	over := false
	answer := func(late bool) {
		st := h.standing()
		waits := st.Epoch == epoch && (st.Status == replicate.StatusReceiving || st.Status == replicate.StatusChecking)
		if over || waits && !late {
			return
		}
		over = true
		if st.Status == replicate.StatusVoted {
			l.w.oracle.voted(l, id)
		}
		reply(st)
	}
	var wait func()
	wait = func() {
		answer(false)
		if !over {
			h.polls = append(h.polls, wait)
		}
	}
	wait()
	l.w.after(300*time.Millisecond, l, func() { answer(true) })
}

// stopped handles the root's word that nothing more comes.
func (l *life) stopped(from meta.NodeID, id meta.ContentID, epoch uint32, drop bool) {
	if h := l.holds[id]; h != nil && h.root == from {
		h.take(h.s.Stopped(epoch, drop))
		h.forgetIfGone()
	}
}

// sessionDecided gives the log's word to a live session.
func (l *life) sessionDecided(id meta.ContentID, published bool) bool {
	h := l.holds[id]
	if h == nil {
		return false
	}
	h.take(h.s.Decided(published))
	h.forgetIfGone()
	return true
}

// begun attaches a group that brings the missing blocks of an epoch; it reports whether the session takes it.
func (l *life) begun(id meta.ContentID, epoch uint32, g *group, rank int) bool {
	h := l.holds[id]
	if h == nil || h.s.Epoch() != epoch || !h.s.Receiving() || h.blob == nil {
		return false
	}
	if h.ep != nil {
		return true // said twice
	}
	h.ep = g.join(l, rank, h.blob)
	if h.ep == nil {
		return false
	}
	h.ep.onStored = func() {
		if h.blob != nil && h.blob.missing() == 0 {
			h.take(h.s.Whole())
			h.forgetIfGone()
		}
	}
	return true
}
