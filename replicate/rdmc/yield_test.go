package rdmc

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

const yieldBudget = 1 << 20

// yieldCluster is n engines with a budget of registered memory. Time is virtual.
func yieldCluster(t *testing.T, n int) *cluster {
	t.Helper()
	devices, _ := memDevices(t, n, mem.Config{Seed: 1})
	c := &cluster{t: t}
	for _, d := range devices {
		e, err := NewEngine(EngineConfig{Device: d, Memory: NewMemory(yieldBudget)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		c.engines = append(c.engines, e)
	}
	return c
}

// fillWith makes groups over the engines until there is no memory for another one. If used is set, each carries a
// message.
func (c *cluster) fillWith(cfg GroupConfig, used bool, engines ...int) (all [][]*Group) {
	c.t.Helper()
	for c.engines[engines[0]].memory.Free() >= 3*int64(cfg.BlockSize) {
		cfg.Number++
		groups := c.group(cfg, engines...)
		if used {
			transfers, sinks := multicast(c.t, groups, randomMemory(cfg.Number, 5*cfg.BlockSize, cfg.BlockSize))
			verify(c.t, transfers, sinks)
		}
		all = append(all, groups)
		<-time.After(time.Millisecond) // so that one is idle for longest
	}
	return all
}

// refusedGroup asks an engine for a group that finds no memory.
func refusedGroup(t *testing.T, e *Engine, cfg GroupConfig) {
	t.Helper()
	cfg.Number, cfg.Members, cfg.BlockSize = 99, []string{"a", "b"}, 2*cfg.BlockSize
	if _, err := e.NewGroup(cfg); !errors.Is(err, ErrMemory) {
		t.Fatalf("a group beyond the budget: %v", err)
	}
}

func wantYielded(t *testing.T, groups []*Group) {
	t.Helper()
	for _, g := range groups {
		var failure *GroupError
		if !errors.As(g.Err(), &failure) || failure.Reason != ReasonYielded || len(failure.Suspects) > 0 {
			t.Errorf("group %d, rank %d: %v, want that it yields", g.cfg.Number, g.cfg.Rank, g.Err())
		}
	}
}

func wantAlive(t *testing.T, groups []*Group) {
	t.Helper()
	for _, g := range groups {
		if g.Err() != nil {
			t.Errorf("group %d, rank %d: %v", g.cfg.Number, g.cfg.Rank, g.Err())
		}
	}
}

func abortAll(groups []*Group) {
	for _, g := range groups {
		g.Abort()
	}
}

// TestIdleGroupsYieldTheirMemory: a group that finds no memory has the one end that is idle for longest, at its root
// or at a member, on all of its members and without a suspect, and no more of them than it needs. When its owners
// have ended it there is room.
func TestIdleGroupsYieldTheirMemory(t *testing.T) {
	for name, at := range map[string]int{"root": 0, "member": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := yieldCluster(t, 3)
				cfg := GroupConfig{BlockSize: 64 << 10, Yields: true}
				all := c.fillWith(cfg, true, 0, 1, 2)
				refusedGroup(t, c.engines[at], cfg) // all were used just now
				synctest.Wait()
				for _, groups := range all {
					wantAlive(t, groups)
				}
				<-time.After(10 * yieldAfter)
				for range 3 { // what is about to be free is not asked for again
					refusedGroup(t, c.engines[at], cfg)
					synctest.Wait()
				}
				<-time.After(10 * time.Millisecond)
				wantYielded(t, all[0])
				for _, groups := range all[1:] {
					wantAlive(t, groups)
				}
				abortAll(all[0])
				groups := c.group(GroupConfig{BlockSize: 128 << 10, Number: 99}, 0, 1, 2)
				for _, groups := range append(all[1:], groups) {
					transfers, sinks := multicast(t, groups, randomMemory(2, 5<<16, groups[0].cfg.BlockSize))
					verify(t, transfers, sinks)
					closeAll(t, groups)
				}
			})
		})
	}
}

// TestWhoIsNeededYieldsNothing: a group keeps its memory that has a message under way, also where it is done but not
// at another member; whose members may still be connecting; or that was not made to yield.
func TestWhoIsNeededYieldsNothing(t *testing.T) {
	run := func(name string, cfg GroupConfig, used bool, idle time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := yieldCluster(t, 3)
				all := c.fillWith(cfg, used, 0, 1, 2)
				<-time.After(idle)
				refusedGroup(t, c.engines[1], cfg)
				<-time.After(time.Second)
				for _, groups := range all {
					wantAlive(t, groups)
					abortAll(groups)
				}
			})
		})
	}
	yields := GroupConfig{BlockSize: 64 << 10, Yields: true}
	run("not made to", GroupConfig{BlockSize: 64 << 10}, true, time.Hour)
	run("just made", yields, false, 5*time.Second)
	t.Run("not announced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := yieldCluster(t, 2)
			all := c.fillWith(yields, true, 0, 1)
			for _, groups := range all {
				if _, err := groups[0].Send(Outgoing{Size: 1000, Source: discard{}}); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(time.Minute) // the member knows of no message
			refusedGroup(t, c.engines[0], yields)
			refusedGroup(t, c.engines[1], yields)
			<-time.After(time.Second)
			for _, groups := range all {
				wantAlive(t, groups)
				abortAll(groups)
			}
		})
	})
	t.Run("under way", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := yieldCluster(t, 3)
			all := c.fillWith(yields, true, 0, 1, 2)
			slow := make(chan struct{})
			over := sync.OnceFunc(func() { close(slow) })
			defer over()
			var sent [][]*Transfer
			for _, groups := range all {
				tr, err := groups[0].Send(Outgoing{Size: 1000, Source: discard{}})
				if err != nil {
					t.Fatal(err)
				}
				transfers := []*Transfer{tr}
				for rank, sink := range []*memory{newMemory(1000, 64<<10), newMemory(1000, 64<<10)} {
					if rank == 1 {
						sink.fail = func(uint64) error { <-slow; return nil }
					}
					r, err := groups[1+rank].Receive(tr.Announcement(), Receiver{Sink: sink})
					if err != nil {
						t.Fatal(err)
					}
					transfers = append(transfers, r)
				}
				sent = append(sent, transfers)
			}
			<-time.After(time.Minute)
			for at := range 3 {
				refusedGroup(t, c.engines[at], yields)
			}
			<-time.After(time.Second)
			over()
			for i, groups := range all {
				for _, tr := range sent[i] {
					if err := tr.Wait(testContext(t)); err != nil {
						t.Error(err)
					}
				}
				closeAll(t, groups)
			}
		})
	})
}
