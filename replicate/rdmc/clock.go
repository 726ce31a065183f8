package rdmc

import "time"

// look passes the time to the core, before something happens to it. The lock is held.
func (g *Group) look() { g.core.SetClock(time.Now()) }

// pace arranges that the core is advanced when its cap allows the next send. The lock is held. Meanwhile that time may
// have come.
func (g *Group) pace() (again bool) {
	at := g.core.WakeAt()
	if at.IsZero() || g.core.Ended() {
		return false
	}
	if now := time.Now(); !now.Before(at) {
		g.core.Advance(now)
		return true
	}
	if g.timer == nil {
		g.timer = time.AfterFunc(time.Until(at), g.paced)
	} else {
		g.timer.Reset(time.Until(at))
	}
	return false
}

// paced runs when the time has come.
func (g *Group) paced() {
	g.mu.Lock()
	if !g.dead {
		g.drain() // pace looks at the clock
	}
	g.mu.Unlock()
	g.engine.turns.run()
}
