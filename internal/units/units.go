// Package units reads and writes sizes, rates and times for people.
package units

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

// ParseBytes reads a size like 64KiB, 1.5MiB, 10KB or 512. KiB, MiB, GiB and TiB are powers of 1024, KB, MB, GB and
// TB of 1000. The result is a whole number of bytes, at most 1<<60.
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
	return 0, fmt.Errorf("size %q: give a number with B, KB, KiB, MB, MiB, GB, GiB or TiB, like 64KiB", s)
}

func cutSuffixFold(s, suffix string) (string, bool) {
	at := len(s) - len(suffix)
	if at < 0 || !strings.EqualFold(s[at:], suffix) {
		return s, false
	}
	return s[:at], true
}

// Exact is a size as ParseBytes reads it, in the largest unit that divides it, else in bytes.
func Exact(n uint64) string {
	for _, u := range byteUnits[:8] {
		if step := uint64(u.bytes); n >= step && n%step == 0 {
			return fmt.Sprintf("%d%s", n/step, u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}

// Bytes is a size for people: three digits and a binary unit.
func Bytes(n int64) string {
	names := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	f, i := float64(n), 0
	for f >= 1000 && i < len(names)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%s %s", Digits(f), names[i])
}

// Rate is bytes a second with three digits and a decimal unit.
func Rate(perSec float64) string {
	for _, u := range byteUnits[4:8] {
		if perSec >= u.bytes {
			return fmt.Sprintf("%s %s/s", Digits(perSec/u.bytes), u.name)
		}
	}
	return fmt.Sprintf("%s B/s", Digits(perSec))
}

// PerSecond is how many bytes a second were moved; 0 if it took no time.
func PerSecond(bytes int64, took time.Duration) float64 {
	if took <= 0 {
		return 0
	}
	return float64(bytes) / took.Seconds()
}

// Digits is a number with three digits.
func Digits(f float64) string {
	switch {
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

// Seconds is a time with four digits or so.
func Seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.3f s", s)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", s*1e3)
	}
	return fmt.Sprintf("%.0f µs", s*1e6)
}
