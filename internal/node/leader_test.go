package node

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

// dutyLeader is a leader of three nodes who looks around when the test says so, at a time that the test sets.
type dutyLeader struct {
	*duties
	t     *testing.T
	clock time.Time
	heard map[consensus.ID]consensus.Progress
	led   time.Time // when it last became the leader
	down  []meta.NodeID
}

func newDutyLeader(t *testing.T) *dutyLeader {
	l := &dutyLeader{t: t, clock: time.Now(), heard: map[consensus.ID]consensus.Progress{}}
	m := &members{now: func() time.Time { return l.clock }}
	never := func() bool { return false }
	l.duties = &duties{self: 1, members: m, now: m.now, freeing: never, due: never, log: slog.New(slog.DiscardHandler)}
	l.status = func() consensus.Status {
		return consensus.Status{Role: consensus.RoleLeader, Joint: true, LedSince: l.led, Progress: l.heard}
	}
	l.propose = func(_ context.Context, op meta.Op) (meta.Result, error) {
		if o, ok := op.(*meta.Down); ok {
			l.down = append(l.down, o.Node)
		}
		return meta.Result{}, nil
	}
	l.boot(1, 1, 1)
	return l
}

// boot sets the incarnations of the nodes 1, 2 and 3, which are up.
func (l *dutyLeader) boot(incarnations ...uint32) {
	b := &book{nodes: map[meta.NodeID]meta.Node{}, raft: map[meta.NodeID]consensus.ID{}}
	for i, inc := range incarnations {
		id := meta.NodeID(i + 1)
		b.add(meta.Node{ID: id, State: meta.NodeUp, Incarnation: inc, Store: [16]byte{byte(id)}})
	}
	l.members.current.Store(b)
}

func (l *dutyLeader) hear(nodes ...meta.NodeID) {
	for _, n := range nodes {
		l.heard[l.members.book().raft[n]] = consensus.Progress{LastSeen: l.clock}
	}
}

// pass lets time go by in which the nodes are heard.
func (l *dutyLeader) pass(d time.Duration, nodes ...meta.NodeID) {
	for end := l.clock.Add(d); l.clock.Before(end); {
		l.clock = l.clock.Add(dutyInterval)
		l.hear(nodes...)
		l.check(l.t.Context())
	}
}

func (l *dutyLeader) wantDown(when string, nodes ...meta.NodeID) {
	l.t.Helper()
	slices.Sort(l.down)
	if got := slices.Compact(l.down); !slices.Equal(got, nodes) {
		l.t.Errorf("%s: declared down %v, want %v", when, got, nodes)
	}
	l.down = nil
}

// A leader that was stopped, and heard nobody meanwhile, ends no incarnation of those who went on.
func TestStoppedLeaderDeclaresNobodyDown(t *testing.T) {
	l := newDutyLeader(t)
	l.pass(10*time.Second, 2, 3)
	l.wantDown("all are heard")
	l.clock = l.clock.Add(20 * time.Second)
	l.check(t.Context())
	l.wantDown("it was stopped")
	l.pass(leaseTime-dutyInterval, 2)
	l.wantDown("it listens again")
	l.pass(time.Second, 2)
	l.wantDown("one is silent", 3)
}

// Another node led for a moment between two looks, and may have heard who was silent here: such a node is certain that
// it is not declared down soon.
func TestLeaderThatLeadsAgainListensFirst(t *testing.T) {
	l := newDutyLeader(t)
	l.pass(10*time.Second, 2, 3)
	l.pass(leaseTime-dutyInterval, 2)
	l.led = l.clock
	l.pass(leaseTime-dutyInterval, 2)
	l.wantDown("it leads again")
	l.pass(time.Second, 2)
	l.wantDown("one is silent", 3)
}

// A node that is back is up in the log before its first sign of life comes to the leader; that incarnation is not
// ended at once.
func TestNodeThatCameUpHasTimeToBeHeard(t *testing.T) {
	l := newDutyLeader(t)
	l.pass(10*time.Second, 2)
	l.wantDown("one is silent", 3)
	l.boot(1, 1, 2)
	l.pass(leaseTime-dutyInterval, 2)
	l.wantDown("it came up")
	l.pass(time.Second, 2, 3)
	l.wantDown("it is heard")
	l.boot(1, 1, 3)
	l.pass(leaseTime+2*dutyInterval, 2)
	l.wantDown("it came up and went", 3)
}

// A leader that retires much, in proposals that take long, still notices soon that a node is silent.
func TestBusyLeaderDeclaresASilentNodeDown(t *testing.T) {
	for name, freeing := range map[string]bool{"much has expired": false, "much is freed": true} {
		t.Run(name, func(t *testing.T) {
			l := newDutyLeader(t)
			l.pass(10*time.Second, 2, 3)
			left := 262
			more := func() bool { return left > 0 }
			l.due, l.lastExpire = more, time.Time{}
			if freeing {
				l.freeing = more
			}
			propose := l.propose
			l.duties.propose = func(ctx context.Context, op meta.Op) (meta.Result, error) {
				if _, ok := op.(*meta.Expire); ok {
					left--
				}
				l.clock = l.clock.Add(150 * time.Millisecond)
				res, err := propose(ctx, op)
				res.Retired = 1
				return res, err
			}
			l.pass(5*time.Second, 2)
			l.wantDown("one is silent", 3)
			l.pass(3*time.Minute, 2)
			if left > 0 {
				t.Errorf("%d are left", left)
			}
		})
	}
}

// A leader that was stopped in the middle of a look, too, heard nobody meanwhile.
func TestLeaderStoppedInALookDeclaresNobodyDown(t *testing.T) {
	l := newDutyLeader(t)
	l.pass(10*time.Second, 2, 3)
	l.lastExpire = time.Time{}
	l.duties.propose = func(_ context.Context, op meta.Op) (meta.Result, error) {
		if o, ok := op.(*meta.Down); ok {
			l.down = append(l.down, o.Node)
		}
		l.clock = l.clock.Add(20 * time.Second)
		return meta.Result{}, nil
	}
	l.check(t.Context())
	l.clock = l.clock.Add(dutyInterval)
	l.check(t.Context())
	l.wantDown("it was stopped")
}
