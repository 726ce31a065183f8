package mixed

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// Peers send these bytes.
func TestGoldenAddress(t *testing.T) {
	a := sampleAddress()
	b, err := a.encode()
	if err != nil {
		t.Fatal(err)
	}
	codertest.Golden(t, map[string][]byte{"address": b})
}
