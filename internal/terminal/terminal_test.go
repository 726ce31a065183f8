package terminal

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"plain name.txt":          "plain name.txt",
		"größe 日本":                "größe 日本",
		"a\x1b]0;owned\x07b":      `a\x1b]0;owned\x07b`,
		"a\x1b[2Jb\rc\nd\te":      `a\x1b[2Jb\rc\nd\te`,
		"bad \xff\xc3( byte":      `bad \xff\xc3( byte`,
		"c1 \u009b31m":            `c1 \u009b31m`,
		"right \u202e left":       `right \u202e left`,
		"\u2028\u00a0\U000e0001":  `\u2028\u00a0\U000e0001`,
		`back\slash "quoted"`:     `back\slash "quoted"`,
		"\x7f\x00":                `\x7f\x00`,
		"the sign \ufffd in UTF8": "the sign \ufffd in UTF8",
	} {
		if got := Escape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// Nothing that is escaped can move a cursor or begin a line, and escaping it again changes nothing.
func TestEscapeLeavesNothingUnfit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "in")) + rapid.String().Draw(t, "more")
		out := Escape(in)
		for _, r := range out {
			if unfit(r) && r != utf8.RuneError {
				t.Fatalf("%q: %q", in, out)
			}
		}
		if !utf8.ValidString(out) || Escape(out) != out {
			t.Fatalf("%q: %q, again %q", in, out, Escape(out))
		}
	})
}

type named string

type both struct{ text string }

func (b both) String() string { return b.text }

func TestPrintfEscapesWhatIsText(t *testing.T) {
	const evil = "\x1b[2J\n"
	var b bytes.Buffer
	Printf(&b, "%s|%-3s|%v|%v|%v|%d|%v|%5.1f|%v\n", evil, named(evil), both{evil}, fmt.Errorf("open %s", evil),
		[]string{evil}, 7, time.Second, 1.5, nil)
	Println(&b, "x", evil)
	if n := strings.Count(b.String(), "\n"); n != 2 || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%q", b.String())
	}
	if want := `\x1b[2J\n|\x1b[2J\n|\x1b[2J\n|open \x1b[2J\n|[\x1b[2J\n]|7|1s|  1.5|<nil>`; !strings.HasPrefix(b.String(),
		want) {
		t.Errorf("%q\nwant %q", b.String(), want)
	}
}

func TestJoinedErrorsStandBesideEachOther(t *testing.T) {
	if got := Text(errors.Join(errors.New("one"), errors.New("two\nlines"))); got != `one; two\nlines` {
		t.Errorf("%q", got)
	}
	inner := fmt.Errorf("dial: %w", errors.Join(errors.New("one"), errors.New("two")))
	if got := Text(fmt.Errorf("a\n: %w", inner)); got != `a\n: dial: one; two` {
		t.Errorf("%q", got)
	}
	if got := Text(fmt.Errorf("a: %w, %w", errors.New("b"), errors.New("c"))); got != "a: b, c" {
		t.Errorf("%q", got)
	}
}
