package session

import (
	"time"

	"github.com/rdmcfs/rdmcfs/meta/id"
	"github.com/rdmcfs/rdmcfs/meta/owed"
)

// Phase is what the session is doing.
func (s *Root) Phase() RootPhase { return s.phase }

// Epoch is the number of the present epoch.
func (s *Root) Epoch() uint32 { return s.epoch }

// Hash is the root of the content's hash tree, as far as it is known.
func (s *Root) Hash() [32]byte { return s.hash }

// Own is how far the root's own copy is, and why it failed.
func (s *Root) Own() (OwnState, error) { return s.own, s.ownErr }

// Gained is when the last block or vote of anybody came.
func (s *Root) Gained() time.Time { return s.gained }

// Pace is what groups without a slow member have reached, in bytes a second; 0 is unknown.
func (s *Root) Pace() float64 { return s.judge.Known() }

// MemberView is what a root knows of one member.
type MemberView struct {
	Node   id.Node
	State  MemberState
	Held   int         // blocks that it has, as last reported
	Bytes  int64       // of the stream that it has: finer than Held
	Reason owed.Reason // why it is out
	Text   string      // likewise
	Called bool        // it was asked to take part, in its present incarnation
}

// Live reports whether more is expected of the member.
func (m MemberView) Live() bool { return m.State != MemberOut && m.State != MemberVoted }

// Members returns the members that the session was made with, and those that came up since.
func (s *Root) Members() []MemberView {
	list := make([]MemberView, len(s.members))
	for i, m := range s.members {
		list[i] = MemberView{
			Node: m.node, State: m.phase, Held: m.held, Bytes: m.present(), Reason: m.reason, Text: m.text, Called: m.called,
		}
	}
	return list
}

// String names the state in status.
func (p MemberState) String() string {
	switch p {
	case MemberAsked:
		return "asked"
	case MemberReady:
		return "receiving"
	case MemberChecking:
		return "checking"
	case MemberVoted:
		return "stored"
	}
	return "out"
}

// Epoch is the number of the present epoch.
func (s *Member) Epoch() uint32 { return s.epoch }

// Phase is how far the session is here.
func (s *Member) Phase() MemberPhase { return s.phase }

// Verdict is what the log has said so far.
func (s *Member) Verdict() Verdict { return s.verdict }

// Hash is the root's word on what the bytes must be, if it has come.
func (s *Member) Hash() (hash [32]byte, known bool) { return s.hash, s.hashKnown }
