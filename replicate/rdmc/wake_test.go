package rdmc

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// bystander is a group of an engine that counts how often it is woken, and when. Woken, it wants nothing any more.
type bystander struct {
	*turn
	woken int
	at    time.Time
}

func newBystander(e *Engine) *bystander {
	b := &bystander{}
	b.turn = e.turns.newTurn(PriorityNormal, func() {
		b.woken, b.at = b.woken+1, time.Now()
		b.Rest(time.Now())
	})
	return b
}

// wait makes it send until it has to wait for its turn.
func (b *bystander) wait(t *testing.T, bytes int) {
	t.Helper()
	for range 100 {
		if !b.Ask(bytes, share.Unit, time.Now()) {
			return
		}
	}
	t.Fatal("it is never refused")
}

// wakeDelay is how long a message, or its completion, takes.
const wakeDelay = time.Millisecond

// wakeCase is a group whose engine is number at. Its member far stops before anything is sent to it.
type wakeCase struct {
	cfg     GroupConfig
	members int
	at, far int
	// hold makes the group send something that is not taken; free makes a call, or the time, end the bystander's wait.
	hold, free func(t *testing.T, groups []*Group)
	after      func(groups []*Group) time.Duration // of free, when the wait ends; nil for at once
}

func smallBytes(t *testing.T, groups []*Group) {
	t.Helper()
	if _, err := groups[0].SendSmall(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
}

// oneBlock sends a message of one block from the root.
func oneBlock(t *testing.T, groups []*Group) {
	t.Helper()
	if _, err := groups[0].Send(Outgoing{Size: 1000, Source: discard{}}); err != nil {
		t.Fatal(err)
	}
}

func wakeCases() map[string]wakeCase {
	pair := GroupConfig{BlockSize: 1000, SmallBytes: 100, Small: func(uint64, []byte) {}}
	capped, chain := pair, GroupConfig{BlockSize: 1000, SmallBytes: -1, Unannounced: true, Algorithm: schedule.Chain}
	capped.SendRate = 1000
	refusing := chain
	count := 0
	refusing.Incoming = func(uint64) (Sink, error) {
		if count++; count > 1 {
			return nil, errTest
		}
		return discard{}, nil
	}
	return map[string]wakeCase{
		"SendSmall": {cfg: pair, members: 2, far: 1, hold: smallBytes, free: smallBytes},
		"Fail": {cfg: pair, members: 2, far: 1, hold: smallBytes, free: func(_ *testing.T, groups []*Group) {
			groups[0].Fail(nil, errTest)
		}},
		"Connect": {cfg: pair, members: 2, far: 1, hold: smallBytes, free: func(t *testing.T, groups []*Group) {
			if groups[0].connectLane(t.Context(), 0, nil) == nil {
				t.Error("connected without an address")
			}
		}},
		"Close": {cfg: pair, members: 2, far: 1, hold: smallBytes, free: func(t *testing.T, groups []*Group) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_ = groups[0].Close(ctx) // aborts, and reports that it did
		}},
		"rate timer": {cfg: capped, members: 2, far: 1, hold: smallBytes, free: smallBytes,
			after: func(groups []*Group) time.Duration {
				groups[0].mu.Lock()
				defer groups[0].mu.Unlock()
				return time.Until(groups[0].core.WakeAt())
			}},
		"Incoming": {cfg: refusing, members: 3, at: 1, far: 2, hold: oneBlock, free: oneBlock,
			after: func([]*Group) time.Duration {
				return wakeDelay
			}},
	}
}

// TestOthersAreWokenAtOnce: what a call, a callback or the rate timer of a group gives or frees wakes the group of
// the same engine that waits for it then and there, not at the next tick, and nobody else. Time is virtual, and
// stands still while anybody can do something.
func TestOthersAreWokenAtOnce(t *testing.T) {
	for name, c := range wakeCases() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.run(t) })
		})
	}
}

func (c *wakeCase) run(t *testing.T) {
	devices, fabric := memDevices(t, c.members, mem.Config{Seed: 1, DelayMin: wakeDelay, DelayMax: wakeDelay})
	all := newCluster(t, devices)
	groups := all.all(c.cfg)
	<-time.After(10 * wakeDelay) // for the first credit
	fabric.Stop(strconv.Itoa(c.far))
	c.hold(t, groups)
	<-time.After(10 * wakeDelay)
	waiting, idle := newBystander(all.engines[c.at]), newBystander(all.engines[c.at])
	waiting.wait(t, 100)
	synctest.Wait()
	if waiting.woken > 0 {
		t.Fatal("it does not wait for the group")
	}
	began, after := time.Now(), time.Duration(0)
	c.free(t, groups)
	if c.after != nil {
		after = c.after(groups)
	}
	<-time.After(max(0, after-time.Since(began)) + 1)
	synctest.Wait()
	switch {
	case waiting.woken == 0:
		t.Errorf("not woken within %v, want after %v", time.Since(began), after)
	case waiting.woken > 1 || idle.woken > 0:
		t.Errorf("who waits was woken %d times, who does not %d times", waiting.woken, idle.woken)
	case waiting.at.Sub(began) != after:
		t.Errorf("woken after %v, want %v", waiting.at.Sub(began), after)
	}
	waiting.leave()
	idle.leave()
	fabric.Resume(strconv.Itoa(c.far))
	for _, g := range groups {
		g.Abort()
	}
}
