package rdmc

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// core is the state machine of one member of one group. It has no goroutine, clock, socket or memory of its own: the
// shell (group.go) tells it what happened by calling its methods, under one lock, and afterwards carries out
// the actions that it left in acts, in order.
//
// Buffers are numbered slots; see slots.go. Each neighbour is a lane; see lanes in control.go. Blocks move by
// flow.go. A block is named by its position among the blocks of its message that move.
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
type core struct {
	rank    int
	plain   bool // messages are not announced: the first block that comes carries the size
	plan    *schedule.Plan
	costs   shareCosts
	block   int // block size in bytes
	epoch   uint32
	limits  coreLimits
	lanes   []lane
	laneOf  []int // by rank, -1 if no neighbour
	parent  int   // lane to the parent in the tree of reports, -1 at the root
	members []memberState

	messages []*message // announced and not finished, by number, without gaps
	backing  []*message // the array that messages lies in, from its start
	spare    []*message // ended small messages, to be used again
	first    uint64     // number of messages[0], or of the next message
	early    map[uint64]*message

	slots  []slot
	uses   uint64 // counts fills and sends, to find the slot that is unused for longest
	posted int    // slots in state posted
	pinned int    // slots with pins
	in     cursor // next receipt to post
	out    cursor // next send to prepare
	queue  sendQueue
	small  smallState
	flight int // sends posted and not completed, whose blocks are here

	failure *failure
	closing bool   // no message behind last comes any more, close when all have ended
	last    uint64 // with closing: the group's last message
	closed  bool
	waiting bool  // the application waits for the end
	settled bool  // all lanes know of the failure or the closing
	lost    []int // neighbours whose queue pairs broke
	lostAt  time.Time
	lostWhy error
	now     time.Time
	bucket  bucket
	gate    gate // where the turn to send is asked for; nil if there is nobody to take turns with
	pace    pace
	refused bool      // it said no since pump began
	waits   bool      // it has said no, and knows of nothing newer
	wakeAt  time.Time // when advance has to be called for the bucket; zero if it has not
	report  time.Time // when the last report was made
	quiet   time.Time // when the last message ended, or the group was connected

	acts []action
}

// coreLimits bound what a member does at once.
type coreLimits struct {
	slots    int // buffers, at least 2
	posted   int // receives posted at once, at most slots-pins
	pins     int // slots kept for sends that are prepared, less than slots
	sends    int // sends outstanding at once
	silence  time.Duration
	interval time.Duration
	grace    time.Duration // from a broken queue pair to the failure of the group

	rate         uint64 // bytes a second that may be sent, 0 for no cap
	smallBytes   int    // bound of a small message, 0 for none
	smallWindow  int    // small messages under way
	smallInOrder bool
}

// check makes limits that fulfil the conditions of the argument above.
func (l coreLimits) check(root bool) coreLimits {
	l.slots = max(l.slots, 2)
	if root {
		l.pins, l.posted = l.slots, 0
	} else {
		l.pins = min(max(l.pins, 1), l.slots-1)
		l.posted = min(max(l.posted, 1), l.slots-l.pins)
	}
	l.sends = max(l.sends, 1)
	return l
}

// actionKind says what the shell must do.
type actionKind uint8

const (
	actPostRecv  actionKind = iota + 1 // post the slot as a receive on the lane
	actSend                            // send the slot's first length bytes on the lane
	actIncoming                        // a message of length size begins that was not announced
	actLoad                            // read the block into the slot, then call loaded
	actStore                           // write the slot's block to the sink, then call stored
	actControl                         // encode and send the lane's control state, then call controlSent
	actStored                          // the message is stored here
	actDone                            // the message has ended here
	actFailed                          // the group has failed
	actSettled                         // all neighbours that can be reached know that the group failed or closed
	actClosed                          // the group is closed: everything was delivered everywhere
	actSmallLoad                       // read small message number seq into the slot, then call smallLoaded with block
	actSmallSend                       // send a small message on the lane, then call smallSent with block
	actSmallHand                       // give a small message to the application, then call smallTaken with block
	actSmallPost                       // post the slot as a receive on the lane's control queue pair
)

// action is one thing for the shell to do.
type action struct {
	kind   actionKind
	lane   int
	slot   int
	seq    uint64
	block  uint64
	length int    // of the block on the wire, trailer included
	blocks uint32 // of the message that move
	size   uint64 // of the message
	rides  bool   // a small message takes the control message along, and that goes with the small message
}

// memberState is how far a member is, as reported.
type memberState struct {
	done   uint64
	blocks uint64
	dirty  bool // to be reported to the parent
}

func newCore(plan *schedule.Plan, rank, blockSize int, epoch uint32, plain bool, limits coreLimits) *core {
	c := &core{
		rank:    rank,
		plain:   plain,
		plan:    plan,
		costs:   newShareCosts(plan, rank),
		block:   blockSize,
		epoch:   epoch,
		limits:  limits.check(rank == 0),
		laneOf:  make([]int, plan.Members()),
		parent:  -1,
		members: make([]memberState, plan.Members()),
		first:   1,
		early:   make(map[uint64]*message),
		bucket:  newBucket(limits.rate),
		in:      cursor{seq: 1},
		out:     cursor{seq: 1},
	}
	for i := range c.laneOf {
		c.laneOf[i] = -1
	}
	tree := reportTree(plan.Tree(), limits)
	for _, peer := range plan.Neighbours(rank) {
		c.addLane(peer, true)
	}
	for peer, parent := range tree {
		if parent == rank || rank > 0 && tree[rank] == peer {
			c.addLane(peer, false)
		}
	}
	if rank != 0 {
		c.parent = c.laneOf[tree[rank]]
	}
	for peer, parent := range tree {
		if parent == rank {
			c.lanes[c.laneOf[peer]].child = true
		}
	}
	c.openSmall(tree)
	c.pace.open(len(c.lanes))
	c.slots = make([]slot, slotsFor(c.limits.slots, len(c.lanes), plain && rank != 0))
	c.queue.entries = make([]prepared, 2*c.limits.slots)
	return c
}

// addLane makes a neighbour, if it is not one yet. Only neighbours of the schedule exchange blocks.
func (c *core) addLane(peer int, blocks bool) {
	if c.laneOf[peer] >= 0 {
		return
	}
	c.laneOf[peer] = len(c.lanes)
	l := lane{peer: peer, blocks: blocks, standing: -1}
	if blocks {
		l.ring = make([]int, 0, c.limits.slots+1)
	}
	c.lanes = append(c.lanes, l)
}

func (c *core) isRoot() bool { return c.rank == 0 }

// ended reports that no more blocks will move.
func (c *core) ended() bool { return c.failure != nil || c.closed }

// active reports whether messages are under way here, or the end of the group is waited for.
func (c *core) active() bool { return !c.ended() && (len(c.messages) > 0 || c.waiting) }

func (c *core) act(a action) { c.acts = append(c.acts, a) }

// slotsFor returns how many slots a member needs: the slots of the window and, for plain use, one per lane for its
// standing receive.
func slotsFor(window, lanes int, standing bool) int {
	if standing {
		return window + lanes
	}
	return window
}

// pump does all that can be done now.
func (c *core) pump() {
	if !c.ended() {
		c.freeSmall()
		c.assignSmall()
		c.relaySmall()
		c.prepare()
		c.grant()
		c.stand()
		c.send()
		c.retire()
		c.handSmall() // whose turn it is now
	}
	c.settleTurn()
	c.control()
}

// failure is why the group failed, as it is reported to others.
type failure struct {
	reason   Reason
	reporter int
	suspects []int
	cause    error
}

// fail ends the group, unless it has ended. Its neighbours will be notified. Ranks that the group does not have are
// left out.
func (c *core) fail(reason Reason, reporter int, suspects []int, cause error) {
	if c.ended() {
		return
	}
	outside := func(rank int) bool { return rank < 0 || rank >= len(c.members) }
	if outside(reporter) {
		reporter = -1
	}
	c.failure = &failure{reason: reason, reporter: reporter, suspects: slices.DeleteFunc(slices.Clone(suspects), outside),
		cause: cause}
	for i := range c.lanes {
		c.lanes[i].dirty = true
	}
	c.act(action{kind: actFailed})
	c.pump()
}

// broken says that a queue pair of the lane is in error. Why is not known yet: the neighbour may have died, or it
// may have ended because the group failed elsewhere, and its word on that be still on the way. So the group
// fails for this reason only if nothing better is heard within the grace.
func (c *core) broken(lane int, cause error) {
	l := &c.lanes[lane]
	if l.broken {
		return
	}
	l.broken = true
	c.lose(l.peer, cause)
	c.control()
}

// lose notes that a neighbour was lost, and why the first one was.
func (c *core) lose(peer int, cause error) {
	if c.closing && !c.isRoot() {
		c.close() // everything was delivered; only the ends of some sends were not reported
	}
	if c.ended() {
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
func (c *core) graceOver() {
	if len(c.lost) > 0 && c.now.Sub(c.lostAt) >= c.limits.grace {
		c.fail(ReasonDisconnected, c.rank, c.lost, c.lostWhy)
	}
}
