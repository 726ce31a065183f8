package consensus

import (
	"testing"
	"testing/synctest"
	"time"
)

// The loop counts the ticks that passed, but few if it stood still: one that stood still does not make up for it.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tick = 100 * time.Millisecond
		p := newPace(tick, 2)
		defer p.timer.Stop()
		for i, step := range []struct {
			plan  int           // 0: as before
			sleep time.Duration // in ms
			want  int
			fires time.Duration // in ms from the plan on, 0: not looked at
		}{
			{3, 50, 0, 300}, {0, 60, 1, 0}, {3, 100, 1, 290}, {0, 90, 1, 0}, {3, 300, 3, 300},
			{2, 5000, 2, 200}, {3, 99, 0, 300}, {1, 2, 1, 1}, {3, 700, 2, 299}, {9, 899, 8, 900}, {9, 5000, 2, 801},
		} {
			if step.plan > 0 {
				p.plan(step.plan, time.Now())
				if got := time.Until(p.armed); step.fires > 0 && got != step.fires*time.Millisecond {
					t.Errorf("step %d: fires in %v, want %v ms", i, got, int(step.fires))
				}
			}
			<-time.After(step.sleep * time.Millisecond)
			if got := p.passed(time.Now()); got != step.want {
				t.Errorf("step %d: %d ticks passed, want %d", i, got, step.want)
			}
		}
	})
}

// Nodes that nobody uses wake up for heartbeats only, and each of them about as often.
func TestIdleLoopsSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, nil)
		c.waitVoters(3)
		c.converge()
		<-time.After(5 * time.Second)
		turns, last := map[ID]int{}, map[ID]time.Time{}
		const looks = 1000
		for range looks {
			<-time.After(10 * time.Millisecond)
			for id, n := range c.nodes {
				if at := LastTurn(n.node); !at.Equal(last[id]) {
					last[id] = at
					turns[id]++
				}
			}
		}
		t.Log(turns, c.tune.Tick, c.tune.HeartbeatTicks)
		ticks := int(looks * 10 * time.Millisecond / c.tune.Tick)
		for id, n := range turns {
			if n > ticks*2/3 || n < ticks/20 {
				t.Errorf("node %d counted ticks %d times in the time of %d", id, n, ticks)
			}
		}
	})
}
