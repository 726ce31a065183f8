package core

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Member is the state machine of one member of one group. It has no goroutine, clock, socket or memory of its own: the
// shell tells it what happened by calling its methods, under one lock, and afterwards carries out the actions that it
// left (TakeActions), in order. No method blocks, and none keeps a slice of its caller's unless it says so.
//
// Buffers are numbered slots; see slots.go. Each neighbour is a lane; see lanes.go. Blocks move by flow.go. A
// block is named by its position among the blocks of its message that move.
//
// Why finite pools cannot deadlock. Order all transfers of the group by message, then step. Let T be the
// first that is not complete, from member s to member t. All earlier ones are.
//
//   - t posts receives in this order, so all those it has posted before T's are used up. At most pinMax slots are
//     pinned, the rest hold blocks whose stores and sends end by themselves (a send is only begun with
//     credit), so a slot becomes idle, and with pinMax < slots it goes to T. t tells s, by a
//     control message, which has a window of its own.
//   - s does its sends in this order, so T is next. It has the block: received in an earlier transfer. If the block is
//     cached it gets pinned. If not, it was stored before its slot was taken away, so it can be read back, and
//     at most slots-pinMax slots are posted, and none is pinned since T is next, so a slot becomes idle.
//
// So T completes, whatever the delays.
type Member struct {
	rank    int
	plain   bool // messages are not announced: the first block that comes carries the size
	plan    *schedule.Plan
	costs   share.Costs
	block   int // block size in bytes
	epoch   uint32
	limits  Limits
	lanes   Lanes
	parent  int // lane to the parent in the tree of reports, -1 at the root
	reports reports

	messages Messages

	slots  slots
	posted int // slots in state posted
	steps  steps
	queue  sendQueue
	small  SmallMessages
	flight int // sends posted and not completed, whose blocks are here

	failure *Failure
	closing bool   // no message behind last comes any more, close when all have ended
	last    uint64 // with closing: the group's last message
	closed  bool
	waiting bool  // the application waits for the end
	settled bool  // all lanes know of the failure or the closing
	lost    []int // neighbours whose queue pairs broke
	lostAt  time.Time
	lostWhy error
	now     time.Time
	turn    turn
	pace    pace
	quiet   time.Time // when the last message ended, or the group was connected

	acts []Action
}

// Limits bound what a member does at once.
type Limits struct {
	Slots    int           // block buffers, at least 2
	Posted   int           // receives for blocks posted at once, at most Slots-Pins
	Pins     int           // slots kept for sends that are prepared, less than Slots
	Sends    int           // sends of blocks outstanding at once
	Silence  time.Duration // how long a neighbour that is needed may say nothing
	Interval time.Duration // between reports of progress
	Grace    time.Duration // from a broken queue pair to the failure of the group

	Rate         uint64 // bytes a second that may be sent, 0 for no cap
	SmallBytes   int    // bound of a small message in bytes, 0 for none
	SmallWindow  int    // small messages under way
	SmallInOrder bool   // a small message is given to the application only when all before it have ended here
}

// check makes limits that fulfil the conditions of the argument above.
func (l Limits) check(root bool) Limits {
	l.Slots = max(l.Slots, 2)
	if root {
		l.Pins, l.Posted = l.Slots, 0
	} else {
		l.Pins = min(max(l.Pins, 1), l.Slots-1)
		l.Posted = min(max(l.Posted, 1), l.Slots-l.Pins)
	}
	l.Sends = max(l.Sends, 1)
	return l
}

// Config describes a member of a group; all of a group have the same but for Rank and Limits.
type Config struct {
	Plan        *schedule.Plan
	Rank        int
	BlockSize   int    // in bytes
	Epoch       uint32 // a block or control message of another epoch is refused
	Unannounced bool   // the first block that comes carries the size of its message
	Limits      Limits
}

// New makes a member that is connected to nobody yet. Limits out of bounds are brought into them. Call Begin next.
func New(cfg Config) *Member {
	plan, limits := cfg.Plan, cfg.Limits
	c := &Member{
		rank:    cfg.Rank,
		plain:   cfg.Unannounced,
		plan:    plan,
		costs:   share.NewCosts(plan, cfg.Rank),
		block:   cfg.BlockSize,
		epoch:   cfg.Epoch,
		limits:  limits.check(cfg.Rank == 0),
		lanes:   newLanes(plan.Members()),
		parent:  -1,
		reports: reports{members: make([]memberState, plan.Members())},
		turn:    turn{bucket: newBucket(limits.Rate)},
	}
	c.messages.first, c.messages.early = 1, make(map[uint64]*message)
	c.steps = steps{rank: c.rank, leaf: c.costs.Leaf, messages: &c.messages}
	c.steps.startAt(1)
	tree := reportTree(plan.Tree(), limits)
	for _, peer := range plan.Neighbours(c.rank) {
		c.lanes.add(peer, true, c.limits.Slots)
	}
	for peer, parent := range tree {
		if parent == c.rank || c.rank > 0 && tree[c.rank] == peer {
			c.lanes.add(peer, false, 0)
		}
	}
	if c.rank != 0 {
		c.parent = c.lanes.of[tree[c.rank]]
	}
	for peer, parent := range tree {
		if parent == c.rank {
			c.lanes.all[c.lanes.of[peer]].child = true
		}
	}
	c.small.open(c, tree)
	c.pace.open(len(c.lanes.all))
	c.slots.all = make([]slot, slotsFor(c.limits.Slots, len(c.lanes.all), c.plain && c.rank != 0))
	c.queue.entries = make([]prepared, 2*c.limits.Slots)
	return c
}

// Begin sets the clock, and the gate where the member asks for its turn to send; nil if there is nobody to take turns
// with.
func (c *Member) Begin(now time.Time, gate Gate) {
	c.now, c.quiet, c.turn.gate = now, now, gate
}

func (c *Member) isRoot() bool { return c.rank == 0 }

func (c *Member) act(a Action) { c.acts = append(c.acts, a) }

// slotsFor returns how many slots a member needs: the slots of the window and, for plain use, one per lane for its
// standing receive.
func slotsFor(window, lanes int, standing bool) int {
	if standing {
		return window + lanes
	}
	return window
}

// Pump does all that can be done now. The other methods call it themselves; the shell does when the turn to send has
// come, and once in the beginning of an unannounced group.
func (c *Member) Pump() {
	if !c.Ended() {
		c.small.free()
		c.small.assignPlaces()
		c.small.relay()
		c.prepare()
		c.grant()
		c.stand()
		c.send()
		c.retire()
		c.small.handOver() // whose turn it is now
	}
	c.turn.settle(c.now)
	c.control()
}

// Failure is why the group failed, as it is reported to others. Reporter is the rank that saw it first, or -1; Cause is
// known only there.
type Failure struct {
	Reason   Reason
	Reporter int
	Suspects []int
	Cause    error
}

// Fail ends the group for a reason, unless it has ended. Its neighbours will be notified. Ranks that the group does not
// have are left out.
func (c *Member) Fail(reason Reason, reporter int, suspects []int, cause error) {
	if c.Ended() {
		return
	}
	outside := func(rank int) bool { return rank < 0 || rank >= len(c.reports.members) }
	if outside(reporter) {
		reporter = -1
	}
	c.failure = &Failure{Reason: reason, Reporter: reporter, Suspects: slices.DeleteFunc(slices.Clone(suspects), outside),
		Cause: cause}
	for i := range c.lanes.all {
		c.lanes.all[i].dirty = true
	}
	c.act(Action{Kind: ActFailed})
	c.Pump()
}

// Broken says that a queue pair of the lane is in error, and how it was noticed. Why is not known yet: the neighbour
// may have died, or it may have ended because the group failed elsewhere, and its word on that be still on the way. So
// the group fails for this reason only if nothing better is heard within the grace.
func (c *Member) Broken(lane int, cause error) {
	l := &c.lanes.all[lane]
	if l.broken {
		return
	}
	l.broken = true
	c.lose(l.peer, cause)
	c.control()
}

// lose notes that a neighbour was lost, and why the first one was.
func (c *Member) lose(peer int, cause error) {
	if c.closing && !c.isRoot() {
		c.close() // everything was delivered; only the ends of some sends were not reported
	}
	if c.Ended() {
		return
	}
	if len(c.lost) == 0 {
		c.lostAt = c.now
		c.lostWhy = cause
	}
	if !slices.Contains(c.lost, peer) {
		c.lost = append(c.lost, peer)
	}
	c.graceOver()
}

// graceOver fails the group if neighbours were lost and the time to hear why is over.
func (c *Member) graceOver() {
	if len(c.lost) > 0 && c.now.Sub(c.lostAt) >= c.limits.Grace {
		c.Fail(ReasonDisconnected, c.rank, c.lost, c.lostWhy)
	}
}
