package content

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
)

// What a session left is taken over by the next one of the same bytes: blocks that are there need not come again, and
// the content in the end is the same, also after the process has ended in between. Another shape takes nothing.
func TestBeginFrom(t *testing.T) {
	for _, reopen := range []bool{false, true} {
		dir := t.TempDir()
		s := openStore(t, dir, Options{})
		want := randomBytes(1, 5*BlockBytes+1000)
		shape := Shape{Size: int64(len(want))}
		r, err := s.Begin(testID(1), shape)
		must(t, err)
		for _, i := range []int64{0, 3, 5} {
			must(t, r.WriteBlock(i, blockOf(want, i), nil))
		}
		must(t, r.Close())
		if r, from, err := s.BeginFrom(testID(9), testID(1), Shape{Size: shape.Size + 1}); err != nil || from {
			t.Fatalf("another shape: %v %v", from, err)
		} else {
			must(t, r.Discard())
		}
		r, from, err := s.BeginFrom(testID(2), testID(1), shape)
		must(t, err)
		if !from || r.Missing() != 3 || !r.Has(0) || !r.Has(3) || !r.Has(5) {
			t.Fatalf("taken %v, %d blocks are missing", from, r.Missing())
		}
		if _, here := s.State(testID(1)); here {
			t.Error("it is still there")
		}
		if reopen {
			must(t, r.Close())
			must(t, s.Close())
			s = openStore(t, dir, Options{})
			r, err = s.Begin(testID(2), shape)
			must(t, err)
		}
		for _, i := range []int64{1, 2, 4} {
			must(t, r.WriteBlock(i, blockOf(want, i), nil))
		}
		root, err := r.Root(t.Context())
		must(t, err)
		must(t, r.Finish(t.Context(), root))
		must(t, s.Commit(testID(2)))
		got, err := s.Open(testID(2))
		must(t, err)
		buf := make([]byte, len(want))
		if _, err := got.ReadAt(buf, 0); err != nil || !bytes.Equal(buf, want) {
			t.Errorf("it reads other bytes: %v", err)
		}
		must(t, errors.Join(got.Close(), s.Close()))
	}
}

// Blocks that were not looked at in time are missing. The missing ones that are on the disk can still be sent.
func TestLeftBlocksOutOfTimeAreMissing(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	want := randomBytes(1, 3*BlockBytes)
	r, err := s.Begin(testID(1), Shape{Size: int64(len(want))})
	must(t, err)
	must(t, r.WriteBlock(1, blockOf(want, 1), nil))
	must(t, r.Close())
	r, err = s.Resume(testID(1))
	must(t, err)
	r.have, r.missing = blockset.NewBitmap(3), 3
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, r.verifyLeft(ctx))
	if r.Missing() != 3 {
		t.Errorf("%d blocks are missing without a look", r.Missing())
	}
	must(t, r.verifyLeft(t.Context()))
	if r.Missing() != 2 || !r.Has(1) {
		t.Errorf("%d blocks are missing after a look", r.Missing())
	}
	must(t, errors.Join(r.Discard(), s.Close()))
}

func blockOf(b []byte, i int64) []byte { return b[i*BlockBytes:][:blockLen(int64(len(b)), i)] }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
