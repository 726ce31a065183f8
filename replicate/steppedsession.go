package replicate

import (
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// SteppedRoot is the protocol of one session at its root, for a simulator that is the shell: events are the methods,
// actions what they return.
type SteppedRoot struct{ s *rootSession }

// RootActKind says what a root wants done.
type RootActKind uint8

// Kinds of a RootAct.
const (
	RootAnnounce RootActKind = iota + 1 // ask Node to join Epoch; ends with Answer or Unreachable
	RootSend                            // send Blocks to Members in a group; ends with GroupDone or GroupFailed
	RootEndGroup                        // end group Part of Epoch
	RootFinish                          // ask Node for its standing, or its vote; ends with Standing or Unreachable
	RootStop                            // tell Node that nothing more comes
	RootEnd                             // the session has its result
)

// RootAct is one thing for the shell to do.
type RootAct struct {
	Kind    RootActKind
	Epoch   uint32
	Part    int // which group of the epoch
	Node    meta.NodeID
	Members []meta.NodeID
	Have    [][]byte // by member, bit i%8 of byte i/8 is block i
	Blocks  []byte
	HasRoot bool
	Root    [32]byte
	Drop    bool
}

// NewSteppedRoot makes the session of a push. With a published root it is one of catch-up.
func NewSteppedRoot(members []meta.NodeID, blocks int, t Tuning, published *[32]byte) *SteppedRoot {
	s := newRootSession(members, blocks, t.withDefaults().limits(content.BlockBytes))
	if published != nil {
		s.rootKnown, s.root, s.local = true, *published, localStored
	}
	return &SteppedRoot{s}
}

// Start announces the session to all members.
func (r *SteppedRoot) Start(now time.Time) []RootAct { return rootActs(r.s.start(now)) }

// Answer is a member's answer to an announcement.
func (r *SteppedRoot) Answer(now time.Time, node meta.NodeID, st Standing) []RootAct {
	return r.step(now, evAnswer{node, st})
}

// Standing is a member's answer to a finish.
func (r *SteppedRoot) Standing(now time.Time, node meta.NodeID, st Standing) []RootAct {
	return r.step(now, evStanding{node, st})
}

// Unreachable says that a call to a member failed.
func (r *SteppedRoot) Unreachable(now time.Time, node meta.NodeID, epoch uint32) []RootAct {
	return r.step(now, evUnreachable{node, epoch, "unreachable"})
}

// Progress tells how many blocks of the epoch a member has stored.
func (r *SteppedRoot) Progress(now time.Time, node meta.NodeID, epoch uint32, moved int) []RootAct {
	return r.step(now, evProgress{node, epoch, int64(moved) * content.BlockBytes})
}

// Flowing says that every member of a group takes part: blocks can flow from now on.
func (r *SteppedRoot) Flowing(now time.Time, epoch uint32, part int) []RootAct {
	return r.step(now, evFlowing{epoch, part})
}

// GroupDone says that every member of the group has every block.
func (r *SteppedRoot) GroupDone(now time.Time, epoch uint32, part int) []RootAct {
	return r.step(now, evGroupDone{epoch, part})
}

// GroupFailed says that a group of the epoch ended.
func (r *SteppedRoot) GroupFailed(now time.Time, epoch uint32, part int, suspects []meta.NodeID) []RootAct {
	ev := evGroupFailed{epoch: epoch, part: part, text: "group failed"}
	for _, n := range suspects {
		ev.suspects = append(ev.suspects, suspect{n, meta.OwedUnreachable})
	}
	return r.step(now, ev)
}

// Root says that all bytes were read and their root is known.
func (r *SteppedRoot) Root(now time.Time, root [32]byte) []RootAct { return r.step(now, evRoot{root}) }

// Local says how the root's own copy ended: nil is stored.
func (r *SteppedRoot) Local(now time.Time, err error) []RootAct { return r.step(now, evLocal{err}) }

// View is what the log says of the members of a session.
type View = evView

// View tells the session what the log says of its members.
func (r *SteppedRoot) View(now time.Time, v View) []RootAct { return r.step(now, v) }

// Tick lets time pass.
func (r *SteppedRoot) Tick(now time.Time) []RootAct { return r.step(now, evTick{}) }

// Cancel ends the session without a version.
func (r *SteppedRoot) Cancel(now time.Time) []RootAct { return r.step(now, evCancel{}) }

func (r *SteppedRoot) step(now time.Time, ev rootEvent) []RootAct { return rootActs(r.s.step(now, ev)) }

// Ended reports that the session has its result.
func (r *SteppedRoot) Ended() bool { return r.s.phase == rootEnded }

// Stored reports that the root's own copy is stored.
func (r *SteppedRoot) Stored() bool { return r.s.local == localStored }

// Settling reports that no group runs or is about to.
func (r *SteppedRoot) Settling() bool { return r.s.phase == rootSettling }

// Votes are the members that have voted, and those that are owed the content.
func (r *SteppedRoot) Votes() (votes []meta.NodeID, missed []meta.Missed) {
	return (&rootRun{sess: r.s}).votes()
}

func rootActs(acts []rootAction) []RootAct {
	var out []RootAct
	for _, act := range acts {
		switch a := act.(type) {
		case actAnnounce:
			out = append(out, RootAct{Kind: RootAnnounce, Node: a.node, Epoch: a.epoch})
		case actSend:
			x := RootAct{Kind: RootSend, Epoch: a.epoch, Part: a.part, Members: a.members, Blocks: a.blocks}
			for _, h := range a.have {
				x.Have = append(x.Have, h)
			}
			out = append(out, x)
		case actEndGroup:
			out = append(out, RootAct{Kind: RootEndGroup, Epoch: a.epoch, Part: a.part, Members: a.suspects})
		case actFinish:
			out = append(out, RootAct{Kind: RootFinish, Node: a.node, Epoch: a.epoch, HasRoot: a.hasRoot, Root: a.root})
		case actStop:
			out = append(out, RootAct{Kind: RootStop, Node: a.node, Epoch: a.epoch, Drop: a.drop})
		case actEnd:
			out = append(out, RootAct{Kind: RootEnd})
		}
	}
	return out
}

// SteppedMember is the protocol of one session at a member, for a simulator.
type SteppedMember struct{ s memberSession }

// MemberActKind says what a member wants done.
type MemberActKind uint8

// Kinds of a MemberAct; see the actions of memberSession.
const (
	MemberEndTransfer MemberActKind = iota + 1
	MemberCheck
	MemberCommit
	MemberDrop
	MemberDiscard
	MemberRelease
)

// MemberAct is one thing for the shell to do.
type MemberAct struct {
	Kind MemberActKind
	Root [32]byte
}

// Announced starts an epoch.
func (m *SteppedMember) Announced(epoch uint32, published bool, root [32]byte) []MemberAct {
	return m.step(mvAnnounced{epoch, published, root})
}

// Whole says that every block is stored.
func (m *SteppedMember) Whole() []MemberAct { return m.step(mvWhole{}) }

// Root is the root's word on what the bytes must be.
func (m *SteppedMember) Root(epoch uint32, root [32]byte) []MemberAct {
	return m.step(mvRoot{epoch, root})
}

// Checked ends a check: nil is stored and durable.
func (m *SteppedMember) Checked(err error) []MemberAct {
	return m.step(mvChecked{err, refusalReason(err)})
}

// Stopped ends the flow of blocks of an epoch.
func (m *SteppedMember) Stopped(epoch uint32, drop bool) []MemberAct {
	return m.step(mvStopped{epoch, drop})
}

// Decided is the log's word.
func (m *SteppedMember) Decided(published bool) []MemberAct {
	if published {
		return m.step(mvDecided{verdictPublished})
	}
	return m.step(mvDecided{verdictAborted})
}

// Open reports that the log's word has not been heard.
func (m *SteppedMember) Open() bool { return m.s.verdict == verdictOpen }

// Epoch is the present one.
func (m *SteppedMember) Epoch() uint32 { return m.s.epoch }

// Receiving reports that blocks are wanted.
func (m *SteppedMember) Receiving() bool { return m.s.phase == holdReceiving }

// Refused reports that the last check failed.
func (m *SteppedMember) Refused() bool { return m.s.phase == holdRefused }

// Fixed reports that the bytes are being checked or voted for: a new epoch changes nothing.
func (m *SteppedMember) Fixed() bool { return m.s.phase == holdChecking || m.s.phase == holdVoted }

// Gone reports that the session is over here.
func (m *SteppedMember) Gone() bool { return m.s.phase == holdGone }

// Continue moves a fixed session to an epoch.
func (m *SteppedMember) Continue(epoch uint32) { m.s.epoch = epoch }

// Found says that an earlier life of the session has voted.
func (m *SteppedMember) Found() { m.s.phase, m.s.whole = holdVoted, true }

// End says that nothing is here.
func (m *SteppedMember) End() { m.s.phase = holdGone }

// Standing is what the session answers about itself; held counts the blocks that are here.
func (m *SteppedMember) Standing(id meta.ContentID, held int) Standing {
	st := Standing{Content: id, Epoch: m.s.epoch, Status: m.s.status(), Text: m.s.text}
	switch {
	case st.Status == statusRefused:
		st.Reason = m.s.reason
	case m.s.phase != holdVoted:
		st.Held = uint32(held)
	}
	return st
}

func (m *SteppedMember) step(ev memberEvent) []MemberAct {
	var out []MemberAct
	for _, act := range m.s.step(ev) {
		switch a := act.(type) {
		case maEndTransfer:
			out = append(out, MemberAct{Kind: MemberEndTransfer})
		case maCheck:
			out = append(out, MemberAct{Kind: MemberCheck, Root: a.root})
		case maCommit:
			out = append(out, MemberAct{Kind: MemberCommit})
		case maDrop:
			out = append(out, MemberAct{Kind: MemberDrop})
		case maDiscard:
			out = append(out, MemberAct{Kind: MemberDiscard})
		case maRelease:
			out = append(out, MemberAct{Kind: MemberRelease})
		}
	}
	return out
}
