//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"fmt"
	"log/slog"
	"time"
)

// Defaults of Config.
const (
	peerTimeoutDefault     = 2 * time.Second
	receiverTimeoutDefault = 5 * time.Second
)

func (c Config) withDefaults() (Config, error) {
	if c.PeerTimeout < 0 || c.ReceiverTimeout < 0 || c.Port < 0 {
		return c, fmt.Errorf("verbs: negative time or port in the configuration")
	}
	if c.PeerTimeout == 0 {
		c.PeerTimeout = peerTimeoutDefault
	}
	if c.ReceiverTimeout == 0 {
		c.ReceiverTimeout = receiverTimeoutDefault
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.ReceiverTimeout = max(c.ReceiverTimeout, 2*retryOf(c.PeerTimeout).total())
	return c, nil
}

// retry is how a device repeats what is not acknowledged: count+1 attempts, each waits 4.096 us << shift.
type retry struct{ shift, count uint8 }

func (r retry) total() time.Duration {
	return time.Duration(r.count+1) * (4096 * time.Nanosecond << r.shift)
}

// retryOf finds the retry that takes least time over want. There are at least 4 attempts, as packets do get
// lost, and at most 7: the eighth means without end to some devices.
func retryOf(want time.Duration) retry {
	const shiftMin, shiftMax = 8, 24
	best := retry{shiftMax, 6}
	for shift := uint8(shiftMin); shift <= shiftMax; shift++ {
		for count := uint8(3); count <= 6; count++ {
			r := retry{shift, count}
			if r.total() >= want && r.total() < best.total() {
				best = r
			}
		}
	}
	return best
}
