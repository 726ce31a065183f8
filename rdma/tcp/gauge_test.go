package tcp

import (
	"net"
	"testing"
)

func TestCarried(t *testing.T) {
	const text = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 10 1 0 0 0 0 0 0 11 1 0 0 0 0 0 0
  eth0:2000 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0
  eth1: 5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0
`
	if sent, got, ok := count([]byte(text), map[string]bool{"eth0": true, "eth1": true}); sent != 307 || got != 2005 || !ok {
		t.Errorf("%d sent, %d received, %t", sent, got, ok)
	}
	for _, name := range []string{"eth2", "face |bytes"} {
		if _, _, ok := count([]byte(text), map[string]bool{"eth0": true, name: true}); ok {
			t.Errorf("%q is known", name)
		}
	}
	var d Device
	if _, _, ok := d.Carried(); ok {
		t.Error("counters without a connection")
	}
	if name, ok := interfaceOf(net.IPv4(127, 0, 0, 1)); ok || name == "" {
		t.Errorf("the loopback device %q counts", name)
	}
}
