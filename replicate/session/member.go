package session

import "github.com/rdmcfs/rdmcfs/meta/owed"

// Member is the protocol of one session at a member: a pure state machine. The shell owns the bytes and the transfer.
// The zero value is a session that was not announced yet. It is not safe for concurrent use.
//
//	receiving ──whole and hash known──> checking ──ok──> voted ──log: publish──> held
//	    │                                  │               │
//	    │<──────── the check failed ───────┘               └──log: abort──> gone
//	    └──log: abort, or given up by the root before the vote──> gone
//
// Between voted and the log's word nothing releases the vote: no lost connection, no time, no restart.
type Member struct {
	epoch     uint32
	phase     MemberPhase
	published bool // catch-up: the log has the publish already
	whole     bool // every block is stored
	hashKnown bool
	hash      [32]byte
	verdict   Verdict
	text      string // why it was refused
	reason    owed.Reason
}

// MemberPhase is how far a session is at a member.
type MemberPhase uint8

// Phases of a Member.
const (
	Receiving MemberPhase = iota // blocks are missing, or their hash
	Checking                     // all is here, being checked and synced
	Voted                        // stored, durable
	Refused                      // the bytes were wrong or the disk failed; a new epoch may try again
	Gone                         // over, here
)

// Verdict is what the log has said about a session.
type Verdict uint8

// Verdicts.
const (
	Undecided Verdict = iota
	Published
	Aborted
)

// MemberEvent is what a Member takes in: one of the types below.
type MemberEvent any

// Events of a Member.
type (
	// Announced starts an epoch.
	Announced struct {
		Epoch     uint32
		Published bool     // catch-up: the log has the publish already
		Hash      [32]byte // when published
	}
	// Found says that the content was stored here already, by an earlier life of the session.
	Found struct{}
	// Unopened says that the bytes of the session could not be opened: nothing is here.
	Unopened struct{}
	// Whole says that every block is stored.
	Whole struct{}
	// HashTold is the root's word on what the bytes must be.
	HashTold struct {
		Epoch uint32
		Hash  [32]byte
	}
	// Checked ends a Check: a nil Err means stored and durable. Reason is how Err is reported.
	Checked struct {
		Err    error
		Reason owed.Reason
	}
	// StoreFailed says that blocks could not be stored.
	StoreFailed struct {
		Epoch  uint32
		Err    error
		Reason owed.Reason
	}
	// Stopped ends the flow of blocks of an epoch.
	Stopped struct {
		Epoch uint32
		Drop  bool
	}
	// Fenced says that the log has ended the session with its root's incarnation.
	Fenced struct{}
	// Decided is the log's word.
	Decided struct{ Verdict Verdict }
)

// MemberAction is what a Member wants done: one of the types below.
type MemberAction any

// Actions of a Member.
type (
	// EndTransfer leaves the transfer of an older epoch; no block of it is written afterwards.
	EndTransfer struct{}
	// Check verifies the bytes against the hash and makes them durable; ends with Checked.
	Check struct{ Hash [32]byte }
	// Commit makes voted bytes live.
	Commit struct{}
	// Drop deletes the bytes.
	Drop struct{}
	// Discard deletes bytes that failed their check, at the end of the transfer that brought them.
	Discard struct{}
	// Release keeps what was received of a published content, for catch-up, and lets go of the session.
	Release struct{}
	// Keep keeps what was received of a session that was fenced for the next session of its push, and lets go of it.
	Keep struct{}
)

// Step takes one event and says what is to be done.
func (s *Member) Step(ev MemberEvent) []MemberAction {
	if s.phase == Gone {
		return nil
	}
	switch e := ev.(type) {
	case Announced:
		return s.onAnnounced(e)
	case Found:
		s.phase, s.whole = Voted, true
		return s.settle()
	case Unopened:
		s.phase = Gone
	case Whole:
		s.whole = true
		return s.tryCheck()
	case HashTold:
		return s.onRoot(e)
	case Checked:
		return s.onChecked(e)
	case StoreFailed:
		if e.Epoch == s.epoch && s.phase == Receiving {
			s.phase, s.text, s.reason = Refused, e.Err.Error(), e.Reason
		}
	case Stopped:
		return s.onStopped(e)
	case Fenced:
		return s.onFenced()
	case Decided:
		return s.onDecided(e)
	}
	return nil
}

func (s *Member) onAnnounced(e Announced) []MemberAction {
	if e.Epoch < s.epoch && !e.Published {
		return nil
	}
	if s.phase == Checking || s.phase == Voted {
		s.epoch = e.Epoch
		return nil
	}
	s.epoch, s.phase, s.text = e.Epoch, Receiving, ""
	if e.Published {
		s.published, s.hashKnown, s.hash = true, true, e.Hash
	}
	return []MemberAction{EndTransfer{}}
}

func (s *Member) onRoot(e HashTold) []MemberAction {
	if e.Epoch != s.epoch {
		return nil
	}
	s.hashKnown, s.hash = true, e.Hash
	return s.tryCheck()
}

func (s *Member) tryCheck() []MemberAction {
	if !s.whole || !s.hashKnown || s.phase != Receiving {
		return nil
	}
	s.phase = Checking
	return []MemberAction{Check{s.hash}}
}

func (s *Member) onChecked(e Checked) []MemberAction {
	if s.phase != Checking {
		return nil
	}
	if e.Err != nil {
		s.phase, s.whole, s.text, s.reason = Refused, false, e.Err.Error(), e.Reason
		if s.verdict != Undecided {
			s.phase = Gone
		}
		return []MemberAction{Discard{}}
	}
	s.phase = Voted
	return s.settle()
}

func (s *Member) onStopped(e Stopped) []MemberAction {
	if e.Epoch < s.epoch {
		return nil
	}
	if e.Drop && !s.published && (s.phase == Receiving || s.phase == Refused) {
		return s.drop()
	}
	return []MemberAction{EndTransfer{}}
}

func (s *Member) onDecided(e Decided) []MemberAction {
	s.verdict = e.Verdict
	return s.settle()
}

// onFenced ends the session: a vote goes, since it no longer counts, and so does all that is being checked. Only blocks
// that are on their way to a vote may be of use.
func (s *Member) onFenced() []MemberAction {
	if s.phase != Receiving || s.published {
		return s.onDecided(Decided{Aborted})
	}
	s.phase, s.verdict = Gone, Aborted
	return []MemberAction{EndTransfer{}, Keep{}}
}

// settle acts on the log's word as far as the phase allows.
func (s *Member) settle() []MemberAction {
	switch {
	case s.verdict == Undecided || s.phase == Checking:
		return nil // a check ends first
	case s.verdict == Aborted:
		return s.drop()
	case s.phase == Voted:
		s.phase = Gone
		return []MemberAction{Commit{}}
	case s.published:
		return nil // catch-up brings the rest
	}
	s.phase = Gone
	return []MemberAction{EndTransfer{}, Release{}}
}

func (s *Member) drop() []MemberAction {
	s.phase = Gone
	return []MemberAction{EndTransfer{}, Drop{}}
}

// Standing is what the member answers about itself, without its blocks.
func (s *Member) Standing() Standing {
	st := Standing{Epoch: s.epoch, Status: s.status(), Text: s.text}
	if st.Status == StatusRefused {
		st.Reason = s.reason
	}
	return st
}

func (s *Member) status() Status {
	switch s.phase {
	case Receiving:
		return StatusReceiving
	case Checking:
		return StatusChecking
	case Voted:
		return StatusVoted
	case Refused:
		return StatusRefused
	}
	if s.verdict == Published {
		return StatusVoted
	}
	return StatusGone
}
