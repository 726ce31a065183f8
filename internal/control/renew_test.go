package control

import (
	"testing"
	"time"
)

// A certificate that is due because the cluster's time has jumped is renewed at the next look. Tries that fail or
// change nothing come less and less often.
func TestRenewalsAreTriedInTime(t *testing.T) {
	now := time.Unix(1000, 0)
	var r renewals
	if r.wanted(now, false, false) {
		t.Error("renewed for no reason")
	}
	if !r.wanted(now, false, true) {
		t.Error("not renewed though no peer talks to this node")
	}
	r.tried(now, true, false)
	if r.wanted(now.Add(renewCheck-1), false, true) || !r.wanted(now.Add(renewCheck), false, true) {
		t.Errorf("not renewed %v later, while no peer talks to this node", renewCheck)
	}
	if !r.wanted(now.Add(1), true, false) {
		t.Error("due, and not renewed at the next look")
	}
	if r.wanted(now.Add(1), false, false) || !r.wanted(now.Add(2), false, true) {
		t.Error("lost again, and not renewed at once")
	}
	for _, pause := range []time.Duration{renewCheck, 2 * renewCheck, 4 * renewCheck} {
		r.tried(now, false, true)
		if r.wanted(now.Add(pause-1), true, true) || !r.wanted(now.Add(pause), true, false) {
			t.Errorf("not tried again %v after a failure", pause)
		}
	}
	for range 20 {
		r.tried(now, true, true)
	}
	if r.wanted(now.Add(renewRetry-1), true, true) || !r.wanted(now.Add(renewRetry), true, false) {
		t.Errorf("not tried each %v in the end", renewRetry)
	}
}
