package detsim

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPowerLossLeavesWhatIsDurable: a name and bytes that were synced stay; what was not may be there or not, and a
// file that takes another's name is there, or the other one is.
func TestPowerLossLeavesWhatIsDurable(t *testing.T) {
	seen := map[string]int{}
	large := strings.Repeat("stays", wholeBytes)
	for seed := range uint64(200) {
		dir := t.TempDir()
		held := filepath.Join(dir, "held")
		if err := os.Mkdir(held, 0o700); err != nil {
			t.Fatal(err)
		}
		r := newRemains(dir)
		do := func(step, path string) {
			if err := r.step(step, path); err != nil {
				t.Fatal(err)
			}
		}
		write := func(name, text string) string {
			path := filepath.Join(held, name)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		move := func(from, to string) {
			do("rename", filepath.Join(held, from)+" -> "+filepath.Join(held, to))
			if err := os.Rename(filepath.Join(held, from), filepath.Join(held, to)); err != nil {
				t.Fatal(err)
			}
		}
		do("fsync", write("old", "old"))
		do("fsync", write("stays", large))
		do("fsync dir", held)
		do("fsync", write("new", "new"))
		do("fsync dir", held)
		move("new", "old")
		write("never", "never")
		gone := filepath.Join(held, "stays")
		do("unlink", gone)
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		out, err := r.lose(t.TempDir(), rng.IntN)
		if err != nil {
			t.Fatal(err)
		}
		text := func(name string) string {
			raw, err := os.ReadFile(filepath.Join(out.dir, "held", name))
			if err != nil {
				return "-"
			}
			return strings.ReplaceAll(string(raw), large, "stays")
		}
		switch moved := text("old") + " " + text("new"); moved {
		case "old new", "new -":
			seen[moved]++
		default:
			t.Fatalf("seed %d: old and new are %q", seed, moved)
		}
		seen["stays "+text("stays")]++
		seen["never "+text("never")]++
	}
	for _, want := range []string{"old new", "new -", "stays stays", "stays -", "never -", "never never", "never "} {
		if seen[want] == 0 {
			t.Errorf("never seen: %q in %v", want, seen)
		}
	}
}
