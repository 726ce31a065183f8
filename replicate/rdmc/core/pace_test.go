package core

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
)

// TestPace holds which time counts for the link and which for the room at its end.
func TestPace(t *testing.T) {
	var p pace
	p.open(2)
	at := func(ms int) time.Time { return simStart.Add(time.Duration(ms) * time.Millisecond) }
	p.to(at(0))
	p.post(at(10), 0)
	p.wait(at(20), 0) // the next one has no room; the one before is on its way
	p.done(at(30), 0)
	p.wait(at(45), -1)
	p.post(at(50), 1)
	p.done(at(57), 1)
	p.to(at(100))
	if got := p.lanes[0]; got.sending != 20*time.Millisecond || got.waiting != 15*time.Millisecond || got.flight != 0 {
		t.Errorf("%+v", got)
	}
	if got := p.lanes[1]; got.sending != 7*time.Millisecond || got.waiting != 0 {
		t.Errorf("%+v", got)
	}
}

// TestSimWhatTheRootWaitsFor: a root with one member distinguishes a slow link from a slow sink.
func TestSimWhatTheRootWaitsFor(t *testing.T) {
	const link, over = 25e6, 4 * time.Second
	for name, c := range map[string]struct {
		disturb func(u *universe, w *world)
		waits   bool
	}{
		"slow link": {func(u *universe, _ *world) { u.net.in[1] = link / 8 }, false},
		"slow sink": {func(_ *universe, w *world) { w.slowSink = map[int]time.Duration{1: 300 * time.Millisecond} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUniverse(2, link)
			w := u.group(1, 64<<10, share.PriorityNormal, func(int) Limits {
				l := bigLimits(0)
				l.Slots, l.Posted, l.Pins = 16, 8, 4
				return l
			}, 0, 1)
			c.disturb(u, w)
			u.message(w, 1, 1<<32, true)
			if err := u.run(over, never); err != nil {
				t.Fatal(err)
			}
			l := w.nodes[0].core.pace.lanes[0]
			if waits := l.waiting > l.sending; waits != c.waits || l.sending+l.waiting < over*9/10 {
				t.Errorf("blocks on their way for %v, room waited for for %v, of %v", l.sending, l.waiting, over)
			}
		})
	}
}
