package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// FreeMemory is how many bytes of this machine's memory a program can take without swapping.
func FreeMemory() (uint64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("bench: free memory: %w", err)
	}
	return parseFreeMemory(string(b))
}

func parseFreeMemory(s string) (uint64, error) {
	for line := range strings.Lines(s) {
		value, ok := strings.CutPrefix(line, "MemAvailable:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 54)
		if err != nil {
			return 0, fmt.Errorf("bench: free memory: %w", err)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("bench: free memory: no MemAvailable")
}
