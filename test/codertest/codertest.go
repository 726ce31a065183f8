// Package codertest checks messages against their bytes, and checks what decoders do with bytes from outside. It serves
// tests only.
package codertest

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("coder.update", false, "replace the golden bytes: only for a format with a new version")

// Updating reports whether the files of golden bytes are to be written again.
func Updating() bool { return *update }

// Golden compares each message's bytes with those in testdata/golden.txt, a line of a name and hex digits for each.
// These are the bytes that other nodes and earlier starts of a node have: a difference is a break of the format. A
// released format keeps its lines: they are also in a file testdata/released-N.txt, which nothing here writes.
func Golden(t *testing.T, messages map[string][]byte) {
	t.Helper()
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(messages)) {
		fmt.Fprintf(&out, "%s %s\n", name, hex.EncodeToString(messages[name]))
	}
	checkReleased(t, messages)
	path := filepath.Join("testdata", "golden.txt")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, lines := strings.Split(out.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(got), len(lines)) {
		if i >= len(got) || i >= len(lines) || got[i] != lines[i] {
			t.Fatalf("%s:%d: the bytes are not those of the format\ngot:\n%s", path, i+1, out.String())
		}
	}
}

// checkReleased compares messages with the lines of released formats.
func checkReleased(t *testing.T, messages map[string][]byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "released-*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
			if hex.EncodeToString(messages[name]) != digits {
				t.Fatalf("%s: the bytes of %s are not those of the release: what is new belongs to the next format",
					path, name)
			}
		}
	}
}

// Again checks what all decoders promise for any bytes: no panic, memory in proportion to the input, and what is
// accepted is encoded to the same bytes again. again decodes b and encodes what it got. Again reports whether the bytes
// were accepted.
func Again(t testing.TB, b []byte, again func(b []byte) ([]byte, error)) bool {
	t.Helper()
	got, ok := bounded(t, b, again)
	if ok && !bytes.Equal(got, b) {
		t.Fatalf("%x was accepted, but is encoded as %x", b, got)
	}
	return ok
}

// Stable is Again for a format with a part that has several forms, as protobuf has: what is accepted is encoded to
// bytes that are accepted, and encoded to themselves.
func Stable(t testing.TB, b []byte, again func(b []byte) ([]byte, error)) bool {
	t.Helper()
	got, ok := bounded(t, b, again)
	if ok && !Again(t, got, again) {
		t.Fatalf("%x was accepted and encoded as %x, which is not", b, got)
	}
	return ok
}

// Bounds of what decoding and encoding may allocate: some bytes for each byte of the input, plus a constant. Go's
// counter runs ahead by up to a few spans of small objects, and other tests may run at the same time.
const (
	bytesPerByte = 256
	bytesAtAll   = 4 << 20
)

func bounded(t testing.TB, b []byte, again func(b []byte) ([]byte, error)) ([]byte, bool) {
	t.Helper()
	input := bytes.Clone(b)
	before := allocated()
	got, err := again(input)
	if used := allocated() - before; used > bytesAtAll+bytesPerByte*uint64(len(b)) {
		t.Fatalf("%d bytes allocated for %d bytes of input", used, len(b))
	}
	if !bytes.Equal(input, b) {
		t.Fatal("the input was changed")
	}
	return got, err == nil
}

func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
