package core

import (
	"math/rand/v2"
	"runtime"
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
		if seed%20 == 0 {
			blocks += pageBlocks - 500 // around the end of a page
		}
		set, asked := someRanges(rng, blocks), someRanges(rng, blocks)
		slow := NewBitmap(blocks)
		for _, r := range set {
			for b := r.First; b < r.end(); b++ {
				slow.Set(b)
			}
		}
		m := BitmapOf(blocks, set)
		if !slices.Equal(m.Present(), slow.Present()) || m.Count() != slow.Count() {
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

// TestEmptyBitmapTakesLittle bounds what a bitmap takes by the blocks that are set: its size may be a claim of the
// network.
func TestEmptyBitmapTakesLittle(t *testing.T) {
	before := allocated()
	m := NewBitmap(MaxMessageBlocks)
	for _, b := range []uint64{0, pageBlocks, MaxMessageBlocks - 1} {
		m.Set(b)
	}
	copied := m.Clone()
	if took := allocated() - before; took > 1<<20 {
		t.Errorf("%d bytes for three blocks of %d, twice", took, m.Blocks())
	}
	want := Ranges{{First: 0, Count: 1}, {First: pageBlocks, Count: 1}, {First: MaxMessageBlocks - 1, Count: 1}}
	if got := copied.Present(); !slices.Equal(got, want) {
		t.Errorf("has %v", got)
	}
	if got := copied.Present().Missing(copied.Blocks()).Count(); got != MaxMessageBlocks-3 {
		t.Errorf("lacks %d", got)
	}
}

// allocated is how many bytes this process has allocated until now.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}
