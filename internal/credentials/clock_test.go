package credentials

import (
	"testing"
	"time"
)

// A certificate that was signed by a clock far ahead serves those whose clocks are right, and the other way round:
// its beginning says nothing, only its end counts. The same for the authority.
func TestCertificateFromTheFuture(t *testing.T) {
	for _, ahead := range []time.Duration{40 * 24 * time.Hour, 10 * 365 * 24 * time.Hour} {
		a := newTestAuthority(t, NewClusterID())
		one, two := newTestIdentity(t, a, 1, testTime), newTestIdentity(t, a, 2, testTime.Add(ahead))
		two.now = clockAt(testTime)
		if c, s := handshake(t, two.ClientConfig(1, "p"), one.ServerConfig([]string{"p"}, false)); c != nil || s != nil {
			t.Errorf("signed %v ahead, calling: client %v, server %v", ahead, c, s)
		}
		if c, s := handshake(t, one.ClientConfig(2, "p"), two.ServerConfig([]string{"p"}, false)); c != nil || s != nil {
			t.Errorf("signed %v ahead, called: client %v, server %v", ahead, c, s)
		}
		if !two.RenewDue(testTime) {
			t.Errorf("a certificate that lasts %v too long is not renewed", ahead)
		}
		if one.RenewDue(testTime) || !one.RenewDue(testTime.Add(LeafValidity-RenewBefore)) {
			t.Error("an ordinary certificate is renewed at another time than ten days before its end")
		}
		early := testTime.Add(-ahead) // of a machine whose clock is behind, before it knows
		one.now, two.now = clockAt(early), clockAt(early)
		if c, s := handshake(t, one.ClientConfig(2, "p"), two.ServerConfig([]string{"p"}, false)); c != nil || s != nil {
			t.Errorf("%v behind: client %v, server %v", ahead, c, s)
		}
	}
}

// A machine whose clock is ahead can join: what its token says about the time is as good.
func TestJoinWithAClockAhead(t *testing.T) {
	a := newTestAuthority(t, NewClusterID())
	one := newTestIdentity(t, a, 1, testTime)
	token := NewToken(a.Cluster(), a.KeyHash(), testTime.Add(time.Hour))
	for _, off := range []time.Duration{0, 60 * 24 * time.Hour, -20 * 365 * 24 * time.Hour, 20 * 365 * 24 * time.Hour} {
		if c, s := handshake(t, JoinClientConfig(token, "j", clockAt(testTime.Add(off))),
			one.JoinServerConfig([]string{"j"})); c != nil || s != nil {
			t.Errorf("clock off by %v: client %v, server %v", off, c, s)
		}
	}
}
