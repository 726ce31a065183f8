package rdmc

import "testing"

func FuzzSplitAddress(f *testing.F) {
	f.Add([]byte{1, 'a', 2, 'b', 'c'})
	f.Fuzz(func(t *testing.T, b []byte) {
		blocks, control, err := splitAddress(b)
		if err == nil && len(blocks)+len(control) > len(b) {
			t.Fatalf("%x: %x and %x", b, blocks, control)
		}
	})
}
