package node

import (
	"testing"
)

// An address that no other node can dial is refused before anything is made.
func TestAddressesThatOthersDial(t *testing.T) {
	for addr, good := range map[string]bool{
		"10.0.0.1:7400": true, "node.example:65535": true, "[fd00::1]:1": true,
		"10.0.0.1": false, "10.0.0.1:": false, ":7400": false, "0.0.0.0:7400": false, "10.0.0.1:0": false,
		"10.0.0.1:65536":        false,
		"10.0.0.1:port-of-none": false,
	} {
		if got, err := advertised(addr, ""); (err == nil) != good {
			t.Errorf("%s: %q, %v", addr, got, err)
		}
	}
}
