package bench

import (
	"math"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/units"
)

// ParseBytes is units.ParseBytes whose errors match ErrUsage.
func ParseBytes(s string) (uint64, error) {
	n, err := units.ParseBytes(s)
	if err != nil {
		return 0, usage("%v", err)
	}
	return n, nil
}

// ParseSizes reads message sizes.
func ParseSizes(words []string) ([]uint64, error) {
	var out []uint64
	for _, w := range words {
		n, err := ParseBytes(w)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// ParseBlocks reads block sizes; auto is 0.
func ParseBlocks(words []string) ([]int, error) {
	var out []int
	for _, w := range words {
		if strings.EqualFold(w, Auto) {
			out = append(out, 0)
			continue
		}
		n, err := ParseBytes(w)
		if err != nil {
			return nil, err
		}
		if n < 1 || n > math.MaxInt32 {
			return nil, usage("block size %q: give 1 to 64MiB, or auto", w)
		}
		out = append(out, int(n))
	}
	return out, nil
}
