package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The kinds of faults of a storm.
const (
	strikeKill    = "kill"         // SIGKILL, and a start later
	strikeStop    = "stop"         // SIGSTOP, and SIGCONT
	strikeRestart = "restart"      // SIGTERM, and a start at once
	strikeCut     = "cut"          // the link is down
	strikeMute    = "mute"         // what the node sends is lost
	strikeDeaf    = "deaf"         // what is sent to it is lost
	strikeDisk    = "slow disk"    // its file system stands still for most of the time
	strikeJoin    = "join"         // a machine with an empty directory
	strikeEvict   = "drain, evict" // the directory is removed then
	strikeCopy    = "copy"         // stopped, its directory copied, started
	strikePutBack = "put back"     // the directory is that copy again
	strikeRot     = "rot"          // stopped, a bit of a table of its state flipped, started
)

// strike is one fault of a storm.
type strike struct {
	kind  string
	node  int
	after time.Duration // since the end of the one before
	lasts time.Duration
	calm  bool // the writers pause while it is mended
	// and is a second node that is struck at the same time, -1 for none.
	and     int
	andKind string
}

func (k strike) String() string {
	if k.and < 0 {
		return fmt.Sprintf("%s node%d", k.kind, k.node+1)
	}
	return fmt.Sprintf("%s node%d and %s node%d", k.kind, k.node+1, k.andKind, k.and+1)
}

// planner draws the faults of a storm. What it draws depends only on the seed.
type planner struct {
	rand    *rand.Rand
	nodes   int   // members at the beginning
	members []int // those of now
	absent  []int // empty machines
	disks   int   // the first so many have a file system of their own
	bag     []string
	damage  bool
	made    int
	copied  int // whose directory was copied, -1 for none
}

func newPlanner(seed uint64, nodes, spares, disks int, damage bool) *planner {
	p := &planner{rand: rand.New(rand.NewPCG(seed, 0)), nodes: nodes, disks: disks, damage: damage, copied: -1}
	for i := range nodes + spares {
		if i < nodes {
			p.members = append(p.members, i)
		} else {
			p.absent = append(p.absent, i)
		}
	}
	return p
}

// The faults that come again and again: each of them once in a row, in a random order.
var strikesOfARound = []string{strikeKill, strikeKill, strikeStop, strikeStop, strikeRestart, strikeCut, strikeMute,
	strikeDeaf, strikeDisk, strikeJoin, strikeEvict}

// Two of these may strike at the same time.
var strikesInPairs = []string{strikeKill, strikeStop, strikeCut, strikeMute, strikeDeaf}

// next is the next fault.
func (p *planner) next() strike {
	k := strike{kind: p.kind(), and: -1, after: p.millis(200, 3000), lasts: p.millis(300, 9000), calm: p.rand.IntN(3) > 0}
	p.made++
	switch k.kind {
	case strikeJoin:
		k.node = p.absent[p.rand.IntN(len(p.absent))]
		p.absent = slices.DeleteFunc(p.absent, func(i int) bool { return i == k.node })
		p.members = append(p.members, k.node)
		return k
	case strikeEvict:
		k.node = p.member(p.copied)
		p.absent = append(p.absent, k.node)
		p.members = slices.DeleteFunc(p.members, func(i int) bool { return i == k.node })
		return k
	case strikeDisk:
		k.node = p.onDisk()
		return k
	case strikePutBack:
		k.node = p.copied
		p.copied = -1
		return k
	}
	k.node = p.member(-1)
	if k.kind == strikeCopy {
		p.copied = k.node
	}
	if slices.Contains(strikesInPairs, k.kind) && p.rand.IntN(4) == 0 {
		k.and, k.andKind = p.member(k.node), strikesInPairs[p.rand.IntN(len(strikesInPairs))]
	}
	return k
}

// kind draws a kind that is possible now. With damage a directory is copied early and put back later, and a state
// database rots.
func (p *planner) kind() string {
	if p.damage {
		switch p.made {
		case 1:
			return strikeCopy
		case 6:
			return strikePutBack
		case 4, 10:
			return strikeRot
		}
	}
	for {
		if len(p.bag) == 0 {
			p.bag = slices.Clone(strikesOfARound)
			p.rand.Shuffle(len(p.bag), func(i, j int) { p.bag[i], p.bag[j] = p.bag[j], p.bag[i] })
		}
		kind := p.bag[0]
		p.bag = p.bag[1:]
		switch {
		case kind == strikeJoin && len(p.absent) == 0, kind == strikeEvict && len(p.members) < p.nodes,
			kind == strikeDisk && p.onDisk() < 0:
			continue
		}
		return kind
	}
}

// member draws a member other than the given one.
func (p *planner) member(but int) int {
	for {
		if i := p.members[p.rand.IntN(len(p.members))]; i != but {
			return i
		}
	}
}

// onDisk is the first member that has a file system of its own, -1 if there is none.
func (p *planner) onDisk() int {
	for _, i := range p.members {
		if i < p.disks {
			return i
		}
	}
	return -1
}

func (p *planner) millis(from, to int) time.Duration {
	return time.Duration(from+p.rand.IntN(to-from)) * time.Millisecond
}

// A seed draws the same faults each time, and a plan keeps enough members.
func TestStormPlan(t *testing.T) {
	for seed := range uint64(50) {
		a, b := newPlanner(seed, 7, 2, 3, seed%2 == 0), newPlanner(seed, 7, 2, 3, seed%2 == 0)
		for range 100 {
			k, again := a.next(), b.next()
			if k != again {
				t.Fatalf("seed %d: %v and %v", seed, k, again)
			}
			if len(a.members) < 6 || len(a.members) > 9 || k.node == k.and {
				t.Fatalf("seed %d: %v with %d members", seed, k, len(a.members))
			}
		}
	}
}
