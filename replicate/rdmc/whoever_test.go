package rdmc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// toldBound is how long survivors are waited for in real time. What they are promised, some hundred milliseconds,
// TestFaults holds in virtual time, where a busy machine does not count.
const toldBound = 20 * time.Second

// suspectOf waits until a member knows that its group failed, and returns the failure and the suspects' ranks.
func suspectOf(t *testing.T, g *Group) (*GroupError, []int) {
	t.Helper()
	select {
	case <-g.Failed():
	case <-time.After(toldBound):
		t.Fatalf("rank %d was not told", g.cfg.Rank)
	}
	var failure *GroupError
	if !errors.As(g.Err(), &failure) {
		t.Fatalf("rank %d: %v", g.cfg.Rank, g.Err())
	}
	return failure, failure.Suspects
}

// TestDSN_4_6_WhoeverDies kills the root, relays and leaves in mid-transfer, in every algorithm: all others are
// notified, with the dead one as the suspect, and what they have is right.
func TestDSN_4_6_WhoeverDies(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const n, blocks = 8, 200
		for _, a := range schedule.Algorithms() {
			for _, victim := range []int{0, 1, 4, n - 1} {
				// the queue pairs report the death, long before the time of silence is over
				cfg := GroupConfig{Number: 1, BlockSize: 1000, Algorithm: a, SilenceTimeout: time.Minute}
				if a == schedule.Hybrid {
					cfg.Racks = []int{0, 0, 0, 1, 1, 1, 2, 2}
				}
				c := newCluster(t, devices(n))
				groups := c.all(cfg)
				src := randomMemory(1, blocks*1000, 1000)
				half := src.reach(blocks / 2)
				transfers, sinks := multicast(t, groups, src)
				<-half
				groups[victim].die()
				for rank, g := range groups {
					if rank == victim || transfers[rank].ended() {
						continue
					}
					if failure, suspects := suspectOf(t, g); !slices.Equal(suspects, []int{victim}) {
						t.Fatalf("%v, victim %d: rank %d: %v", a, victim, rank, failure)
					}
				}
				for _, g := range groups {
					g.Abort()
				}
				for rank, m := range sinks[1:] {
					if err := m.like(src); err != nil {
						t.Fatalf("%v, victim %d: rank %d: %v", a, victim, rank+1, err)
					}
				}
			}
		}
	})
}

// die is what the others see of the death of the member's process: all its connections end.
func (g *Group) die() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.links.ends {
		if blocks := g.links.ends[i].blocks.qp; blocks != nil {
			blocks.Abort()
		}
		g.links.ends[i].control.qp.Abort()
	}
}

// reach gives a channel that is closed when so many blocks have been read.
func (m *memory) reach(blocks int) <-chan struct{} {
	at := make(chan struct{})
	read := 0
	m.fail = func(uint64) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if read++; read == blocks {
			close(at)
		}
		return nil
	}
	return at
}

// ended reports whether the transfer has ended well.
func (t *Transfer) ended() bool {
	select {
	case <-t.Done():
		return t.Err() == nil
	default:
		return false
	}
}

// stream sends small and, now and then, large messages until the group fails; at is closed after so many.
func stream(t *testing.T, groups []*Group, count int, at chan struct{}) {
	reached := sync.OnceFunc(func() { close(at) }) // a message may be tried several times
	for i := 0; ; i++ {
		if i == count {
			reached()
		}
		var err error
		if i%40 == 39 {
			var tr *Transfer
			if tr, err = groups[0].Send(Outgoing{Size: 5000, Source: discard{}}); err == nil {
				for _, g := range groups[1:] {
					_, _ = g.Receive(tr.Announcement(), Receiver{Sink: discard{}}) // fails where the group did
				}
			}
		} else if _, err = groups[0].SendSmall(numbered(i)); errors.Is(err, ErrFull) {
			i--
			err = groups[0].WaitRoom(testContext(t))
		}
		if errors.Is(err, ErrFailed) {
			return
		}
		if err != nil {
			t.Errorf("message %d: %v", i, err)
			return
		}
	}
}

// checkPrefix holds that a member was given a prefix of what stream sends, in order, once, whole.
func (b *mailbox) checkPrefix(t *testing.T, what string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	i := 0
	for k, seq := range b.seqs {
		if i%40 == 39 {
			i++
		}
		if seq != uint64(i+1) || !bytes.Equal(b.data[k], numbered(i)) {
			t.Fatalf("%s: message %d was handed over in the place of %d, or has other bytes", what, seq, i+1)
		}
		i++
	}
}

// TestReport_3_1_SmallPeerDies: a member dies, or stops, in the middle of a stream of small messages with large ones
// between, in the root's star and in the tree. The root's calls end, all others learn whom to suspect, and each has a
// prefix.
func TestReport_3_1_SmallPeerDies(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		for _, n := range []int{4, core.StarMembers + 3} {
			for _, stops := range []bool{false, true} {
				if stops && n > 4 {
					continue // TestFaults has it, in virtual time
				}
				what := fmt.Sprintf("n=%d stops %t", n, stops)
				c := newCluster(t, devices(n))
				cfg := GroupConfig{BlockSize: 1000, SmallBytes: 600, SilenceTimeout: time.Minute}
				if stops {
					cfg.SilenceTimeout = 3 * time.Second
				}
				groups, boxes := smallGroups(t, c, cfg)
				victim := n - 2
				at := make(chan struct{})
				var root sync.WaitGroup
				root.Go(func() { stream(t, groups, 500, at) })
				<-at
				if stops {
					groups[victim].mu.Lock() // it says nothing, takes nothing, and is connected
				} else {
					groups[victim].die()
				}
				for rank, g := range groups {
					if rank == victim {
						continue
					}
					failure, suspects := suspectOf(t, g)
					if want := map[bool]Reason{false: ReasonDisconnected, true: ReasonSilent}[stops]; failure.Reason != want ||
						!slices.Equal(suspects, []int{victim}) {
						t.Errorf("%s: rank %d: %v", what, rank, failure)
					}
				}
				if stops {
					groups[victim].mu.Unlock()
				}
				root.Wait()
				for rank, g := range groups {
					g.Abort()
					boxes[rank].checkPrefix(t, fmt.Sprintf("%s: rank %d", what, rank))
				}
			}
		}
	})
}

// TestReport_3_1_SmallPeerDiesWhenAllIsFull: a member dies whose application takes nothing, when all places are taken.
// A caller that waits for room gets the failure.
func TestReport_3_1_SmallPeerDiesWhenAllIsFull(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		groups, boxes := smallGroups(t, c, GroupConfig{BlockSize: 1000, SmallBytes: 100, SilenceTimeout: time.Minute})
		block := make(chan struct{})
		boxes[2].mu.Lock()
		boxes[2].block = block
		boxes[2].mu.Unlock()
		defer close(block)
		fill(t, groups[0])
		room := make(chan error, 1)
		go func() { room <- groups[0].WaitRoom(testContext(t)) }()
		groups[2].die()
		if err := <-room; !errors.Is(err, ErrMemberFailed) {
			t.Errorf("waiting for room: %v", err)
		}
		for _, g := range groups[:2] {
			if failure, suspects := suspectOf(t, g); !slices.Equal(suspects, []int{2}) {
				t.Errorf("rank %d: %v", g.cfg.Rank, failure)
			}
		}
	})
}
