package ring

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// Peers send these bytes.
func TestGoldenAddress(t *testing.T) {
	a := address{slots: 16, receives: 8, slotBytes: 2112, ordered: true, key: 77, pair: []byte("pair")}
	codertest.Golden(t, map[string][]byte{"address": a.encode(),
		"unordered": (&address{slots: 2, receives: 1024, slotBytes: 1 << 16, key: 1 << 63, pair: []byte{1}}).encode()})
}
