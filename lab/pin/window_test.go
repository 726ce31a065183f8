package pin

import (
	"testing"

	"pgregory.net/rapid"
)

// TestPlanCoversEachByteOnce: the eager part and the fragments are the message, in order.
func TestPlanCoversEachByteOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(0, 1000).Draw(t, "size")
		fragment := rapid.Int64Range(1, 64).Draw(t, "fragment")
		base := rapid.Uint64Range(0, 200).Draw(t, "base")
		align := rapid.Bool().Draw(t, "align")
		p := newPlan(size, rapid.Int64Range(0, 1200).Draw(t, "offset"), fragment, base, align)
		at := p.offset
		for i := range p.count() {
			from, to := p.at(i)
			if from != at || to <= from || to-from > fragment {
				t.Fatalf("fragment %d is [%d, %d) after %d", i, from, to, at)
			}
			if align && i > 0 && (base+uint64(from))%uint64(fragment) != 0 {
				t.Fatalf("fragment %d begins off a boundary", i)
			}
			at = to
		}
		if at != size {
			t.Fatalf("ends at %d of %d", at, size)
		}
	})
}

func TestFragmentsGrow(t *testing.T) {
	for _, c := range []struct{ fragment, size, room, want int64 }{
		{256 << 10, 1 << 20, 1 << 62, 256 << 10},
		{256 << 10, 4 << 20, 1 << 62, 512 << 10},
		{256 << 10, 8 << 20, 1 << 62, 1 << 20},
		{256 << 10, 1 << 30, 1 << 62, 1 << 20},
		{256 << 10, 1 << 30, 4 << 20, 512 << 10},
		{256 << 10, 1 << 30, 1 << 20, 256 << 10},
		{256 << 10, 1 << 30, 100000, 96 << 10},
		{256 << 10, 1 << 30, 0, fragmentMin},
	} {
		if got := fragmentWithin(grown(c.fragment, c.size, c.room), c.room); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// TestWindowIsBounded: never more than depth fragments under way, and all end.
func TestWindowIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := window{
			plan:  newPlan(rapid.Int64Range(0, 500).Draw(t, "size"), 10, 7, 0, false),
			depth: rapid.Int64Range(1, 5).Draw(t, "depth"),
		}
		for !w.over() {
			if w.open() && (w.held() == 0 || rapid.Bool().Draw(t, "register")) {
				w.next++
			} else {
				w.done++
			}
			if w.held() < 0 || w.held() > w.depth || w.next > w.count() {
				t.Fatalf("%d under way of %d, depth %d", w.held(), w.count(), w.depth)
			}
		}
		if w.open() {
			t.Fatal("open after the end")
		}
	})
}
