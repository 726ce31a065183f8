package consensus

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A stream is never silent for more than one and a half times its ping, and all streams ping at the same moments. One
// that sends enough by itself does not ping.
func TestPings(t *testing.T) {
	for _, every := range []time.Duration{0, 400 * time.Millisecond, 1300 * time.Millisecond} { // 0: it sends nothing
		synctest.Test(t, func(t *testing.T) {
			const ping = time.Second
			<-time.After(130 * time.Millisecond) // streams begin at any time
			ours, theirs := net.Pipe()
			s := newStreamPinging(ours, 1, ping)
			var sender sync.WaitGroup
			defer sender.Wait()
			defer s.close()
			defer theirs.Close()
			sender.Go(func() {
				for every > 0 && s.send(frameWant, func(b []byte) []byte { return appendNumber(b, 1) }) {
					<-time.After(every)
				}
			})
			pings, last := 0, time.Now()
			for end := last.Add(20 * time.Second); time.Now().Before(end); {
				kind, _, err := readFrame(theirs, maxFrame)
				if err != nil {
					t.Fatal(err)
				}
				if silent := time.Since(last); silent > 3*ping/2 {
					t.Errorf("frames each %v: silent for %v", every, silent)
				}
				last = time.Now()
				if kind == framePing {
					pings++
					if off := last.UnixNano() % int64(ping); off != 0 {
						t.Errorf("a ping %v after the moment of pings", time.Duration(off))
					}
				}
			}
			if every == 0 && pings < 20 || every == 400*time.Millisecond && pings > 0 {
				t.Errorf("frames each %v: %d pings", every, pings)
			}
		})
	}
}
