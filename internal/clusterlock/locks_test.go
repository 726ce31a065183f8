package clusterlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	shared    = filelock.Shared
	exclusive = filelock.Exclusive
)

func bubble(t *testing.T, nodes int, do func(t *testing.T, c *testCluster, a, b *testNode)) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, nodes)
		do(t, c, c.nodes[0], c.nodes[1])
	})
}

// later begins a call that waits, and returns its answer.
func later(t *testing.T, n *testNode, ino uint64, l filelock.Lock) <-chan filelock.Answer {
	out := make(chan filelock.Answer, 1)
	go func() { out <- n.take(t, ino, l, true) }()
	synctest.Wait()
	return out
}

func want(t *testing.T, got, want filelock.Answer, what string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: answer %d, want %d", what, got, want)
	}
}

func waits(t *testing.T, c <-chan filelock.Answer, what string) {
	t.Helper()
	synctest.Wait()
	select {
	case a := <-c:
		t.Errorf("%s: answer %d, and it is to wait", what, a)
	default:
	}
}

// A file that only one node locks costs one log entry, however often it is locked.
func TestOneEntryForAFileOfOneNode(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		for i := range 100 {
			l := flock(uint64(i), exclusive)
			want(t, a.take(t, 7, l, i%2 == 0), filelock.Granted, "lock")
			a.unlock(t, 7, l)
		}
		if n := a.count(); n != 1 {
			t.Errorf("%d log entries, want 1", n)
		}
	})
}

func TestNodesExcludeEachOther(t *testing.T) {
	for name, of := range map[string]func(uint64, filelock.Mode) filelock.Lock{
		"flock":  flock,
		"record": func(o uint64, m filelock.Mode) filelock.Lock { return record(o, m, 3, 9) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
				l := of(1, exclusive)
				want(t, a.take(t, 7, l, false), filelock.Granted, "first")
				want(t, b.take(t, 7, of(1, shared), false), filelock.Refused, "second")
				got := later(t, b, 7, of(1, exclusive))
				waits(t, got, "second")
				want(t, a.take(t, 7, of(2, shared), false), filelock.Refused, "another program of the first node")
				a.unlock(t, 7, l)
				want(t, <-got, filelock.Granted, "second, when the first has given it back")
				want(t, a.take(t, 7, l, false), filelock.Refused, "first again")
				b.locks.CloseHandle(t.Context(), 7, 1, 1)
				want(t, a.take(t, 7, l, false), filelock.Granted, "after a close")
			})
		})
	}
}

func TestSharedLocksOfNodes(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		want(t, a.take(t, 7, flock(1, shared), false), filelock.Granted, "first")
		want(t, b.take(t, 7, flock(1, shared), false), filelock.Granted, "second")
		want(t, a.take(t, 7, record(1, exclusive, 0, 4), false), filelock.Granted, "a record lock")
		want(t, b.take(t, 7, record(1, exclusive, 5, 9), false), filelock.Granted, "of another range")
		l, found, err := a.locks.Conflict(t.Context(), nil, 7, record(2, shared, 0, 9))
		if err != nil || !found || l.First != 0 || l.End != 4 {
			t.Errorf("conflict %+v %v %v", l, found, err)
		}
		l, found, err = b.locks.Conflict(t.Context(), nil, 7, record(1, shared, 0, 9))
		if err != nil || !found || l.End != 4 || l.PID != 0 {
			t.Errorf("conflict of another node %+v %v %v", l, found, err)
		}
	})
}

// Owners of several nodes and files, one of which waits for another one of its own node.
func TestDeadlockOverNodes(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		x := func(owner uint64) filelock.Lock { return record(owner, exclusive, 0, 9) }
		want(t, a.take(t, 1, x(1), false), filelock.Granted, "a1 file 1")
		want(t, a.take(t, 2, x(2), false), filelock.Granted, "a2 file 2")
		want(t, b.take(t, 3, x(1), false), filelock.Granted, "b1 file 3")
		first := later(t, a, 2, x(1)) // of its own node
		second := later(t, b, 1, x(1))
		waits(t, first, "a1 for a2")
		waits(t, second, "b1 for a1")
		want(t, a.take(t, 3, x(2), true), filelock.Deadlock, "a2 for b1 closes the circle")
		a.unlock(t, 2, x(2))
		want(t, <-first, filelock.Granted, "a1")
		a.unlock(t, 1, x(1))
		want(t, <-second, filelock.Granted, "b1")
	})
}

func TestAFenceEndsLocksAndGrantsThem(t *testing.T) {
	bubble(t, 3, func(t *testing.T, c *testCluster, a, b *testNode) {
		want(t, a.take(t, 7, flock(1, exclusive), false), filelock.Granted, "first")
		want(t, a.take(t, 8, flock(2, exclusive), false), filelock.Granted, "in a delegation")
		got := later(t, b, 7, flock(1, exclusive))
		waits(t, got, "second")
		a.setCut(true)
		a.fence()
		want(t, <-got, filelock.Granted, "after the fence")
		want(t, b.take(t, 8, flock(1, exclusive), false), filelock.Granted, "what was delegated")
		a.setCut(false)
		a.boot()
		if _, err := a.locks.Take(t.Context(), nil, 7, flock(1, exclusive), false); !errors.Is(err, ErrLost) {
			t.Errorf("the open file whose lock was lost: %v", err)
		}
		want(t, a.take(t, 7, flock(3, exclusive), false), filelock.Refused, "another open file")
		a.locks.CloseHandle(t.Context(), 7, 1, 1)
		b.unlock(t, 7, flock(1, exclusive))
		want(t, a.take(t, 7, flock(1, exclusive), false), filelock.Granted, "opened again")
	})
}

// A node that was fenced and does not know it grants nothing from its own table.
func TestANodeThatStoodStillGrantsNothing(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		l := flock(1, exclusive)
		want(t, a.take(t, 7, l, false), filelock.Granted, "first")
		a.unlock(t, 7, l)
		a.setDeaf()
		a.fence()
		want(t, b.take(t, 7, l, false), filelock.Granted, "second")
		if _, err := a.locks.Take(t.Context(), nil, 7, l, false); !errors.Is(err, ErrLost) {
			t.Errorf("a fenced node: %v", err)
		}
	})
}

func TestAnInterruptedRequestIsWithdrawn(t *testing.T) {
	for _, delegated := range []bool{false, true} {
		bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
			l := flock(1, exclusive)
			n := b
			if delegated {
				n = a
			}
			want(t, a.take(t, 7, l, false), filelock.Granted, "first")
			interrupted, got := make(chan struct{}), make(chan error, 1)
			other := flock(2, exclusive)
			go func() {
				_, err := n.locks.Take(t.Context(), interrupted, 7, other, true)
				got <- err
			}()
			synctest.Wait()
			close(interrupted)
			if err := <-got; !errors.Is(err, ErrInterrupted) {
				t.Errorf("interrupted: %v", err)
			}
			again := later(t, n, 7, other)
			waits(t, again, "repeated")
			a.unlock(t, 7, l)
			want(t, <-again, filelock.Granted, "repeated")
			want(t, a.take(t, 7, l, false), filelock.Refused, "beside the repeated one")
		})
	}
}

// What is answered in a snapshot is found in the state.
func TestAnswersInASnapshot(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		l := flock(1, exclusive)
		want(t, a.take(t, 7, l, false), filelock.Granted, "first")
		got := later(t, b, 7, l)
		b.setDeaf()
		a.unlock(t, 7, l)
		waits(t, got, "deaf")
		b.hear()
		want(t, <-got, filelock.Granted, "after the snapshot")
		a.setDeaf()
		recalled := later(t, b, 7, flock(2, exclusive))
		b.unlock(t, 7, l)
		want(t, <-recalled, filelock.Granted, "by the node's own table")

		want(t, a.take(t, 9, l, false), filelock.Granted, "another file")
		waiting := later(t, b, 9, l)
		waits(t, waiting, "for a recall that the holder does not hear")
		a.unlock(t, 9, l)
		waits(t, waiting, "for a recall that the holder does not hear")
		a.hear()
		want(t, <-waiting, filelock.Granted, "after the snapshot")
	})
}

// An unlock without a quorum is brought to the log later, and before the next lock.
func TestUnlockIsRetried(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		l := flock(1, exclusive)
		want(t, a.take(t, 7, l, false), filelock.Granted, "first")
		want(t, b.take(t, 7, l, false), filelock.Refused, "second")
		a.setCut(true)
		done := make(chan struct{})
		go func() {
			a.unlock(t, 7, l)
			close(done)
		}()
		pause(t.Context(), nil, time.Second)
		want(t, b.take(t, 7, l, false), filelock.Refused, "the log has no unlock yet")
		a.setCut(false)
		<-done
		want(t, b.take(t, 7, l, false), filelock.Granted, "after the unlock")
	})
}

// An upgrade of an flock gives the old one back first, also when it is in the log.
func TestUpgradeOverNodes(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		want(t, a.take(t, 7, flock(1, shared), false), filelock.Granted, "a")
		want(t, b.take(t, 7, flock(1, shared), false), filelock.Granted, "b")
		want(t, a.take(t, 7, flock(1, exclusive), false), filelock.Refused, "a's upgrade")
		want(t, b.take(t, 7, flock(1, exclusive), false), filelock.Granted, "b's upgrade")
		if a.locks.Holds(7, 1, 1) {
			t.Error("a still believes that it holds the lock")
		}
	})
}

// A fence of a node with thousands of locks frees them all, in entries that are bounded.
func TestAFenceOfThousands(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		const files = 1500
		for ino := uint64(1000); ino < 1000+files; ino++ {
			want(t, a.take(t, ino, flock(1, exclusive), false), filelock.Granted, "lock")
		}
		a.fence()
		got := later(t, b, 1000+files-1, flock(1, exclusive))
		want(t, <-got, filelock.Granted, "the last one")
		sweeps := 0
		for ; c.db.Freeing(); sweeps++ {
			c.apply(meta.Entry{Op: &meta.Expire{}})
		}
		if sweeps == 0 || sweeps > files/500 {
			t.Errorf("%d sweeps", sweeps)
		}
		for ino := uint64(1000); ino < 1000+files-1; ino++ {
			if have, err := c.db.FileLocks(meta.Ino(ino)); err != nil || have.Holder != (meta.Lease{}) {
				t.Fatalf("file %d: %+v %v", ino, have, err)
			}
		}
	})
}

// What waits for a lock of a file without a name goes with it when it gets one.
func TestWaitsOfAFileThatGetsAName(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		const unnamed = 1<<60 + 1
		want(t, a.take(t, unnamed, flock(1, exclusive), false), filelock.Granted, "first")
		got := make(chan error, 1)
		go func() {
			_, err := a.locks.Take(t.Context(), nil, unnamed, flock(2, exclusive), true)
			got <- err
		}()
		synctest.Wait()
		a.locks.Rename(1, unnamed, 7)
		synctest.Wait()
		want(t, b.take(t, 7, flock(1, shared), false), filelock.Refused, "another node")
		a.fence()
		want(t, b.take(t, 7, flock(1, exclusive), false), filelock.Granted, "another node after a fence")
		a.boot()
		synctest.Wait()
		select {
		case err := <-got:
			t.Errorf("who waited has the lock beside another node: %v", err)
		default:
		}
		b.unlock(t, 7, flock(1, exclusive))
		if err := <-got; err != nil {
			t.Errorf("who waited: %v", err)
		}
		want(t, b.take(t, 7, flock(1, shared), false), filelock.Refused, "beside who waited")
	})
}

// A request that changes a lock is given up, and granted before the log knows that: it leaves nothing, if the file was
// closed meanwhile.
func TestAnAbandonedChangeLeavesNothing(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		mine, theirs := record(1, shared, 0, 9), record(1, shared, 0, 9)
		want(t, a.take(t, 7, mine, false), filelock.Granted, "first")
		want(t, b.take(t, 7, theirs, false), filelock.Granted, "second")
		interrupted, got := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := a.locks.Take(t.Context(), interrupted, 7, record(1, exclusive, 0, 9), true)
			got <- err
		}()
		synctest.Wait()
		a.setCut(true)
		close(interrupted)
		if err := <-got; !errors.Is(err, ErrInterrupted) {
			t.Errorf("interrupted: %v", err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		a.locks.CloseHandle(gone, 7, 1, 1)
		b.unlock(t, 7, theirs)
		synctest.Wait()
		a.setCut(false)
		if err := a.locks.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, a.take(t, 7, record(2, exclusive, 0, 9), false), filelock.Granted, "another program of the node")
	})
}

// A program can't have more locks than the log takes back from its node, also by unlocks that cut one in two.
func TestUnlocksThatCut(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *testCluster, a, b *testNode) {
		want(t, a.take(t, 7, record(1, exclusive, 0, everything), false), filelock.Granted, "all")
		cuts := 0
		for ; cuts < 3*meta.NodeLocksMax; cuts++ {
			l := record(1, exclusive, uint64(2*cuts+1), uint64(2*cuts+1))
			if !a.locks.CanUnlock(7, l) {
				break
			}
			a.unlock(t, 7, l)
		}
		if cuts != meta.NodeLocksMax-1 {
			t.Errorf("%d unlocks that cut", cuts)
		}
		want(t, b.take(t, 7, record(1, exclusive, 0, 0), false), filelock.Refused, "another node")
		got := later(t, b, 7, record(1, exclusive, 0, everything))
		if all := record(1, exclusive, 0, everything); !a.locks.CanUnlock(7, all) {
			t.Error("not all at once")
		}
		a.locks.CloseHandle(t.Context(), 7, 1, 1)
		want(t, <-got, filelock.Granted, "another node, after the close")
	})
}
