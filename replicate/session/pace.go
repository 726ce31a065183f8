package session

import (
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Relaying couples the members of a group: all go at the pace of the slowest, so their paces say nothing about who
// that is. A group that is slow for long is therefore taken apart, without losing a block:
//
//	together ──slow for 10 s, by what is known of others──> trial: each Suspect in a group of its own, for 3 s
//	   ^                                                       │ nobody stands out            │ one does
//	   └───────────────────────────────────────────────────────┘                              v
//	   ^                                                       apart: the Suspect alone, the others together, for 10 s
//	   └── it is as fast as the others: it is cleared ────────────┘                           │ below 1/8 of their median
//	                                                                                          v
//	                                                                                        out: owed, slow
//
// As long as nothing is known of others, a slow pace may just be that of the links: the group stays together for 20
// s, and longer if it is done soon at its pace. What is found out then is known of the groups that follow.
//
// The paces that decide were measured at the same time in groups that do not touch each other. A machine that is
// loaded slows all of them down, and nobody is left out for that.
type paceWatch struct {
	known    float64 // bytes a second that groups without a slow member reached last; 0 is unknown
	mode     paceMode
	suspects []meta.NodeID // on trial, or apart
	cleared  []meta.NodeID // were apart, and are as fast as the others
	trials   int
	looks    int       // at a group whose pace can't be compared with anything
	since    time.Time // begin of the present comparison; zero while not all groups flow
	together float64   // pace of the group before the trial

	othersDone  time.Time // when the Suspect that is apart was left alone
	bytesByThen int64     // that it had
}

type paceMode uint8

const (
	paceTogether paceMode = iota
	paceTrial
	paceApart
)

const (
	// trialsMax bounds the trials of one session.
	trialsMax = 2
	// trialGroupsMax bounds the groups of a trial; more suspects share groups, and those of the slowest are tried
	// again.
	trialGroupsMax = 15
	// unknownPace is what is fast enough, in bytes a second, as long as nothing is known to compare with.
	unknownPace = 8 << 20
	// unknownLooks is for how many comparisons a group stays together that is slower, as long as nothing is known.
	unknownLooks = 2
	// learnFor is how long a group has to flow for its pace to be remembered.
	learnFor = time.Second
)

// arrange puts the members that are to receive into groups.
func (s *Root) arrange() [][]meta.NodeID {
	var rest, suspects []meta.NodeID
	for _, m := range s.members {
		switch {
		case m.phase != MemberReady:
		case s.pace.mode != paceTogether && slices.Contains(s.pace.suspects, m.node):
			suspects = append(suspects, m.node)
		default:
			rest = append(rest, m.node)
		}
	}
	var parts [][]meta.NodeID
	if len(suspects) > 0 {
		parts = slices.Collect(slices.Chunk(suspects, (len(suspects)+trialGroupsMax-1)/trialGroupsMax))
	}
	if len(rest) > 0 {
		parts = append(parts, rest)
	}
	if len(parts) < 2 {
		s.pace.mode = paceTogether
	}
	return parts
}

// restartPace begins a comparison as soon as all groups flow.
func (s *Root) restartPace(now time.Time) {
	w := &s.pace
	w.since, w.othersDone = time.Time{}, time.Time{}
	if slices.ContainsFunc(s.parts, func(p sendPart) bool { return p.up && !p.flowing }) {
		return
	}
	w.since = now
	for _, m := range s.members {
		m.mark = m.bytes
	}
}

// watchPace compares what the members receive, when it has been measured for long enough.
func (s *Root) watchPace(now time.Time) []RootAction {
	w := &s.pace
	if s.phase != RootSending || w.since.IsZero() {
		return nil
	}
	took := now.Sub(w.since)
	switch {
	case w.mode == paceTogether && took >= s.lim.SlowFor:
		return s.judgeTogether(now)
	case w.mode == paceTrial && took >= s.lim.Trial:
		return s.judgeTrial(now)
	case w.mode == paceApart:
		s.noteOthersDone(now)
		if took >= s.lim.SlowFor || took >= s.lim.Trial && !w.othersDone.IsZero() {
			return s.judgeApart(now)
		}
	}
	return nil
}

// paceOf is what a member has received a second, in bytes, while there was something to receive.
func (s *Root) paceOf(m *record, now time.Time) float64 {
	end := now
	if m.done.After(s.pace.since) {
		end = m.done
	}
	return units.PerSecond(m.bytes-m.mark, end.Sub(s.pace.since))
}

// paces are those of the members of the present groups that a filter takes and that were not left out.
func (s *Root) paces(now time.Time, take func(meta.NodeID) bool) (list []float64) {
	for _, p := range s.parts {
		for _, n := range p.members {
			if m := s.members.find(n); m.phase != MemberOut && take(n) && !(!m.done.IsZero() && !m.done.After(s.pace.since)) {
				list = append(list, s.paceOf(m, now))
			}
		}
	}
	slices.Sort(list)
	return list
}

// median of a sorted list, the lower one of two; 0 of none.
func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	return list[(len(list)-1)/2]
}

func (s *Root) judgeTogether(now time.Time) []RootAction {
	w := &s.pace
	w.together = median(s.paces(now, func(meta.NodeID) bool { return true }))
	enough := w.known > 0 && w.together*s.lim.SlowPart >= w.known || w.known == 0 && w.together >= unknownPace
	if enough {
		w.known = max(w.known, w.together)
	}
	if enough || s.mayBeItsLinks() || w.trials >= trialsMax || s.members.count(MemberReady) < 2 {
		s.restartPace(now)
		return nil
	}
	w.trials++
	var suspects []meta.NodeID
	for _, m := range s.members {
		if m.phase == MemberReady && !slices.Contains(w.cleared, m.node) {
			suspects = append(suspects, m.node)
		}
	}
	return s.regroup(now, paceTrial, suspects)
}

// mayBeItsLinks reports whether a slow group stays together for now because nothing is known of others: it was not
// looked at for long, or it is done soon at its pace.
func (s *Root) mayBeItsLinks() bool {
	w := &s.pace
	if w.known > 0 {
		return false
	}
	w.looks++
	return w.looks < unknownLooks || s.restOf(func(meta.NodeID) bool { return true }, w.together) < s.lim.SlowFor
}

// restOf is how long the members of the present groups that a filter takes still need for their blocks, at most, at a
// pace.
func (s *Root) restOf(take func(meta.NodeID) bool, pace float64) time.Duration {
	most := int64(0)
	for _, p := range s.parts {
		for _, n := range p.members {
			if m := s.members.find(n); p.up && m.phase == MemberReady && take(n) {
				most = max(most, p.bytes-m.bytes)
			}
		}
	}
	const forEver = 1000 * time.Hour
	if pace <= 0 {
		return forEver
	}
	return time.Duration(min(float64(most)/pace*float64(time.Second), float64(forEver)))
}

// judgeTrial looks whose group was the slowest. Those of a trial share the root's link, so no more can be said than
// who it is.
func (s *Root) judgeTrial(now time.Time) []RootAction {
	var slowest []meta.NodeID
	least := 0.0
	for _, p := range s.parts {
		Suspect := slices.Contains(s.pace.suspects, p.members[0])
		if !Suspect || !p.up || !s.members.anyReady(&p) {
			continue
		}
		pace := s.paces(now, func(n meta.NodeID) bool { return slices.Contains(p.members, n) })[0]
		if slowest == nil || pace < least {
			slowest, least = p.members, pace
		}
	}
	others := median(s.paces(now, func(n meta.NodeID) bool { return !slices.Contains(slowest, n) }))
	switch {
	case slowest == nil || least*2 >= others:
		s.pace.known = s.pace.together // nobody stands out: this is how fast it goes
		return s.regroup(now, paceTogether, nil)
	case len(slowest) > 1:
		return s.regroup(now, paceTrial, slowest)
	}
	return s.regroup(now, paceApart, slowest)
}

// noteOthersDone notes when the others have everything: from then on nothing can be compared.
func (s *Root) noteOthersDone(now time.Time) {
	w := &s.pace
	Suspect := s.members.find(w.suspects[0])
	for _, m := range s.members {
		if m != Suspect && m.phase == MemberReady {
			return
		}
	}
	if w.othersDone.IsZero() {
		w.othersDone, w.bytesByThen = now, Suspect.bytes
	}
}

// judgeApart leaves the Suspect out if it is a small part as fast as the others, both while they received and after.
func (s *Root) judgeApart(now time.Time) []RootAction {
	w := &s.pace
	m := s.members.find(w.suspects[0])
	others := median(s.paces(now, func(n meta.NodeID) bool { return n != m.node }))
	pace, overlap := s.paceOf(m, now), now.Sub(w.since)
	if !w.othersDone.IsZero() {
		overlap = w.othersDone.Sub(w.since)
	}
	spare := s.members.count(MemberVoted)+s.members.live()-1 >= s.need
	switch {
	case m.phase != MemberReady:
		return nil // it is done
	case overlap < s.lim.Trial: // the others were done before their pace could be measured
		if rest := s.restOf(func(n meta.NodeID) bool { return n == m.node }, pace); spare && s.muchLonger(now.Sub(w.since)+rest, overlap) {
			text := fmt.Sprintf("%s a second, %v to go when the others were done", units.Bytes(int64(pace)), rest.Round(time.Second))
			return s.out(now, nil, []Suspect{{m.node, meta.OwedSlow}}, text)
		}
		return nil
	case s.isSlow(m, pace, others, overlap) && spare:
		w.known = others
		text := fmt.Sprintf("%s a second while the others had %s, over %v", units.Bytes(int64(pace)), units.Bytes(int64(others)), now.Sub(w.since).Round(time.Second))
		return s.out(now, nil, []Suspect{{m.node, meta.OwedSlow}}, text)
	case !w.othersDone.IsZero():
		return nil
	case pace*2 >= others:
		w.cleared = append(w.cleared, m.node)
		return s.regroup(now, paceTogether, nil)
	}
	s.restartPace(now)
	return nil
}

// isSlow reports whether a Suspect is slow beside the others, and whether they go faster without it: a share of the
// root's link that is small by chance speeds nobody up.
func (s *Root) isSlow(m *record, pace, others float64, overlap time.Duration) bool {
	w := &s.pace
	if !w.othersDone.IsZero() {
		pace = max(pace, units.PerSecond(w.bytesByThen-m.mark, overlap))
	}
	return pace*s.lim.SlowPart < others && others*2 >= s.lim.SlowPart*w.together
}

// muchLonger reports whether a member takes much longer than the others, and than a moment.
func (s *Root) muchLonger(whole, others time.Duration) bool {
	return whole > time.Duration(s.lim.SlowPart*float64(max(others, s.lim.Trial/3)))
}

// learnPace remembers how fast a group was that has ended well and that was not slow.
func (s *Root) learnPace(now time.Time) {
	w := &s.pace
	if w.mode == paceTogether && !w.since.IsZero() && now.Sub(w.since) >= learnFor {
		w.known = max(w.known, median(s.paces(now, func(meta.NodeID) bool { return true })))
	}
}

// regroup goes on in other groups.
func (s *Root) regroup(now time.Time, mode paceMode, suspects []meta.NodeID) []RootAction {
	s.pace.mode, s.pace.suspects, s.pace.since = mode, suspects, time.Time{}
	acts := s.endParts(nil, nil)
	s.epoch++
	return s.beginEpoch(now, acts)
}
