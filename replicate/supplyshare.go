package replicate

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/meta"
)

// isSent reports whether a multicast of a content is under way.
func (s *supplier) isSent(id meta.ContentID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flows[id] != nil
}

// pass leaves a job to another holder, if there is one that has no more to push, and the content is not on its way to
// the same nodes: two sources would end each other's groups.
func (s *supplier) pass(j *supply) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.flows[j.id]
	if j.begun || !j.passes || sh == nil ||
		slices.ContainsFunc(j.targets, func(n meta.NodeID) bool { return slices.Contains(sh.targets, n) }) {
		return false
	}
	j.begun, j.passed = true, true
	close(j.done)
	return true
}

// join takes the targets of a job into the multicast of its content that is under way. That one begins again for all
// of them, and goes at the pace of the slowest, so they must answer.
func (s *supplier) join(j *supply) bool {
	s.mu.Lock()
	sh := s.flows[j.id]
	if j.begun || sh == nil || sh.run == nil {
		s.mu.Unlock()
		return false
	}
	j.begun = true // so that no other multicast shares it meanwhile
	run := sh.run
	more := slices.DeleteFunc(slices.Clone(j.targets), func(n meta.NodeID) bool { return slices.Contains(sh.targets, n) })
	s.mu.Unlock()
	taken := s.answer(more) && run.join(j.targets)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !taken || sh.over { // over with them already: what they have, they take in no second time
		j.begun = false
		return false
	}
	s.cfg.Logger.Debug("catch-up: joined", "content", j.id, "nodes", more)
	sh.jobs = append(sh.jobs, j)
	sh.targets = slices.Compact(slices.Sorted(slices.Values(slices.Concat(sh.targets, more))))
	return true
}

// answer reports whether all nodes answer a call soon. A node that has just come back may be known as up before it can
// be reached, so a call that fails is made again.
func (s *supplier) answer(nodes []meta.NodeID) bool {
	ctx, cancel := context.WithTimeout(s.ctx, answerWait)
	defer cancel()
	var mute atomic.Bool
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.cfg.Peers.Call(ctx, n, KindPut, encodePut(nil)); err == nil {
					return
				}
				pause(ctx, s.cfg.Clock, answerAgain)
			}
			mute.Store(true)
		})
	}
	wg.Wait()
	return !mute.Load()
}

// share adds to a shipment what other orders want of the same content and have not begun. All its targets then get it
// at the pace of the slowest, so they must have taken what was sent to them last: a target that does not answer holds
// up no other.
func (s *supplier) share(sh *shipment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	takes := func(j *supply) bool { set := s.sets[j.set]; return set != nil && set.takes }
	if !takes(sh.jobs[0]) {
		return
	}
	for _, j := range s.jobs[sh.id] {
		if !j.begun && takes(j) && j.view <= s.view.Load() {
			j.begun = true
			sh.jobs = append(sh.jobs, j)
			sh.targets = slices.Compact(slices.Sorted(slices.Values(slices.Concat(sh.targets, j.targets))))
		}
	}
}
