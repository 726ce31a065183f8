package blockset

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// someRanges is a set of runs, some of which reach beyond so many blocks.
func someRanges(rng *rand.Rand, blocks uint64) (set Ranges) {
	for at := rng.Uint64N(70); at < blocks+70; {
		r := Range{First: at, Count: 1 + rng.Uint64N(200)}
		set = append(set, r)
		at = r.End() + 1 + rng.Uint64N(100)
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
			for b := r.First; b < r.End(); b++ {
				slow.Set(b)
			}
		}
		m := BitmapOf(blocks, set)
		if !slices.Equal(m.Present(), slow.Present()) || m.Count() != slow.Count() {
			t.Fatalf("seed %d: %d blocks with %v have %v, %d of them", seed, blocks, set, m.Present(), m.Count())
		}
		var want uint64
		for _, r := range asked {
			for b := r.First; b < r.End(); b++ {
				if slow.Has(b) {
					want++
				}
			}
		}
		if got := m.CountIn(asked); got != want {
			t.Fatalf("seed %d: %d of %v are in %v, want %d", seed, got, asked, set, want)
		}
	}
}

// TestEmptyBitmapTakesLittle bounds what a bitmap takes by the blocks that are set: its size may be a claim of the
// network.
func TestEmptyBitmapTakesLittle(t *testing.T) {
	const size = 1 << 32
	before := allocated()
	m := NewBitmap(size)
	for _, b := range []uint64{0, pageBlocks, size - 1} {
		m.Set(b)
	}
	copied := m.Clone()
	if took := allocated() - before; took > 1<<20 {
		t.Errorf("%d bytes for three blocks of %d, twice", took, m.Blocks())
	}
	want := Ranges{{First: 0, Count: 1}, {First: pageBlocks, Count: 1}, {First: size - 1, Count: 1}}
	if got := copied.Present(); !slices.Equal(got, want) {
		t.Errorf("has %v", got)
	}
	if copied.Blocks() != size || copied.Count() != 3 {
		t.Errorf("%d of %d", copied.Count(), copied.Blocks())
	}
}

// allocated is how many bytes this process has allocated until now.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// TestBitmapForm: the order of the bits, which nodes send to each other, and sets of other sizes.
func TestBitmapForm(t *testing.T) {
	m := NewBitmap(20)
	for _, b := range []uint64{0, 9, 19, 20, math.MaxUint64} {
		m.Set(b)
	}
	form := func(m *Bitmap) []byte { return m.bytes() }
	if !slices.Equal(form(m), []byte{1, 2, 8}) || m.Has(20) || m.Has(math.MaxUint64) {
		t.Errorf("%x", form(m))
	}
	if c := m.Clip(19); !slices.Equal(form(c), []byte{1, 2, 0}) || c.Count() != 2 {
		t.Errorf("%x", form(c))
	}
	if c := m.Clip(33); !slices.Equal(form(c), []byte{1, 2, 8, 0, 0}) || c.Count() != 3 {
		t.Errorf("%x", form(c))
	}
	var none *Bitmap
	if none.Has(0) || none.Count() != 0 || none.Blocks() != 0 || none.Present() != nil || none.CountIn(All(3)) != 0 ||
		len(none.bytes()) != 0 || none.Clip(3).Blocks() != 3 {
		t.Error("a nil bitmap is not empty")
	}
}

func drawBitmap(t *rapid.T) *Bitmap {
	m := NewBitmap(rapid.Uint64Range(0, 300).Draw(t, "blocks"))
	for _, b := range rapid.SliceOf(rapid.Uint64Range(0, 310)).Draw(t, "set") {
		m.Set(b)
	}
	return m
}

// TestBitmapAsBytes: what was read has the blocks of what was written, and is written the same again.
func TestBitmapAsBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawBitmap(t)
		w := coder.Writer(nil, coder.Little)
		CodeBitmap(&w, &m, 400)
		var back *Bitmap
		r := coder.Reader(w.Written(), coder.Little)
		if CodeBitmap(&r, &back, 400); r.Finish() != nil {
			t.Fatal(r.Err())
		}
		if !slices.Equal(back.Present(), m.Present()) || back.Count() != m.Count() || back.Blocks() != (m.Blocks()+7)/8*8 {
			t.Fatalf("%v of %d read as %v of %d", m.Present(), m.Blocks(), back.Present(), back.Blocks())
		}
		again := coder.Writer(nil, coder.Little)
		if CodeBitmap(&again, &back, 400); !slices.Equal(again.Written(), w.Written()) {
			t.Fatalf("%x written again is %x", w.Written(), again.Written())
		}
	})
	long := coder.Writer(nil, coder.Little)
	m := NewBitmap(401)
	CodeBitmap(&long, &m, 400)
	r := coder.Reader(long.Written(), coder.Little)
	if CodeBitmap(&r, &m, 400); r.OK() || m != nil {
		t.Errorf("51 bytes are read as %d blocks", m.Blocks())
	}
}

// TestMissingIn holds what some of several sets lack against single blocks.
func TestMissingIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sets := make([]*Bitmap, rapid.IntRange(0, 3).Draw(t, "sets"))
		for i := range sets {
			sets[i] = drawBitmap(t)
		}
		blocks := rapid.Uint64Range(0, 400).Draw(t, "of")
		missing := MissingIn(blocks, sets)
		var want uint64
		for b := range blocks {
			lacks := slices.ContainsFunc(sets, func(m *Bitmap) bool { return !m.Has(b) })
			if missing.Has(b) != lacks {
				t.Fatalf("block %d missing: %t", b, missing.Has(b))
			}
			if lacks {
				want++
			}
		}
		if missing.Count() != want || missing.Blocks() != blocks {
			t.Fatalf("%d of %d missing, want %d of %d", missing.Count(), missing.Blocks(), want, blocks)
		}
	})
}
