package share

import "time"

// Priority is the class of a group among the groups that share a link; see docs/decisions/018.
type Priority int8

// The classes. While groups of several compete for a member's outgoing link, a lower class gets a seventeenth of what
// the next higher one gets; what a class does not ask for goes to the others.
const (
	PriorityLow    Priority = -1
	PriorityNormal Priority = 0
	PriorityHigh   Priority = 1
)

// Valid reports whether there is such a class.
func (p Priority) Valid() bool { return p >= PriorityLow && p <= PriorityHigh }

// Class is the class's number among the shares of an arbiter, from 0 on.
func (p Priority) Class() int { return int(p - PriorityLow) }

// TickInterval is how often groups with messages under way get the time.
const TickInterval = 50 * time.Millisecond

// Unit is what a byte costs a member that sends each block once.
const Unit = 1024

// Constants of the arbiter.
const (
	classes = 3
	// sends, as large as the smaller one's largest, by which a group may lead another
	leadSends    = 4
	arrearsSends = 4 // largest sends by which a group may lag that was away for a moment
	pauseTicks   = 2 // ticks after which a group that was away starts without arrears
	// part of the pace that a group under way alone must reach for others to wait for it
	worthPart    = 3
	sampleGrains = 4                      // sends of each that a sample takes
	sampleTime   = 40 * time.Millisecond  // of waiting, before the groups that are waited for are judged
	freeTime     = 10 * time.Millisecond  // of nobody waiting, before there is something to compare with
	forgetAfter  = 400 * time.Millisecond // after so much the pace while nobody waits counts half
	stoppedAfter = 100 * time.Millisecond // least time without a completion that makes a neighbour a stopped one
	unknownAfter = 250 * time.Millisecond // the same while no pace is known
	retryAfter   = 400 * time.Millisecond // how long nobody waits for a group slow elsewhere, doubled each time
	retryMax     = 16 * retryAfter        // the most of it, unless 16 times as long as others have waited is more
	guessAfter   = 100 * time.Millisecond // of waiting while no pace is known, before others go on to see what it is
)

// classCost is what a byte costs on the scale of the classes' tags, by class from low to high.
var classCost = [classes]int64{256, 16, 1}

// Arbiter says which of several groups may send now: start-time fair queueing by bytes, in classes. It is a pure value:
// its callers hold a lock, pass it the time, and wake the groups that Next gives them. Its zero value has no groups.
type Arbiter struct {
	all      []*Share
	tags     [classes]int64
	busy     int // shares with a send outstanding or a wish
	flying   int // shares with a send outstanding
	waiting  int // shares with a wish
	starving int // shares with a wish and nothing outstanding
	ticks    uint64
	ticked   time.Time // last of them
	woken    []*Share
	at       time.Time // until when the meters count
	free     meter     // all completions while nobody starves
	held     meter     // all completions while somebody starves and somebody has something outstanding
}

// Share is one group's part. With a Class, and a Wake if its owner uses that, it is ready to be added.
type Share struct {
	Class   int    // Priority.Class
	Wake    func() // for the caller of Next, which holds no lock then; the arbiter does not call it
	cost    int64  // what a byte moves the tag on, by Unit, in the last Ask
	tag     int64  // bytes posted, by their cost, lifted when it was away
	largest int    // largest send
	flight  int    // sends outstanding
	bytes   int64  // of them
	wants   int    // bytes of the send that it was refused; 0 if none
	isWoken bool
	rested  uint64 // ticks when it was last busy

	lap     time.Duration // with sends outstanding since it last completed one
	lapHeld time.Duration // of it, while somebody starved
	heldFor time.Duration // of the arbiter's held: with sends outstanding
	doubted bool          // one sample spoke against it
	slow    bool          // elsewhere: nobody waits for it
	moved   bool          // completed something since it was found slow
	until   time.Time
	backoff time.Duration
}

// meter counts bytes and the time that they took.
type meter struct {
	bytes int64
	time  time.Duration
}

// scaled is what so many bytes are on the scale of tags.
func (s *Share) scaled(bytes int) int64 {
	return (int64(bytes)*s.cost + Unit - 1) / Unit
}

// lead returns how far the group may be ahead of another. If the other's blocks are as large, that is several of them,
// as neither posts them evenly. If the other has small blocks, it is one of the group's own.
func (s *Share) lead(o *Share) int64 {
	own := s.scaled(s.largest)
	return max(own, leadSends*min(own, o.scaled(o.largest)))
}

func (s *Share) isBusy() bool { return s.flight > 0 || s.wants > 0 }

// competes reports whether others wait for it.
func (s *Share) competes() bool { return s.isBusy() && !s.slow }

// Add makes a group one of those that take turns. Leave takes it out.
func (a *Arbiter) Add(s *Share) {
	s.rested = a.ticks
	s.tag = a.lowest(s, s.tag)
	a.all = append(a.all, s)
}

// contended reports whether anybody but s is busy.
func (a *Arbiter) contended(s *Share) bool {
	return a.busy > 1 || a.busy == 1 && !s.isBusy()
}

// Ask reports whether the group may post a send of so many bytes, and books it, each byte at a cost (Costs, in Units).
// If not, Next returns the group when it is worth asking again.
func (a *Arbiter) Ask(s *Share, bytes int, cost int64, now time.Time) bool {
	a.progress(now)
	grown := bytes > s.largest
	s.cost = cost
	s.largest = max(s.largest, bytes)
	if a.contended(s) {
		lifted := a.lift(s)
		if !a.eligible(s) {
			a.set(s, s.flight, bytes)
			if lifted || grown {
				a.look() // others may be as far ahead now
			}
			return false
		}
	}
	a.set(s, s.flight+1, 0)
	a.charge(s, bytes)
	a.look()
	return true
}

// Done says that a send of so many bytes, which Ask has booked, has completed.
func (a *Arbiter) Done(s *Share, bytes int, now time.Time) {
	a.progress(now)
	a.count(s, int64(bytes))
	s.moved = true
	s.bytes -= int64(bytes)
	a.judge(now)
	a.set(s, s.flight-1, s.wants)
	a.look()
}

// Rest says that a group which Ask has refused has no send ready any more.
func (a *Arbiter) Rest(s *Share, now time.Time) {
	a.progress(now)
	a.set(s, s.flight, 0)
	a.look()
}

// Leave takes a group out, with all that it has outstanding.
func (a *Arbiter) Leave(s *Share) {
	a.set(s, 0, 0)
	s.bytes = 0
	for i := range a.all {
		if a.all[i] == s {
			last := len(a.all) - 1
			a.all[i], a.all[last] = a.all[last], nil
			a.all = a.all[:last]
			break
		}
	}
	a.look()
}

// set changes what a group has outstanding and wishes, and the counts.
func (a *Arbiter) set(s *Share, flight, wants int) {
	a.tally(s, -1)
	wasBusy := s.isBusy()
	s.flight, s.wants = flight, wants
	a.tally(s, 1)
	if wasBusy && !s.isBusy() {
		s.rested = a.ticks
	}
	if s.flight == 0 {
		s.lap, s.lapHeld = 0, 0
	}
}

func (a *Arbiter) tally(s *Share, by int) {
	if s.isBusy() {
		a.busy += by
	}
	if s.flight > 0 {
		a.flying += by
	}
	if s.wants > 0 {
		a.waiting += by
		if s.flight == 0 {
			a.starving += by
		}
	}
}

func (a *Arbiter) charge(s *Share, bytes int) {
	s.bytes += int64(bytes)
	s.tag += s.scaled(bytes)
	a.tags[s.Class] += int64(bytes) * classCost[s.Class]
}

// lowest returns the lowest tag of the groups of the class that others wait for, without s, or else own.
func (a *Arbiter) lowest(s *Share, own int64) int64 {
	found := false
	for _, o := range a.all {
		if o != s && o.Class == s.Class && o.competes() && (!found || o.tag < own) {
			own, found = o.tag, true
		}
	}
	return own
}

// lift raises tags that lag behind by more than a moment's absence: what was not asked for is not given later. It
// reports whether there were any such tags.
func (a *Arbiter) lift(s *Share) bool {
	tag, ofClass := s.tag, a.tags[s.Class]
	arrears := int64(0)
	if !s.slow && (s.isBusy() || a.ticks-s.rested <= pauseTicks) {
		arrears = arrearsSends * a.largestOf(s)
	}
	s.tag = max(s.tag, a.lowest(s, s.tag)-arrears)
	for _, o := range a.all {
		if o.Class != s.Class && o.competes() {
			a.tags[s.Class] = max(a.tags[s.Class], a.tags[o.Class]-int64(o.largest)*classCost[o.Class])
		}
	}
	return s.tag != tag || a.tags[s.Class] != ofClass
}

func (a *Arbiter) largestOf(s *Share) int64 {
	most := s.scaled(s.largest)
	for _, o := range a.all {
		if o.Class == s.Class && o.competes() {
			most = max(most, o.scaled(o.largest))
		}
	}
	return most
}

// eligible reports whether it is the turn of a group: it is at most its lead ahead of each other of its class, and
// its class at most one send of each lower class, and not ahead of a higher one.
func (a *Arbiter) eligible(s *Share) bool {
	for _, o := range a.all {
		if o == s || !o.competes() {
			continue
		}
		if o.Class == s.Class {
			if s.tag > o.tag+s.lead(o) {
				return false
			}
			continue
		}
		slack := int64(0)
		if s.Class > o.Class {
			slack = int64(s.largest) * classCost[s.Class]
		}
		if a.tags[s.Class] > a.tags[o.Class]+slack {
			return false
		}
	}
	return true
}

// look notes whose turn it has become.
func (a *Arbiter) look() {
	if a.waiting == 0 {
		return
	}
	for _, s := range a.all {
		if s.wants > 0 && !s.isWoken && a.eligible(s) {
			s.isWoken = true
			a.woken = append(a.woken, s)
		}
	}
}

// HasWoken reports whether the turn of a group has come since Next returned nil: call it.
func (a *Arbiter) HasWoken() bool { return len(a.woken) > 0 }

// Next returns a group whose turn has come, once, or nil if there is none any more.
func (a *Arbiter) Next() *Share {
	for len(a.woken) > 0 {
		s := a.woken[0]
		a.woken = a.woken[:copy(a.woken, a.woken[1:])]
		s.isWoken = false
		if s.wants > 0 && a.eligible(s) {
			return s
		}
	}
	return nil
}
