package replicate

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/meta"
)

func TestAVoteIsReleasedByTheLogAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &memberSession{}
		voted, decided, checking := false, verdictOpen, false
		published := rapid.Bool().Draw(t, "published")
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			var ev memberEvent
			epoch := uint32(rapid.IntRange(0, 3).Draw(t, "epoch"))
			switch rapid.IntRange(0, 7).Draw(t, "event") {
			case 0:
				ev = mvAnnounced{epoch, published, [32]byte{1}}
			case 1:
				ev = mvWhole{}
			case 2:
				ev = mvRoot{epoch, [32]byte{1}}
			case 3:
				if !checking {
					continue
				}
				var err error
				if rapid.Bool().Draw(t, "bad") {
					err = errors.New("bad")
				}
				checking, voted = false, voted || err == nil
				ev = mvChecked{err, meta.OwedFailed}
			case 4:
				ev = mvFailed{epoch, errors.New("disk"), meta.OwedFull}
			case 5:
				ev = mvStopped{epoch, rapid.Bool().Draw(t, "drop")}
			case 6:
				if decided != verdictOpen {
					continue
				}
				decided = rapid.SampledFrom([]verdict{verdictPublished, verdictAborted}).Draw(t, "verdict")
				ev = mvDecided{decided}
			case 7:
				if decided != verdictOpen || published {
					continue
				}
				decided = verdictAborted
				ev = mvFenced{}
			}
			before := s.phase
			for _, act := range s.step(ev) {
				switch act.(type) {
				case maKeep:
					if voted || checking || s.phase != holdGone {
						t.Fatal("what a fence leaves is more than blocks")
					}
				case maCheck:
					if checking {
						t.Fatal("two checks at a time")
					}
					checking = true
				case maDrop:
					if voted && decided != verdictAborted {
						t.Fatalf("%T dropped a vote; the log says %d", ev, decided)
					}
					if checking {
						t.Fatal("dropped under a running check")
					}
				case maCommit:
					if !voted || decided != verdictPublished {
						t.Fatalf("commit of voted %v, decided %d", voted, decided)
					}
				case maDiscard:
					if voted {
						t.Fatal("a vote was discarded")
					}
				}
			}
			if before == holdVoted && s.phase != holdVoted && s.phase != holdGone {
				t.Fatalf("%T took a vote back to phase %d", ev, s.phase)
			}
			if s.status() == statusVoted && !voted && decided != verdictPublished {
				t.Fatalf("answers voted without a vote, phase %d", s.phase)
			}
			if voted && decided == verdictOpen && s.phase != holdVoted {
				t.Fatalf("voted, undecided, in phase %d", s.phase)
			}
		}
	})
}

// votedSession is a session at a member that has voted in its second epoch.
func votedSession(t *testing.T) *memberSession {
	t.Helper()
	s := &memberSession{}
	s.step(mvAnnounced{epoch: 1})
	s.step(mvWhole{})
	s.step(mvRoot{1, [32]byte{1}})
	if s.step(mvChecked{}); s.phase != holdVoted {
		t.Fatalf("no vote, phase %d", s.phase)
	}
	return s
}

// The root gives the session up. Its publish may be in the log all the same.
func TestStopOfTheRootLeavesTheVote(t *testing.T) {
	s := votedSession(t)
	for _, act := range s.step(mvStopped{epoch: 1, drop: true}) {
		if _, drops := act.(maDrop); drops {
			t.Error("the root's stop dropped a vote")
		}
	}
	if s.status() != statusVoted {
		t.Fatalf("answers %d after the root's stop", s.status())
	}
	if acts := s.step(mvDecided{verdictPublished}); len(acts) != 1 || acts[0] != (maCommit{}) {
		t.Errorf("published after the root's stop: %#v", acts)
	}
}

// What the log has aborted is dropped, also with a vote.
func TestAbortDropsTheVote(t *testing.T) {
	s := votedSession(t)
	acts := s.step(mvDecided{verdictAborted})
	if len(acts) != 2 || acts[0] != (maEndTransfer{}) || acts[1] != (maDrop{}) || s.status() != statusGone {
		t.Errorf("aborted after the vote: %#v, answers %d", acts, s.status())
	}
}

// An announcement begins nothing anew where the session is in a later epoch, or has voted.
func TestAnnouncementTakesNothingBack(t *testing.T) {
	s := &memberSession{}
	s.step(mvAnnounced{epoch: 2})
	if acts := s.step(mvAnnounced{epoch: 1}); len(acts) != 0 || s.epoch != 2 {
		t.Errorf("announced with an older epoch: %#v, epoch %d", acts, s.epoch)
	}
	s = votedSession(t)
	if acts := s.step(mvAnnounced{epoch: 2}); len(acts) != 0 || s.status() != statusVoted {
		t.Errorf("announced after the vote: %#v, answers %d", acts, s.status())
	}
}

// The root's word comes before the last block.
func TestNoVoteBeforeEveryBlockIsHere(t *testing.T) {
	s := &memberSession{}
	s.step(mvAnnounced{epoch: 1})
	if acts := s.step(mvRoot{1, [32]byte{1}}); len(acts) != 0 || s.status() != statusReceiving {
		t.Errorf("the root's word alone leads to %#v, answers %d", acts, s.status())
	}
	if acts := s.step(mvWhole{}); len(acts) != 1 || acts[0] != (maCheck{[32]byte{1}}) || s.status() != statusChecking {
		t.Errorf("the last block leads to %#v, answers %d", acts, s.status())
	}
}

// A member checks by the root's word of the epoch that it is in.
func TestRootsWordOfAnotherEpochIsNotTaken(t *testing.T) {
	for _, epoch := range []uint32{0, 2} {
		s := &memberSession{}
		s.step(mvAnnounced{epoch: 1})
		s.step(mvWhole{})
		if acts := s.step(mvRoot{epoch, [32]byte{9}}); len(acts) != 0 || s.rootKnown {
			t.Errorf("the word of epoch %d is taken in epoch 1: %#v", epoch, acts)
		}
		if acts := s.step(mvRoot{1, [32]byte{1}}); len(acts) != 1 || acts[0] != (maCheck{[32]byte{1}}) {
			t.Errorf("the word of epoch 1 leads to %#v", acts)
		}
	}
}
