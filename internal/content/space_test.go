package content

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestSpaceOf(t *testing.T) {
	const reserve, block = 1 << 20, 4096
	for _, c := range []struct {
		name                string
		free, files, inodes uint64
		promised            int64
		level               Level
	}{
		{"room", 1000, 1000, 900, 0, LevelOK},
		{"room that is promised", 1000, 1000, 900, 1000*block - 2*reserve + 1, LevelLow},
		{"less than twice the reserve", 511, 1000, 900, 0, LevelLow},
		{"the reserve", 256, 1000, 900, 0, LevelFull},
		{"no inodes left", 1000, 1000, inodesMin - 1, 0, LevelFull},
		{"inodes are not counted", 1000, 0, 0, 0, LevelOK},
	} {
		st := unix.Statfs_t{Bsize: 16 * block, Frsize: block, Blocks: 2000, Bfree: c.free + 100, Bavail: c.free,
			Files: c.files, Ffree: c.inodes}
		if sp := spaceOf(&st, c.promised, reserve); sp.Level != c.level {
			t.Errorf("%s: %v, want %v", c.name, sp.Level, c.level)
		} else if sp.TotalBytes != 2000*block || sp.UnusedBytes != sp.FreeBytes+100*block ||
			sp.FreeBytes != int64(c.free)*block {
			t.Errorf("%s: %+v", c.name, sp)
		}
	}
}
