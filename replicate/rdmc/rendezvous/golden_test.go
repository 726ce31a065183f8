package rendezvous

import (
	"fmt"
	"testing"

	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// Programs on other hosts speak these bytes.
func TestGoldenFrames(t *testing.T) {
	messages := map[string][]byte{}
	for _, f := range sampleFrames() {
		messages[fmt.Sprintf("kind-%d", f.kind)] = f.appendBinary(nil)
	}
	codertest.Golden(t, messages)
}
