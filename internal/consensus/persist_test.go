package consensus

import (
	"fmt"
	"testing"
	"testing/synctest"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

// TestCommitIndexIsWrittenBeforeWhatFollowsIt: a move of the commit index alone is not written, but what is written
// later must not be found without it. A leader that had let two voters in, and lost its power, once began again as
// the only voter.
func TestCommitIndexIsWrittenBeforeWhatFollowsIt(t *testing.T) {
	disk := simfs.New()
	options := simOptions(1, disk)
	if err := raftlog.Create(options, raftlog.Base{Conf: &raftpb.ConfState{Voters: []uint64{1}}}); err != nil {
		t.Fatal(err)
	}
	log, _, err := raftlog.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(Config{Identity: Identity{ID: 1}})
	defer n.cancel(ErrClosed)
	n.persist.disk = log
	hard := func(commit uint64) *raftpb.HardState {
		return &raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(1)), Commit: new(commit)}
	}
	entry := func(index uint64) []*raftpb.Entry {
		return []*raftpb.Entry{{Index: new(index), Term: new(uint64(1)), Type: raftpb.EntryNormal.Enum()}}
	}
	for _, b := range []*raftlog.Batch{{Hard: hard(0), Entries: entry(1)}, {Hard: hard(1)}, {Entries: entry(2)},
		{Hard: hard(2)}} {
		if err := n.persist.write(b); err != nil {
			t.Fatal(err)
		}
	}
	options.FS = disk.PowerLoss(func(int) int { return 0 })
	log, state, err := raftlog.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if state.LastIndex() != 2 || state.Hard.GetCommit() != 1 {
		t.Fatalf("found %d entries, committed %d: entry 2 was written after 1 was known to be committed", state.LastIndex(),
			state.Hard.GetCommit())
	}
}

// TestEntriesAreWrittenWithTheCommitsBefore is the same for a whole node, whose moves of the commit index alone go by
// no disk.
func TestEntriesAreWrittenWithTheCommitsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		for i := range 10 {
			c.propose(1, fmt.Sprint("a", i))
		}
		disk := c.nodes[1].disk.PowerLoss(func(int) int { return 0 })
		log, state, err := raftlog.Open(raftlog.Options{FS: disk, Dir: "/raft", Identity: c.identity(1)})
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if last, commit := state.LastIndex(), state.Hard.GetCommit(); last < 10 || commit+1 < last {
			t.Fatalf("%d entries, committed %d: each was proposed when the one before was committed", last, commit)
		}
	})
}

// TestOldestVoterBeginsAgainUnderTheNewVoters: the first voter dies when two more have been let in, and these elect
// one of them. When it is back it must not elect itself, as the only voter that it once was.
func TestOldestVoterBeginsAgainUnderTheNewVoters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for round := range 5 {
			c := newCluster(t, 3, nil)
			c.waitVoters(3)
			for i := range round {
				c.propose(1, fmt.Sprint("before", i))
			}
			c.crash(1, func(int) int { return 0 })
			patient := ProposeOptions{Patient: true} // the election may take long on a slow machine
			c.proposeWith(2, "without", patient)
			c.start(1)
			for i := range 5 {
				c.proposeWith(ID(i%3+1), fmt.Sprint("after", i), patient)
			}
			c.converge()
			c.close()
		}
	})
}

// TestNewMemberSavesItsTerm: a log that begins after a base says nothing of terms; the first entries must not be
// found without their term in the hard state.
func TestNewMemberSavesItsTerm(t *testing.T) {
	state := &raftlog.State{Hard: &raftpb.HardState{},
		Base: raftlog.Base{Index: 10, Term: 3, Conf: &raftpb.ConfState{Voters: []uint64{1, 2}}}}
	core, err := core.New(core.Config{ID: 2, State: state, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int {
		return 0
	}})
	if err != nil {
		t.Fatal(err)
	}
	m := &raftpb.Message{Type: raftpb.MsgApp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(3)),
		LogTerm: new(uint64(3)),
		Index:   new(uint64(10)), Commit: new(uint64(10)),
		Entries: []*raftpb.Entry{{Index: new(uint64(11)), Term: new(uint64(3)), Type: raftpb.EntryNormal.Enum()}}}
	if err := core.Step(m); err != nil {
		t.Fatal(err)
	}
	for {
		out, ok := core.Ready()
		if !ok {
			t.Fatal("no append")
		}
		if out.Append == nil || len(out.Append.Entries) == 0 {
			continue
		}
		if out.Append.Hard.GetTerm() != 3 {
			t.Fatalf("entry of term 3 is appended with hard state %v", out.Append.Hard)
		}
		return
	}
}

// TestVoteIsOnDisk: a vote in the term that is written already is no move of the commit index alone. A voter that
// forgot it might vote twice in a term.
func TestVoteIsOnDisk(t *testing.T) {
	disk := simfs.New()
	options := simOptions(1, disk)
	if err := raftlog.Create(options, raftlog.Base{Conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}); err != nil {
		t.Fatal(err)
	}
	log, _, err := raftlog.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(Config{Identity: Identity{ID: 1}})
	defer n.cancel(ErrClosed)
	n.persist.disk = log
	for _, want := range []struct{ term, vote uint64 }{{5, 0}, {5, 3}, {6, 0}, {7, 2}} {
		hard := &raftpb.HardState{Term: new(want.term), Vote: new(want.vote), Commit: new(uint64(0))}
		if err := n.persist.write(&raftlog.Batch{Hard: hard}); err != nil {
			t.Fatal(err)
		}
		options.FS = disk.PowerLoss(func(int) int { return 0 })
		log, state, err := raftlog.Open(options)
		if err != nil {
			t.Fatal(err)
		}
		log.Close()
		if state.Hard.GetTerm() != want.term || state.Hard.GetVote() != want.vote {
			t.Fatalf("term %d and vote %d are acknowledged, on disk is %v", want.term, want.vote, state.Hard)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
}

func simOptions(id ID, disk *simfs.Disk) raftlog.Options {
	return raftlog.Options{Dir: "/raft", Identity: Identity{ID: id}, FS: disk, SegmentBytes: 64 << 10}
}
