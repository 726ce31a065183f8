package admin

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A name of any bytes comes through JSON as it is, and ordinary names stay readable.
func TestNamesOfAnyBytesComeThroughJSON(t *testing.T) {
	for in, want := range map[string]string{
		"größe":        `"größe"`,
		"a\x1b\n":      `"a\u001b\n"`,
		"\u009b1m\x7f": `"\u009b1m\u007f"`,
		"\xff":         "\"\uefff\"",
		"\ufffd":       "\"\ufffd\"",
	} {
		if got, err := Marshal(in); err != nil || string(got) != want {
			t.Errorf("%q: %s, want %s, %v", in, got, want, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		name := func(label string) string {
			return string(rapid.SliceOf(rapid.Byte()).Draw(t, label)) + rapid.String().Draw(t, label) +
				string(rapid.SliceOf(rapid.Int32Range(rawFirst-2, rawLast+2)).Draw(t, label))
		}
		in := Status{
			Name: name("name"), Warnings: []string{name("w")}, Started: time.Unix(1, 0).UTC(), Voters: []uint32{1, 2},
			Nodes: []Node{{Labels: map[string]string{name("key"): name("value")}}}, Transfers: []Transfer{{Path: name("path")}},
		}
		raw, err := Marshal(in)
		if err != nil || !utf8.Valid(raw) || !json.Valid(raw) {
			t.Fatalf("%q: %v", raw, err)
		}
		if bytes.ContainsFunc(raw, func(r rune) bool { return !unicode.IsPrint(r) && !isRaw(r) }) {
			t.Fatalf("not printable: %q", raw)
		}
		var out Status
		if err := Unmarshal(raw, &out); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, out); diff != "" {
			t.Fatal(diff)
		}
	})
}

// An event of a watch, which has pointers, comes through and is not changed by being written.
func TestEventsComeThroughJSON(t *testing.T) {
	in := Event{Kind: "transfer", Transfer: &Transfer{Path: "\xff"}}
	raw, err := Marshal(watchLine{Event: &in})
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Event
		Error *Error `json:"error"`
	}
	if err := Unmarshal(raw, &out); err != nil || out.Transfer == nil || out.Transfer.Path != "\xff" ||
		in.Transfer.Path != "\xff" {
		t.Errorf("%s: %+v, %v", raw, out, err)
	}
}
