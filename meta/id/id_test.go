package id

import (
	"bytes"
	"cmp"
	"testing"

	"pgregory.net/rapid"
)

// TestContentForms: a content comes back from both of its forms, and its bytes sort as its fields do.
func TestContentForms(t *testing.T) {
	draw := func(t *rapid.T) Content {
		return Content{Node: Node(rapid.Uint32Max(3).Draw(t, "node")), Incarnation: rapid.Uint32().Draw(t, "incarnation"),
			Seq: rapid.Uint64().Draw(t, "seq")}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t), draw(t)
		if got := ContentFromBytes(a.Bytes()); got != a {
			t.Fatalf("%v from the bytes of %v", got, a)
		}
		if got, err := ParseContent(a.String()); got != a || err != nil {
			t.Fatalf("%v from %q: %v", got, a, err)
		}
		x, y := a.Bytes(), b.Bytes()
		want := cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.Seq, b.Seq))
		if bytes.Compare(x[:], y[:]) != want {
			t.Fatalf("%v and %v sort otherwise than their bytes", a, b)
		}
	})
	for _, bad := range []string{"", "00", (Content{}).String() + "0", "zz" + (Content{}).String()[2:]} {
		if c, err := ParseContent(bad); err == nil {
			t.Errorf("%q is %v", bad, c)
		}
	}
}
