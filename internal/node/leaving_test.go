package node

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
)

// G10: a planned end is announced as one, with the incarnation that ends. A node that was not let in or that failed
// announces nothing.
func TestGoodbye(t *testing.T) {
	lease := meta.Lease{Node: 3, Incarnation: 7}
	op := goodbye(lease, false)
	if op == nil || op.Node != 3 || op.Incarnation != 7 || op.Reason != "stopped" {
		t.Errorf("goodbye of %+v: %+v", lease, op)
	}
	if op := goodbye(meta.Lease{Node: 3}, false); op != nil {
		t.Errorf("goodbye of a node that was not let in: %+v", op)
	}
	if op := goodbye(lease, true); op != nil {
		t.Errorf("goodbye of a node that failed: %+v", op)
	}
}
