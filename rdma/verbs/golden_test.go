package verbs

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// Peers send these bytes.
func TestGoldenAddress(t *testing.T) {
	var a address
	codertest.Fill(&a)
	codertest.Golden(t, map[string][]byte{"address": a.encode()})
}
