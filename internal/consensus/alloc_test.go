package consensus

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
)

// Each proposal is forwarded, wrapped once, and opened at every node.
func TestProposalsAllocateOnce(t *testing.T) {
	p := core.Proposal{Origin: 1, Run: 2, Seq: 3, Data: make([]byte, 100)}
	buf, raw := make([]byte, 0, 1000), p.Envelope(4)
	for what, c := range map[string]struct {
		allocs float64
		do     func()
	}{
		"forward":  {0, func() { _ = appendForward(buf, &p) }},
		"envelope": {1, func() { _ = p.Envelope(4) }},
		"open":     {0, func() { _, _, _ = core.OpenEnvelope(raw) }},
		"frame":    {0, func() { _ = appendFrame(buf, framePing, nil) }},
	} {
		if got := testing.AllocsPerRun(100, c.do); got > c.allocs {
			t.Errorf("%s: %v allocations, at most %v", what, got, c.allocs)
		}
	}
}
