package replicate

import (
	"errors"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

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
	form, _, err := chooseForm(s.cfg.Names, append([]meta.NodeID{s.cfg.Self().Node}, targets...), stream, c.Policy)
	if err != nil {
		return nil, err
	}
	groupBlock := form.BlockBytes
	src := &storedSource{reader: reader, layout: layout, groupBlock: groupBlock}
	limits := s.cfg.Tuning.limits(groupBlock)
	sess := session.NewRoot(session.RootConfig{
		Members: targets, Blocks: int(layout.Blocks()), Limits: limits, Pace: s.rootGroups.paceOf(form),
		Published: true, Hash: reader.Root(),
	})
	run := &rootRun{
		cfg: s.cfg, rootGroups: s.rootGroups, after: &s.wg, id: sh.id, ino: c.Ino, policy: c.Policy,
		capped: form.SendRate > 0, layout: layout, shape: shape,
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
// then gets the content again, and does not wait for them.
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
