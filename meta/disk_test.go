package meta

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The reserve is small on a disk that is nearly empty, and taken whole before the disk is full, also if nothing is
// applied meanwhile.
func TestReserveGrowsInTime(t *testing.T) {
	dir := t.TempDir()
	d := newDisk(dir, 64<<20, nil)
	d.near = 0
	if err := d.prepare(dir, false); err != nil {
		t.Fatal(err)
	}
	reserve := func(when string, want int64) {
		t.Helper()
		fi, err := os.Stat(filepath.Join(dir, reserveName))
		if err != nil {
			t.Fatal(err)
		}
		if fi.Size() != want || d.low() {
			t.Errorf("%s: a reserve of %d MiB, want %d; low: %v", when, fi.Size()>>20, want>>20, d.low())
		}
	}
	if err := d.opened(); err != nil {
		t.Fatal(err)
	}
	reserve("much is free", reserveFew)
	d.keep()
	reserve("much is still free", reserveFew)
	d.near = math.MaxInt64
	if wait := d.keep(); wait != keepMin {
		t.Errorf("the next look is in %v, want %v", wait, keepMin)
	}
	reserve("little is free", 64<<20)
	d.near = 0
	reserve("much is free again", 64<<20)

	free, err := freeBytes(dir)
	if err != nil {
		t.Fatal(err)
	}
	d.near = free - 12<<30
	if wait := d.keep(); wait < keepMin || wait > 4*time.Second {
		t.Errorf("with 12 GiB to go, the next look is in %v", wait)
	}
}
