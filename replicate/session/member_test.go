package session

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/meta/owed"
)

func TestAVoteIsReleasedByTheLogAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Member{}
		voted, decided, checking := false, Undecided, false
		published := rapid.Bool().Draw(t, "published")
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			var ev MemberEvent
			epoch := uint32(rapid.IntRange(0, 3).Draw(t, "epoch"))
			switch rapid.IntRange(0, 7).Draw(t, "event") {
			case 0:
				ev = Announced{epoch, published, [32]byte{1}}
			case 1:
				ev = Whole{}
			case 2:
				ev = HashTold{epoch, [32]byte{1}}
			case 3:
				if !checking {
					continue
				}
				var err error
				if rapid.Bool().Draw(t, "bad") {
					err = errors.New("bad")
				}
				checking, voted = false, voted || err == nil
				ev = Checked{err, owed.Failed}
			case 4:
				ev = StoreFailed{epoch, errors.New("disk"), owed.Full}
			case 5:
				ev = Stopped{epoch, rapid.Bool().Draw(t, "drop")}
			case 6:
				if decided != Undecided {
					continue
				}
				decided = rapid.SampledFrom([]Verdict{Published, Aborted}).Draw(t, "verdict")
				ev = Decided{decided}
			case 7:
				if decided != Undecided || published {
					continue
				}
				decided = Aborted
				ev = Fenced{}
			}
			before := s.phase
			for _, act := range s.Step(ev) {
				switch act.(type) {
				case Keep:
					if voted || checking || s.phase != Gone {
						t.Fatal("what a fence leaves is more than blocks")
					}
				case Check:
					if checking {
						t.Fatal("two checks at a time")
					}
					checking = true
				case Drop:
					if voted && decided != Aborted {
						t.Fatalf("%T dropped a vote; the log says %d", ev, decided)
					}
					if checking {
						t.Fatal("dropped under a running check")
					}
				case Commit:
					if !voted || decided != Published {
						t.Fatalf("commit of voted %v, decided %d", voted, decided)
					}
				case Discard:
					if voted {
						t.Fatal("a vote was discarded")
					}
				}
			}
			if before == Voted && s.phase != Voted && s.phase != Gone {
				t.Fatalf("%T took a vote back to phase %d", ev, s.phase)
			}
			if s.status() == StatusVoted && !voted && decided != Published {
				t.Fatalf("answers voted without a vote, phase %d", s.phase)
			}
			if voted && decided == Undecided && s.phase != Voted {
				t.Fatalf("voted, undecided, in phase %d", s.phase)
			}
		}
	})
}

// votedSession is a session at a member that has voted in its second epoch.
func votedSession(t *testing.T) *Member {
	t.Helper()
	s := &Member{}
	s.Step(Announced{Epoch: 1})
	s.Step(Whole{})
	s.Step(HashTold{1, [32]byte{1}})
	if s.Step(Checked{}); s.phase != Voted {
		t.Fatalf("no vote, phase %d", s.phase)
	}
	return s
}

// The root gives the session up. Its publish may be in the log all the same.
func TestStopOfTheRootLeavesTheVote(t *testing.T) {
	s := votedSession(t)
	for _, act := range s.Step(Stopped{Epoch: 1, Drop: true}) {
		if _, drops := act.(Drop); drops {
			t.Error("the root's stop dropped a vote")
		}
	}
	if s.status() != StatusVoted {
		t.Fatalf("answers %d after the root's stop", s.status())
	}
	if acts := s.Step(Decided{Published}); len(acts) != 1 || acts[0] != (Commit{}) {
		t.Errorf("published after the root's stop: %#v", acts)
	}
}

// What the log has aborted is dropped, also with a vote.
func TestAbortDropsTheVote(t *testing.T) {
	s := votedSession(t)
	acts := s.Step(Decided{Aborted})
	if len(acts) != 2 || acts[0] != (EndTransfer{}) || acts[1] != (Drop{}) || s.status() != StatusGone {
		t.Errorf("aborted after the vote: %#v, answers %d", acts, s.status())
	}
}

// An announcement begins nothing again where the session is in a later epoch, or has voted.
func TestAnnouncementTakesNothingBack(t *testing.T) {
	s := &Member{}
	s.Step(Announced{Epoch: 2})
	if acts := s.Step(Announced{Epoch: 1}); len(acts) != 0 || s.epoch != 2 {
		t.Errorf("announced with an older epoch: %#v, epoch %d", acts, s.epoch)
	}
	s = votedSession(t)
	if acts := s.Step(Announced{Epoch: 2}); len(acts) != 0 || s.status() != StatusVoted {
		t.Errorf("announced after the vote: %#v, answers %d", acts, s.status())
	}
}

// The root's word comes before the last block.
func TestNoVoteBeforeEveryBlockIsHere(t *testing.T) {
	s := &Member{}
	s.Step(Announced{Epoch: 1})
	if acts := s.Step(HashTold{1, [32]byte{1}}); len(acts) != 0 || s.status() != StatusReceiving {
		t.Errorf("the root's word alone leads to %#v, answers %d", acts, s.status())
	}
	if acts := s.Step(Whole{}); len(acts) != 1 || acts[0] != (Check{[32]byte{1}}) || s.status() != StatusChecking {
		t.Errorf("the last block leads to %#v, answers %d", acts, s.status())
	}
}

// A member checks by the root's word of the epoch that it is in.
func TestRootsWordOfAnotherEpochIsNotTaken(t *testing.T) {
	for _, epoch := range []uint32{0, 2} {
		s := &Member{}
		s.Step(Announced{Epoch: 1})
		s.Step(Whole{})
		if acts := s.Step(HashTold{epoch, [32]byte{9}}); len(acts) != 0 || s.hashKnown {
			t.Errorf("the word of epoch %d is taken in epoch 1: %#v", epoch, acts)
		}
		if acts := s.Step(HashTold{1, [32]byte{1}}); len(acts) != 1 || acts[0] != (Check{[32]byte{1}}) {
			t.Errorf("the word of epoch 1 leads to %#v", acts)
		}
	}
}

// What an earlier life of a session has stored is a vote, and what the log has said of it is carried out.
func TestContentThatIsHereIsAVote(t *testing.T) {
	for _, decided := range []Verdict{Undecided, Published} {
		s := &Member{}
		s.Step(Announced{Epoch: 1, Published: true})
		s.Step(Decided{decided})
		acts := s.Step(Found{})
		if committed := len(acts) == 1 && acts[0] == (Commit{}); s.status() != StatusVoted ||
			committed != (decided == Published) {
			t.Errorf("decided %d: stands at %d, %v", decided, s.status(), acts)
		}
	}
}

// A session whose bytes can't be opened is over: nothing is here.
func TestUnopenedSessionIsOver(t *testing.T) {
	s := &Member{}
	s.Step(Announced{Epoch: 1})
	if acts := s.Step(Unopened{}); len(acts) != 0 || s.Phase() != Gone {
		t.Errorf("phase %d, %v", s.Phase(), acts)
	}
}

// A vote goes with the root to its next epoch.
func TestVoteFollowsTheEpochs(t *testing.T) {
	s := &Member{}
	s.Step(Announced{Epoch: 1})
	s.Step(Found{})
	if s.Step(Announced{Epoch: 2}); s.Standing().Epoch != 2 || s.Standing().Status != StatusVoted {
		t.Errorf("%+v", s.Standing())
	}
}
