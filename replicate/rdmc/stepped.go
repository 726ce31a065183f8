package rdmc

import (
	"errors"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Stepped is one member of a group without goroutines, fabric and memory, for a simulator that is all of these: it
// carries out the actions and tells what came of them. A slot is a number; what lies in it is the simulator's.
// It is not safe for concurrent use.
type Stepped struct{ c *core }

// SteppedConfig says which member of which group it is.
type SteppedConfig struct {
	Plan      *schedule.Plan
	Rank      int
	BlockSize int
	Epoch     uint32
	Slots     int           // buffers
	Silence   time.Duration // as EngineConfig and GroupConfig have them
	Interval  time.Duration
	Grace     time.Duration
}

// StepKind says what the shell must do.
type StepKind uint8

// Kinds of a Step. After an end (StepDone, StepFailed) nothing has to be told to the member any more, but that others
// still hear of it from its control messages.
const (
	StepPostRecv StepKind = iota + 1 // post Slot as a receive from Peer
	StepSend                         // send Slot to Peer, then call Sent; the peer's Received is called with what Carried says
	StepLoad                         // read Block into Slot, then call Loaded
	StepStore                        // write Slot's Block to the sink, then call Stored
	StepControl                      // send what Control gives to Peer's Hear, then call ControlSent
	StepStored                       // the message is stored here
	StepDone                         // the message has ended here: at the root, all members have stored it
	StepFailed                       // the group has failed
)

// Step is one thing for the shell to do.
type Step struct {
	Kind  StepKind
	Peer  int
	Slot  int
	Block uint64
}

// Carried is what a block says of itself.
type Carried struct{ t trailer }

// NewStepped makes a member.
func NewStepped(cfg SteppedConfig) *Stepped {
	limits := coreLimits{slots: cfg.Slots, posted: cfg.Slots / 2, pins: max(1, cfg.Slots/2), sends: 2,
		silence: cfg.Silence, interval: cfg.Interval, grace: cfg.Grace}
	return &Stepped{newCore(cfg.Plan, cfg.Rank, cfg.BlockSize, cfg.Epoch, false, limits)}
}

// Peers are the ranks of the neighbours.
func (s *Stepped) Peers() (ranks []int) {
	for i := range s.c.lanes {
		ranks = append(ranks, s.c.lanes[i].peer)
	}
	return ranks
}

// Announce tells the member of a message and which of its blocks are here (nil at the root).
func (s *Stepped) Announce(a Announcement, have *Bitmap) error {
	if err := a.validate(s.c.block); err != nil {
		return err
	}
	return s.c.announce(a, have)
}

// Connected says that the member can send to a neighbour.
func (s *Stepped) Connected(peer int) { s.c.connected(s.c.laneOf[peer]) }

// Broken says that the connection to a neighbour is lost.
func (s *Stepped) Broken(peer int, cause error) { s.c.broken(s.c.laneOf[peer], cause) }

// Fail ends the group.
func (s *Stepped) Fail(suspects []int, cause error) {
	s.c.fail(ReasonAborted, s.c.rank, suspects, cause)
}

// Loaded says that a load has ended.
func (s *Stepped) Loaded(slot int, err error) { s.c.loaded(slot, err) }

// Stored says that the sink has a slot's block.
func (s *Stepped) Stored(slot int, err error) { s.c.stored(slot, err) }

// Carries is what the block of a Step says of itself on the wire.
func (s *Stepped) Carries(st Step) Carried {
	m := s.c.slots[st.Slot].m
	return Carried{trailer{seq: m.seq, block: st.Block, size: m.size, epoch: s.c.epoch, length: uint32(BlockLength(m.size, s.c.block, st.Block))}}
}

// Sent says that the peer's memory holds a slot that was sent.
func (s *Stepped) Sent(slot int) { s.c.sent(slot) }

// Received says that the oldest receive posted for a peer, of the slot, has a block.
func (s *Stepped) Received(peer, slot int, got Carried) {
	s.c.received(s.c.laneOf[peer], slot, got.t, nil)
}

// Control encodes the control message for a peer.
func (s *Stepped) Control(peer int) []byte {
	buf := make([]byte, maxControl)
	return buf[:s.c.encodeControl(s.c.laneOf[peer], buf)]
}

// ControlSent says that the peer has the control message.
func (s *Stepped) ControlSent(peer int) { s.c.controlSent(s.c.laneOf[peer]) }

// Hear takes a peer's control message in.
func (s *Stepped) Hear(peer int, message []byte) error {
	var m controlMessage
	if err := decodeControl(message, &m); err != nil {
		return err
	}
	s.c.hear(s.c.laneOf[peer], m)
	return nil
}

// Tick tells the time.
func (s *Stepped) Tick(now time.Time) { s.c.tick(now) }

// Take gives out what is to be done, in order.
func (s *Stepped) Take() []Step {
	acts := s.c.acts
	s.c.acts = nil
	var out []Step
	kinds := map[actionKind]StepKind{actPostRecv: StepPostRecv, actSend: StepSend, actLoad: StepLoad, actStore: StepStore,
		actControl: StepControl, actStored: StepStored, actDone: StepDone, actFailed: StepFailed}
	for _, a := range acts {
		kind, ok := kinds[a.kind]
		if !ok {
			continue
		}
		st := Step{Kind: kind, Slot: a.slot, Block: a.block}
		switch kind {
		case StepPostRecv, StepSend, StepControl:
			st.Peer = s.c.lanes[a.lane].peer
		}
		out = append(out, st)
	}
	return out
}

// Progress tells how many blocks of the message a member is known to have stored.
func (s *Stepped) Progress(rank int) (blocks uint64, done bool) {
	m := &s.c.members[rank]
	return m.blocks, m.done > 0
}

// Failure is nil while the group works, else its failure with the ranks that are suspected.
func (s *Stepped) Failure() ([]int, error) {
	f := s.c.failure
	if f == nil {
		return nil, nil
	}
	cause := f.cause
	if cause == nil {
		cause = errors.New("rdmc: told by a neighbour")
	}
	return f.suspects, cause
}
