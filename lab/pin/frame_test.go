package pin

import (
	"errors"
	"math"
	"testing"
)

// TestMatchIsBounded: what a sender proposes can't overflow the places that the receiver makes of it.
func TestMatchIsBounded(t *testing.T) {
	for _, c := range []struct {
		size, at, fragment int64
		ok                 bool
	}{
		{1 << 20, 500000, 64 << 10, true},
		{1 << 20, 500000, math.MaxInt64, false},
		{math.MaxInt64, 0, 64 << 10, false},
		{1 << 20, 500000, fragmentMin - 1, false},
		{1 << 20, 1<<20 + 1, 64 << 10, false},
	} {
		f := frame{kind: kindMatch, strategy: Pipeline, size: c.size, at: c.at, fragment: c.fragment, depth: 1}
		if err := f.checkMatch(); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
