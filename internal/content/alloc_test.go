package content

import "testing"

// Rows are made and read for each block of the data path.
func TestRowsDoNotAllocate(t *testing.T) {
	var scratch [rowBytes]byte
	var at place
	r := row{leaf: Hash{1}}
	if n := testing.AllocsPerRun(100, func() {
		b := r.append(scratch[:0], at.set(testID(1), 2))
		if got, ok := decodeRow(b, &at); !ok || got != r {
			t.Error(got, ok)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
