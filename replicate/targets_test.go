package replicate

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
)

// TestNoSessionNumberIsGivenTwice: of two pushes one has read the incarnation that ends, and takes its number when
// the other one has taken the first number of the next.
func TestNoSessionNumberIsGivenTwice(t *testing.T) {
	now := meta.Lease{Node: 1, Incarnation: 1}
	var numbers sessionNumbers
	given := map[meta.ContentID]bool{}
	take := func() {
		id := numbers.next()
		if given[id] {
			t.Errorf("session %v is given twice", id)
		}
		given[id] = true
	}
	numbers.self = func() meta.Lease { return now }
	take()
	numbers.self = func() meta.Lease {
		read := now
		if now.Incarnation == 1 {
			now.Incarnation = 2
			take()
		}
		return read
	}
	take()
	take()
	if want := (meta.ContentID{Node: 1, Incarnation: 2, Seq: 4}); numbers.next() != want {
		t.Errorf("the numbers of an incarnation have gaps")
	}
}
