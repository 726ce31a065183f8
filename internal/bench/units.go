package bench

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

var byteUnits = []struct {
	name  string
	bytes float64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1}, {"", 1},
}

// ParseBytes reads a size like 64KiB, 1.5MiB, 10KB or 512. KiB, MiB, GiB and TiB are powers of 1024, KB, MB, GB and TB of 1000.
func ParseBytes(s string) (uint64, error) {
	for _, u := range byteUnits {
		digits, ok := cutSuffixFold(strings.TrimSpace(s), u.name)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if n := f * u.bytes; err == nil && n >= 0 && n <= 1<<60 && n == math.Trunc(n) {
			return uint64(n), nil
		}
		break
	}
	return 0, usage("size %q: give a number with B, KB, KiB, MB, MiB, GB, GiB or TiB, like 64KiB", s)
}

func cutSuffixFold(s, suffix string) (string, bool) {
	at := len(s) - len(suffix)
	if at < 0 || !strings.EqualFold(s[at:], suffix) {
		return s, false
	}
	return s[:at], true
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

// bytesText is a size as ParseBytes reads it, in the largest unit that divides it, else in bytes.
func bytesText(n uint64) string {
	for _, u := range byteUnits[:4] {
		if step := uint64(u.bytes); n >= step && n%step == 0 {
			return fmt.Sprintf("%d%s", n/step, u.name)
		}
	}
	for _, u := range byteUnits[4:8] {
		if step := uint64(u.bytes); n >= step && n%step == 0 {
			return fmt.Sprintf("%d%s", n/step, u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}

// rateText is bytes a second with three digits.
func rateText(perSec float64) string {
	for _, u := range byteUnits[4:8] {
		if perSec >= u.bytes {
			return fmt.Sprintf("%s %s/s", threeDigits(perSec/u.bytes), u.name)
		}
	}
	return fmt.Sprintf("%s B/s", threeDigits(perSec))
}

func threeDigits(f float64) string {
	switch {
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

// secondsText is a time with four digits or so.
func secondsText(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.3f s", s)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", s*1e3)
	}
	return fmt.Sprintf("%.0f µs", s*1e6)
}
