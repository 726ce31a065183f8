package rdmc

import "runtime"

// full reports whether all blocks are set.
func full(m *Bitmap) bool { return m.Count() == m.Blocks() }

// allocated is how many bytes this process has allocated until now.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}
