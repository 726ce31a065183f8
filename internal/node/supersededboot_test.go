package node

import (
	"testing"
	"time"
)

// A call of a killed process that reaches the log late is no other process; one that overtakes again and again is.
func TestOvertaken(t *testing.T) {
	at := time.Unix(1000, 0)
	var o Overtaken
	for _, tc := range []struct {
		after  time.Duration
		cloned bool
	}{{0, false}, {overtakenTwice, false}, {time.Second, true}} {
		at = at.Add(tc.after)
		if got := o.Cloned(at); got != tc.cloned {
			t.Errorf("%v later: cloned %t, want %t", tc.after, got, tc.cloned)
		}
	}
}
