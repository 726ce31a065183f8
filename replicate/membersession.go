package replicate

import "github.com/rdmcfs/rdmcfs/meta"

// memberSession is the protocol of one session at a member: a pure state machine. The shell (member.go) owns the
// bytes and the transfer.
//
//	receiving ──whole and root known──> checking ──ok──> voted ──log: publish──> held
//	    │                                  │               │
//	    │<──────── the check failed ───────┘               └──log: abort──> gone
//	    └──log: abort, or given up by the root before the vote──> gone
//
// Between voted and the log's word nothing releases the vote: no lost connection, no time, no restart.
type memberSession struct {
	epoch     uint32
	phase     holdPhase
	published bool // catch-up: the log has the publish already
	whole     bool // every block is stored
	rootKnown bool
	root      [32]byte
	verdict   verdict
	text      string // why it was refused
	reason    meta.OwedReason
}

type holdPhase uint8

const (
	holdReceiving holdPhase = iota
	holdChecking
	holdVoted
	holdRefused // the bytes were wrong or the disk failed; a new epoch may try again
	holdGone
)

// verdict is what the log has said about a session.
type verdict uint8

const (
	verdictOpen verdict = iota
	verdictPublished
	verdictAborted
)

// Events of a member session.
type (
	// mvAnnounced starts an epoch.
	mvAnnounced struct {
		epoch     uint32
		published bool
		root      [32]byte // when published
	}
	// mvWhole says that every block is stored.
	mvWhole struct{}
	// mvRoot is the root's word on what the bytes must be.
	mvRoot struct {
		epoch uint32
		root  [32]byte
	}
	// mvChecked ends a check: nil is stored and durable. reason is how an error is told.
	mvChecked struct {
		err    error
		reason meta.OwedReason
	}
	// mvFailed says that blocks could not be stored.
	mvFailed struct {
		epoch  uint32
		err    error
		reason meta.OwedReason
	}
	// mvStopped ends the flow of blocks of an epoch.
	mvStopped struct {
		epoch uint32
		drop  bool
	}
	// mvFenced says that the log has ended the session with its root's incarnation.
	mvFenced struct{}
	// mvDecided is the log's word.
	mvDecided struct{ verdict verdict }
)

// Actions of a member session.
type (
	// maEndTransfer leaves the transfer of an older epoch; no block of it is written afterwards.
	maEndTransfer struct{}
	// maCheck verifies the bytes against the root and makes them durable; ends with mvChecked.
	maCheck struct{ root [32]byte }
	// maCommit makes voted bytes live.
	maCommit struct{}
	// maDrop deletes the bytes.
	maDrop struct{}
	// maDiscard deletes bytes that failed their check, at the end of the transfer that brought them.
	maDiscard struct{}
	// maRelease keeps what was received of a published content, for catch-up, and lets go of the session.
	maRelease struct{}
	// maKeep keeps what was received of a session that was fenced for the next session of its push, and lets go of it.
	maKeep struct{}
)

type (
	memberEvent  any
	memberAction any
)

// step takes one event and says what is to be done.
func (s *memberSession) step(ev memberEvent) []memberAction {
	if s.phase == holdGone {
		return nil
	}
	switch e := ev.(type) {
	case mvAnnounced:
		return s.onAnnounced(e)
	case mvWhole:
		s.whole = true
		return s.tryCheck()
	case mvRoot:
		return s.onRoot(e)
	case mvChecked:
		return s.onChecked(e)
	case mvFailed:
		if e.epoch == s.epoch && s.phase == holdReceiving {
			s.phase, s.text, s.reason = holdRefused, e.err.Error(), e.reason
		}
	case mvStopped:
		return s.onStopped(e)
	case mvFenced:
		return s.onFenced()
	case mvDecided:
		return s.onDecided(e)
	}
	return nil
}

func (s *memberSession) onAnnounced(e mvAnnounced) []memberAction {
	if e.epoch < s.epoch && !e.published || s.phase == holdChecking || s.phase == holdVoted {
		return nil
	}
	s.epoch, s.phase, s.text = e.epoch, holdReceiving, ""
	if e.published {
		s.published, s.rootKnown, s.root = true, true, e.root
	}
	return []memberAction{maEndTransfer{}}
}

func (s *memberSession) onRoot(e mvRoot) []memberAction {
	if e.epoch != s.epoch {
		return nil
	}
	s.rootKnown, s.root = true, e.root
	return s.tryCheck()
}

func (s *memberSession) tryCheck() []memberAction {
	if !s.whole || !s.rootKnown || s.phase != holdReceiving {
		return nil
	}
	s.phase = holdChecking
	return []memberAction{maCheck{s.root}}
}

func (s *memberSession) onChecked(e mvChecked) []memberAction {
	if s.phase != holdChecking {
		return nil
	}
	if e.err != nil {
		s.phase, s.whole, s.text, s.reason = holdRefused, false, e.err.Error(), e.reason
		if s.verdict != verdictOpen {
			s.phase = holdGone
		}
		return []memberAction{maDiscard{}}
	}
	s.phase = holdVoted
	return s.settle()
}

func (s *memberSession) onStopped(e mvStopped) []memberAction {
	if e.epoch < s.epoch {
		return nil
	}
	if e.drop && !s.published && (s.phase == holdReceiving || s.phase == holdRefused) {
		return s.drop()
	}
	return []memberAction{maEndTransfer{}}
}

func (s *memberSession) onDecided(e mvDecided) []memberAction {
	s.verdict = e.verdict
	return s.settle()
}

// onFenced ends the session: a vote goes, for it counts no more, and so does all that is being checked. Only blocks
// that are on their way to a vote may be of use.
func (s *memberSession) onFenced() []memberAction {
	if s.phase != holdReceiving || s.published {
		return s.onDecided(mvDecided{verdictAborted})
	}
	s.phase, s.verdict = holdGone, verdictAborted
	return []memberAction{maEndTransfer{}, maKeep{}}
}

// settle acts on the log's word as far as the phase allows.
func (s *memberSession) settle() []memberAction {
	switch {
	case s.verdict == verdictOpen || s.phase == holdChecking:
		return nil // a check ends first
	case s.verdict == verdictAborted:
		return s.drop()
	case s.phase == holdVoted:
		s.phase = holdGone
		return []memberAction{maCommit{}}
	case s.published:
		return nil // catch-up brings the rest
	}
	s.phase = holdGone
	return []memberAction{maEndTransfer{}, maRelease{}}
}

func (s *memberSession) drop() []memberAction {
	s.phase = holdGone
	return []memberAction{maEndTransfer{}, maDrop{}}
}

// status is what the member answers about itself.
func (s *memberSession) status() status {
	switch s.phase {
	case holdReceiving:
		return statusReceiving
	case holdChecking:
		return statusChecking
	case holdVoted:
		return statusVoted
	case holdRefused:
		return statusRefused
	}
	if s.verdict == verdictPublished {
		return statusVoted
	}
	return statusGone
}
