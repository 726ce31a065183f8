package slow

import (
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/meta/id"
)

// Judge finds the member that a session's group is slow for. Relaying couples the members of a group: all go at the
// pace of the slowest, so their paces say nothing about who that is. A group that is slow for long is therefore taken
// apart, without losing a block:
//
//	together ──slow for 10 s, by what is known of others──> trial: each suspect in a group of its own, for 3 s
//	   ^                                                       │ nobody stands out            │ one does
//	   └───────────────────────────────────────────────────────┘                              v
//	   ^                                                       apart: the suspect alone, the others together, for 10 s
//	   └── it is as fast as the others: it is cleared ────────────┘                           │ below 1/8 of their median
//	                                                                                          v
//	                                                                                        out: owed, slow
//
// As long as nothing is known of others, a slow pace may just be that of the links: the group stays together for 20
// s, and longer if it is done soon at its pace. What is found out then is known of the groups that follow.
//
// The paces that decide were measured at the same time in groups that do not touch each other. A machine that is
// loaded slows all of them down, and nobody is left out for that.
//
// The caller shows it the groups of the present epoch with each call. Its methods are called by one goroutine.
type Judge struct {
	lim      Limits
	known    float64 // bytes a second that groups without a slow member reached last; 0 is unknown
	mode     mode
	suspects []id.Node // on trial, or apart
	cleared  []id.Node // were apart, and are as fast as the others
	trials   int
	looks    int                // at a group whose pace can't be compared with anything
	since    time.Time          // beginning of the present comparison; zero while not all groups flow
	marks    map[id.Node]Member // the members at its beginning
	together float64            // pace of the group before the trial

	othersDone  time.Time // when the suspect that is apart was left alone
	bytesByThen int64     // that it had by then
}

// Limits are the bounds of a judge. All are positive.
type Limits struct {
	Over  time.Duration // for how long paces are compared
	Trial time.Duration // how long each member is served alone, to find the slow one
	Part  float64       // a member below the others' median pace divided by this is slow
	Step  int64         // bytes in which progress is reported: a block of the groups; 0 is any
}

// Group is one group of the present epoch.
type Group struct {
	Members []Member
	Bytes   int64     // to be sent
	Up      bool      // it was asked for and has not ended
	Flowing bool      // it is set up: a member that makes no progress now may be to blame
	Began   time.Time // since when
}

// Member is what is known of a member of a group.
type Member struct {
	Node  id.Node
	Ready bool      // it still receives
	Out   bool      // it was left out
	Bytes int64     // of what the group sends that it has
	Steps int       // in which they came, as far as they were seen one by one
	Moved time.Time // the last step
	Done  time.Time // when its group brought everything, in this epoch; zero before

	// What the root's own sends to it have waited for in this epoch: blocks on their way, or room there with none on
	// its way.
	Sending, Waiting time.Duration
}

// Verdict says what is to be done. Its zero value is nothing.
type Verdict struct {
	Regroup bool    // go on in other groups, as Arrange says
	Out     bool    // leave a member out
	Node    id.Node // the member
	Text    string  // the evidence
}

type mode uint8

const (
	together mode = iota
	trial
	apart
)

const (
	// trialsMax bounds the trials of one session.
	trialsMax = 2
	// trialGroupsMax bounds the groups of a trial; more suspects share groups, and the suspects of the slowest group
	// are tried again.
	trialGroupsMax = 15
	// unknownPace is what is fast enough, in bytes a second, as long as nothing is known to compare with.
	unknownPace = 8 << 20
	// unknownLooks is for how many comparisons a slower group stays together, as long as nothing is known.
	unknownLooks = 2
	// learnFor is how long a group has to flow for its pace to be remembered.
	learnFor = time.Second
	// stepsLeast is how many steps must have been made in a comparison of several groups for it to say something: one
	// step reported too many or too few must not look like a half.
	stepsLeast = 8
)

// NewJudge makes the judge of a session. known is what groups without a slow member reached before, in bytes a
// second; 0 is unknown.
func NewJudge(lim Limits, known float64) *Judge { return &Judge{lim: lim, known: known} }

// Known is what groups without a slow member have reached last, in bytes a second; 0 is unknown.
func (j *Judge) Known() float64 { return j.known }

// Arrange puts the members that are to receive into groups, in their order, at the beginning of an epoch.
func (j *Judge) Arrange(ready []id.Node) [][]id.Node {
	j.since = time.Time{}
	var rest, suspects []id.Node
	for _, n := range ready {
		if j.mode != together && slices.Contains(j.suspects, n) {
			suspects = append(suspects, n)
		} else {
			rest = append(rest, n)
		}
	}
	var parts [][]id.Node
	if len(suspects) > 0 {
		parts = slices.Collect(slices.Chunk(suspects, (len(suspects)+trialGroupsMax-1)/trialGroupsMax))
	}
	if len(rest) > 0 {
		parts = append(parts, rest)
	}
	if len(parts) < 2 {
		j.mode = together
	}
	return parts
}

// Begin begins a comparison as soon as all groups flow.
func (j *Judge) Begin(now time.Time, groups []Group) {
	j.since, j.othersDone = time.Time{}, time.Time{}
	if slices.ContainsFunc(groups, func(g Group) bool { return g.Up && !g.Flowing }) {
		return
	}
	j.since = now
	j.marks = make(map[id.Node]Member)
	for m := range members(groups, everybody) {
		j.marks[m.Node] = *m
	}
}

// Unwatched says that the caller did not run for a while. What it has not watched counts for nothing.
func (j *Judge) Unwatched(d time.Duration) {
	if !j.since.IsZero() {
		j.since = j.since.Add(d)
	}
	if !j.othersDone.IsZero() {
		j.othersDone = j.othersDone.Add(d)
	}
}

// Watch compares what the members receive, when it has been measured for long enough, in time and in steps. spare says
// that there are votes enough without one more member.
func (j *Judge) Watch(now time.Time, groups []Group, spare bool) Verdict {
	if j.since.IsZero() {
		return Verdict{}
	}
	took := now.Sub(j.since)
	switch {
	case j.mode == together && took >= j.lim.Over:
		return j.judgeTogether(now, groups)
	case j.mode == trial && took >= j.lim.Trial && j.enough(groups, everybody):
		return j.judgeTrial(now, groups)
	case j.mode == apart:
		j.noteOthersDone(now, groups)
		if took >= j.lim.Over || took >= j.lim.Trial && !j.othersDone.IsZero() {
			return j.judgeApart(now, groups, spare)
		}
	}
	return Verdict{}
}

// Ended remembers the pace of a group that has ended well and was not slow.
func (j *Judge) Ended(now time.Time, groups []Group) {
	if j.mode == together && !j.since.IsZero() && now.Sub(j.since) >= learnFor {
		j.known = max(j.known, Median(j.paces(now, groups, everybody)))
	}
}

// regroup goes on in other groups.
func (j *Judge) regroup(to mode, suspects []id.Node) Verdict {
	j.mode, j.suspects, j.since = to, suspects, time.Time{}
	return Verdict{Regroup: true}
}

func (j *Judge) judgeTogether(now time.Time, groups []Group) Verdict {
	j.together = Median(j.paces(now, groups, everybody)) + j.doubt(now)
	enough := j.known > 0 && j.together*j.lim.Part >= j.known || j.known == 0 && j.together >= unknownPace
	if enough {
		j.known = max(j.known, j.together)
	}
	ready := slices.Collect(members(groups, func(m *Member) bool { return m.Ready }))
	if enough || j.mayBeItsLinks(groups) || j.trials >= trialsMax || len(ready) < 2 {
		j.Begin(now, groups)
		return Verdict{}
	}
	j.trials++
	var suspects []id.Node
	for _, m := range ready {
		if !slices.Contains(j.cleared, m.Node) {
			suspects = append(suspects, m.Node)
		}
	}
	return j.regroup(trial, suspects)
}

// mayBeItsLinks reports whether a slow group stays together for now because nothing is known of others: it was not
// looked at for long, or it will be done soon at its pace.
func (j *Judge) mayBeItsLinks(groups []Group) bool {
	if j.known > 0 {
		return false
	}
	j.looks++
	return j.looks < unknownLooks || rest(groups, everybody, j.together) < j.lim.Over
}

// judgeTrial finds the member whose group was the slowest. The groups of a trial share the root's link, so no more can
// be said than which member is the slowest.
func (j *Judge) judgeTrial(now time.Time, groups []Group) Verdict {
	var slowest []id.Node
	least := 0.0
	for i := range groups {
		g := groups[i : i+1]
		suspect := slices.Contains(j.suspects, g[0].Members[0].Node)
		if !suspect || !g[0].Up || !slices.ContainsFunc(g[0].Members, func(m Member) bool { return m.Ready }) {
			continue
		}
		if pace := j.paces(now, g, everybody)[0]; slowest == nil || pace < least {
			slowest, least = nil, pace
			for m := range members(g, everybody) {
				slowest = append(slowest, m.Node)
			}
		}
	}
	others := Median(j.paces(now, groups, func(m *Member) bool { return !slices.Contains(slowest, m.Node) }))
	switch {
	case slowest == nil || (least+j.doubt(now))*2 >= others:
		j.known = j.together // nobody stands out: this is how fast it goes
		return j.regroup(together, nil)
	case len(slowest) > 1:
		return j.regroup(trial, slowest)
	}
	return j.regroup(apart, slowest)
}

// suspect is the member that is apart, and others all but it.
func (j *Judge) suspect(m *Member) bool { return m.Node == j.suspects[0] }
func (j *Judge) others(m *Member) bool  { return m.Node != j.suspects[0] }

// noteOthersDone notes when the others have everything: from then on nothing can be compared.
func (j *Judge) noteOthersDone(now time.Time, groups []Group) {
	for m := range members(groups, j.others) {
		if m.Ready {
			return
		}
	}
	if j.othersDone.IsZero() {
		for m := range members(groups, j.suspect) {
			j.othersDone, j.bytesByThen = now, m.Bytes
		}
	}
}

// judgeApart leaves the suspect out if it is a small part as fast as the others, both while they received and after.
func (j *Judge) judgeApart(now time.Time, groups []Group, spare bool) Verdict {
	var m *Member
	for m = range members(groups, j.suspect) {
	}
	if m == nil || !m.Ready {
		return Verdict{} // it is done
	}
	others := Median(j.paces(now, groups, j.others))
	pace, overlap := j.pace(now, m), now.Sub(j.since)
	if !j.othersDone.IsZero() {
		overlap = j.othersDone.Sub(j.since)
	}
	switch {
	case overlap < j.lim.Trial: // the others were done before their pace could be measured
		rest, likeThem := rest(groups, j.suspect, pace), others > 0 && pace*j.lim.Part >= others // it had more to get
		if spare && !likeThem && j.muchLonger(now.Sub(j.since)+rest, overlap) {
			return j.out(m, fmt.Sprintf("%s a second, %v to go when the others were done", units.Bytes(int64(pace)),
				rest.Round(time.Second)))
		}
		return Verdict{}
	case j.isSlow(m, pace, others, overlap) && spare:
		j.known = others
		return j.out(m, fmt.Sprintf("%s a second while the others had %s, over %v", units.Bytes(int64(pace)),
			units.Bytes(int64(others)), now.Sub(j.since).Round(time.Second)))
	case !j.othersDone.IsZero():
		return Verdict{}
	case !j.enough(groups, j.others) || pace*j.lim.Part < others && (pace+j.doubt(now))*j.lim.Part >= others:
		return Verdict{} // more steps will show
	case pace*2 >= others:
		j.cleared = append(j.cleared, m.Node)
		return j.regroup(together, nil)
	}
	j.Begin(now, groups)
	return Verdict{}
}

// out leaves a suspect out. Apart it has no other source than the root, so what the root waited for is the cause.
func (j *Judge) out(m *Member, text string) Verdict {
	sending, waiting := m.Sending-j.marks[m.Node].Sending, m.Waiting-j.marks[m.Node].Waiting
	switch {
	case waiting > sending:
		text += ": it makes room late, its disk or processor is slow"
	case sending > 0:
		text += ": its link is slow"
	}
	return Verdict{Out: true, Node: m.Node, Text: text}
}

// isSlow reports whether a suspect is slow beside the others, and whether they go faster without it: a share of the
// root's link that is small by chance speeds nobody up.
func (j *Judge) isSlow(m *Member, pace, others float64, overlap time.Duration) bool {
	if !j.othersDone.IsZero() {
		pace = max(pace, units.PerSecond(j.bytesByThen-j.marks[m.Node].Bytes, overlap))
	}
	return (pace+units.PerSecond(j.lim.Step, overlap))*j.lim.Part < others && others*2 >= j.lim.Part*j.together
}

// muchLonger reports whether a member takes much longer than the others, and than a moment.
func (j *Judge) muchLonger(whole, others time.Duration) bool {
	return whole > time.Duration(j.lim.Part*float64(max(others, j.lim.Trial/3)))
}
