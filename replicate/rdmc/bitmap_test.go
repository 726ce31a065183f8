package rdmc

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// someRanges is a set of runs, some of which reach beyond so many blocks.
func someRanges(rng *rand.Rand, blocks uint64) (set Ranges) {
	for at := rng.Uint64N(70); at < blocks+70; {
		r := Range{First: at, Count: 1 + rng.Uint64N(200)}
		set = append(set, r)
		at = r.end() + 1 + rng.Uint64N(100)
	}
	return set
}

// TestBitmapOfRanges holds what is done by words against what single blocks give.
func TestBitmapOfRanges(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		blocks := rng.Uint64N(1000)
		set, asked := someRanges(rng, blocks), someRanges(rng, blocks)
		slow := NewBitmap(blocks)
		for _, r := range set {
			for b := r.First; b < r.end(); b++ {
				slow.Set(b)
			}
		}
		m := BitmapOf(blocks, set)
		if !slices.Equal(m.words, slow.words) || m.Count() != slow.Count() {
			t.Fatalf("seed %d: %d blocks with %v have %v, %d of them", seed, blocks, set, m.Present(), m.Count())
		}
		var want uint64
		for _, r := range asked {
			for b := r.First; b < r.end(); b++ {
				if slow.Has(b) {
					want++
				}
			}
		}
		if got := overlap(m, asked); got != want {
			t.Fatalf("seed %d: %d of %v are in %v, want %d", seed, got, asked, set, want)
		}
	}
}
