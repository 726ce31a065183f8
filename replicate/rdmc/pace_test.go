package rdmc

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// TestSlowSinkIsEjected has a member of a real group store slowly: the group fails with that member as the suspect,
// and who measured it has the evidence.
func TestSlowSinkIsEjected(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const n, victim, block = 4, 2, 4096
		c := newCluster(t, devices(n))
		told := make(chan Straggler, 16)
		groups := c.all(GroupConfig{Number: 1, BlockSize: block, Slow: SlowEject, SlowFactor: 3, SlowTime: 2 * time.Second,
			OnSlow: func(s Straggler) { told <- s }})
		tr, err := groups[0].Send(Outgoing{Size: 1 << 30, Source: discard{}})
		if err != nil {
			t.Fatal(err)
		}
		for rank, g := range groups[1:] {
			var to Sink = discard{}
			if rank+1 == victim {
				to = slowStore{}
			}
			if _, err := g.Receive(tr.Announcement(), Receiver{Sink: to}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // each stop of the process excuses the member for a while
		defer cancel()
		err = tr.Wait(ctx)
		var failure *GroupError
		if !errors.As(err, &failure) || failure.Reason != ReasonSlow || !slices.Equal(failure.Suspects, []int{victim}) {
			t.Fatalf("root: %v", err)
		}
		s := <-told
		t.Log(s)
		var cause *SlowError
		if err := groups[0].Err(); !errors.As(err, &cause) || cause.Straggler.Rank != victim {
			t.Errorf("reporter %d: %v", failure.Reporter, err)
		}
		if s.Rank != victim || s.Waiting < 0.5 {
			t.Errorf("evidence: %v", s)
		}
		parallel(t, groups, func(g *Group) error { g.Abort(); return nil })
	})
}

// slowStore takes 50 ms for a block.
type slowStore struct{ discard }

func (slowStore) WriteBlock(uint64, []byte) error {
	<-time.After(50 * time.Millisecond)
	return nil
}

// TestHeldUpIsTold holds the flag on the wire, and that it excuses for its time and no longer.
func TestHeldUpIsTold(t *testing.T) {
	var got controlMessage
	for _, held := range []bool{true, false} {
		m := controlMessage{epoch: 1, held: held}
		if err := decodeControl(m.appendBinary(nil), &got); err != nil || got.held != held {
			t.Errorf("held %t: got %t, %v", held, got.held, err)
		}
	}
	var p pace
	p.open(1)
	p.to(simStart)
	p.excused(simStart, 0, true)
	p.wait(simStart, 0)
	p.to(simStart.Add(excuseTime + time.Second))
	if s := p.lanes[0].total(); s.excused != excuseTime || s.waiting != time.Second {
		t.Errorf("%+v", s)
	}
}

// TestPaceForgetsWithoutAPolicy: paces are of the last rounds also where nobody is judged.
func TestPaceForgetsWithoutAPolicy(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	c := watcher(t, now)
	c.limits.slow, c.limits.slowTime = SlowIgnore, time.Second
	c.tick(now)
	c.pace.post(now, 0)
	c.pace.done(now.Add(10*time.Millisecond), 0, 1000)
	lane := &c.pace.lanes[0]
	if lane.total().bytes != 1000 {
		t.Fatalf("%+v", lane.total())
	}
	for range 2 * paceRounds {
		now = now.Add(time.Second / paceRounds)
		c.tick(now)
	}
	if got := lane.total().bytes; got != 0 {
		t.Errorf("%v bytes of long ago", got)
	}
}

// total is the sum of all rounds.
func (l *lanePace) total() (t paceSum) {
	for _, s := range l.sums {
		t.bytes += s.bytes
		t.sending += s.sending
		t.waiting += s.waiting
		t.excused += s.excused
	}
	return t
}
