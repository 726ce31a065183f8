package clusterlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
)

// truth is what programs were told that they hold, seen from outside.
type truth struct {
	t    *testing.T
	c    *testCluster
	mu   sync.Mutex
	held map[uint64][]claim
	told int
}

// claim is a lock that a program was told it holds, until it begins to give it back.
type claim struct {
	lease meta.Lease
	l     filelock.Lock
}

// claimed notes a lock of a program, and checks it against all others that are held by nodes that are up.
func (tr *truth) claimed(n *testNode, before meta.Lease, ino uint64, l filelock.Lock) bool {
	tr.c.mu.Lock() // no fence comes in between
	defer tr.c.mu.Unlock()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if n.Self() != before || !n.Alive(before) {
		return false // fenced meanwhile: the lock has ended
	}
	l.Owner.Node = uint32(n.id)
	for _, o := range tr.held[ino] {
		if n.Alive(o.lease) && o.l.Blocks(l) {
			tr.t.Errorf("file %d: node %d was told %+v, and node %d holds %+v", ino, n.id, l, o.lease.Node, o.l)
		}
	}
	tr.told++
	tr.dropLocked(ino, l.Kind, l.Owner)
	tr.held[ino] = append(tr.held[ino], claim{before, l})
	return true
}

func (tr *truth) drop(n *testNode, ino uint64, l filelock.Lock) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	l.Owner.Node = uint32(n.id)
	tr.dropLocked(ino, l.Kind, l.Owner)
}

func (tr *truth) dropLocked(ino uint64, kind filelock.Kind, owner filelock.Owner) {
	var left []claim
	for _, o := range tr.held[ino] {
		if o.l.Kind != kind || o.l.Owner != owner {
			left = append(left, o)
		}
	}
	tr.held[ino] = left
}

// Programs of three nodes lock few files while nodes are fenced, cut off, deaf and slow, and callers are interrupted.
// No two are ever told that they hold what excludes each other; and at the end, when all is well, all files are free.
func TestChaos(t *testing.T) {
	began, seeds, limit := time.Now(), uint64(100), 2*time.Minute
	if testing.Short() {
		seeds, limit = 10, 20*time.Second
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, seed) })
		})
		if t.Failed() {
			return
		}
		if time.Since(began) > limit {
			t.Logf("%d of %d seeds: the machine is slow", seed+1, seeds)
			return
		}
	}
}

func chaos(t *testing.T, seed uint64) {
	rng := &lockedRand{r: rand.New(rand.NewPCG(seed, 1))}
	c := newTestCluster(t, 3)
	for _, n := range c.nodes {
		n.delay = func() time.Duration { return time.Duration(rng.n(8)) * time.Millisecond }
	}
	tr := &truth{t: t, c: c, held: map[uint64][]claim{}}
	end := time.Now().Add(20 * time.Second)
	var work sync.WaitGroup
	for _, n := range c.nodes {
		for owner := uint64(1); owner <= 3; owner++ {
			work.Go(func() { program(t, rng, tr, n, owner, end) })
		}
		work.Go(func() { trouble(t, rng, n, end) })
	}
	work.Wait()
	for _, n := range c.nodes {
		if err := n.locks.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for c.db.Freeing() {
		c.apply(meta.Entry{Op: &meta.Expire{}})
	}
	for ino := uint64(1); ino <= 3; ino++ {
		l := flock(99, exclusive)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if a, err := c.nodes[0].locks.Take(ctx, nil, ino, l, true); a != filelock.Granted || err != nil {
			have, _ := c.db.FileLocks(meta.Ino(ino))
			t.Errorf("file %d is not free at the end: %v %v: %+v", ino, a, err, have)
		}
		cancel()
	}
	if tr.told < 20 {
		t.Errorf("only %d locks were granted", tr.told)
	}
}

type lockedRand struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (r *lockedRand) n(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.r.IntN(n)
}

// program locks and unlocks. It closes and opens its file when the locks of that were lost.
func program(t *testing.T, rng *lockedRand, tr *truth, n *testNode, owner uint64, end time.Time) {
	handle := owner
	for time.Now().Before(end) {
		ino := uint64(1 + rng.n(3))
		l := flock(owner, filelock.Mode(rng.n(2)))
		if rng.n(2) == 0 {
			first := rng.n(10)
			l = record(owner, filelock.Mode(rng.n(2)), uint64(first), uint64(first+rng.n(10-first)))
		}
		l.Handle = handle
		wait := rng.n(2) == 0
		interrupted := make(chan struct{})
		timer := time.AfterFunc(time.Duration(1+rng.n(400))*time.Millisecond, func() { close(interrupted) })
		before := n.Self()
		if l.Kind == filelock.Flock {
			tr.drop(n, ino, l) // a change of its mode may lose it
		}
		got, err := n.locks.Take(t.Context(), interrupted, ino, l, wait)
		timer.Stop()
		held := err == nil && got == filelock.Granted && tr.claimed(n, before, ino, l)
		if held || rng.n(3) == 0 {
			pause(t.Context(), nil, time.Duration(rng.n(50))*time.Millisecond)
		}
		switch {
		case errors.Is(err, ErrLost), rng.n(3) == 0:
			for ino := uint64(1); ino <= 3; ino++ {
				tr.drop(n, ino, flock(owner, shared))
				tr.drop(n, ino, record(owner, shared, 0, 9))
				n.locks.CloseHandle(t.Context(), ino, 1, handle)
			}
			handle += 10
		default:
			l.First, l.End = 0, everything
			tr.drop(n, ino, l)
			n.locks.Unlock(t.Context(), ino, l)
		}
	}
	for ino := uint64(1); ino <= 3; ino++ {
		n.locks.CloseHandle(t.Context(), ino, 1, handle)
		tr.drop(n, ino, flock(owner, shared))
		tr.drop(n, ino, record(owner, shared, 0, 9))
	}
}

// trouble makes a node fail in all ways, and takes that back at the end.
func trouble(t *testing.T, rng *lockedRand, n *testNode, end time.Time) {
	for time.Now().Before(end) {
		pause(t.Context(), nil, time.Duration(rng.n(3000))*time.Millisecond)
		what := rng.n(4)
		switch what {
		case 0:
			n.setCut(true)
		case 1:
			n.setDeaf()
		case 2:
			n.setDeaf()
			n.setCut(true)
			n.fence()
		default:
			n.fence()
		}
		pause(t.Context(), nil, time.Duration(rng.n(2000))*time.Millisecond)
		n.setCut(false)
		n.hear()
		if what >= 2 {
			n.boot()
		}
	}
}
