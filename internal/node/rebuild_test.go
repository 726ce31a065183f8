package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// A damaged state whose index can't be read any more is replaced by one that has all that is committed now: an older
// one is not served.
func TestRebuiltStateWithoutAKnownIndexIsCurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rebuilding{}
		asked := 0
		barrier := func(context.Context) (uint64, error) {
			if asked++; asked < 4 {
				return 0, errors.New("no leader yet")
			}
			return 77, nil
		}
		if err := r.learnPromised(t.Context(), barrier, func() error { return nil }); err != nil || r.promised != 77 {
			t.Fatal(r.promised, err)
		}
		if err := r.learnPromised(t.Context(), barrier, func() error { return nil }); err != nil || asked != 4 {
			t.Fatal("a known index is asked for", err)
		}
		ended := errors.New("the log stopped")
		r.promised, asked = 0, 0
		if err := r.learnPromised(t.Context(), barrier, func() error { return ended }); !errors.Is(err, ended) {
			t.Fatal(err)
		}
	})
}
