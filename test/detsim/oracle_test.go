package detsim

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHolds: bytes are on a machine's disk as a whole file, or behind the description of their content.
func TestHolds(t *testing.T) {
	m := &machine{dir: t.TempDir()}
	dir := filepath.Join(m.dir, "content", "held", "01")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string]string{"1.data": "the whole file", "2.meta": "described: its end"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(raw), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for bytes, want := range map[string]bool{"the whole file": true, "its end": true, "the whole": false, "other": false} {
		if got := m.holds(stateOf([]byte(bytes))); got != want {
			t.Errorf("%q: %v, want %v", bytes, got, want)
		}
	}
}
