package units

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]uint64{
		"1": 1, "512B": 512, "64KiB": 65536, "64kib": 65536, " 1.5 MiB": 3 << 19, "10KB": 10_000, "2GB": 2e9, "1TiB": 1 << 40,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "KiB", "-1", "1.5", "64 kibble", "1e30", "NaN", "0x10"} {
		if got, err := ParseBytes(bad); err == nil {
			t.Errorf("%q: %d, %v", bad, got, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(0, 1<<50).Draw(t, "bytes")
		if got, err := ParseBytes(Exact(n)); err != nil || got != n {
			t.Fatalf("%d is %q, read as %d, %v", n, Exact(n), got, err)
		}
	})
}

func TestSizesForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "0.98 KiB", 1 << 20: "1.00 MiB",
		15 << 30: "15.0 GiB", 999 << 30: "999 GiB", 1 << 62: "4.00 EiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		Seconds(12.3456): "12.346 s", Seconds(0.0123): "12.30 ms", Seconds(12e-6): "12 µs", Rate(5): "5.00 B/s",
		Rate(2.5e9): "2.50 GB/s",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if PerSecond(10, 2*time.Second) != 5 || PerSecond(10, 0) != 0 {
		t.Error("bytes a second")
	}
}
