package terminal

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape makes text fit for one line of a terminal: what is not printable, and each byte that is not UTF-8, is
// written as Go writes it in a string, such as \x1b or \n. Backslashes stay, so text that has been escaped stays as
// it is.
func Escape(s string) string {
	if !strings.ContainsFunc(s, unfit) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		escapeRune(&b, r, s[i:i+n])
		i += n
	}
	return b.String()
}

// unfit reports whether a rune is not to be printed as it is. A byte that is not UTF-8 decodes to utf8.RuneError.
func unfit(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

func escapeRune(b *strings.Builder, r rune, raw string) {
	switch {
	case !unfit(r) || r == utf8.RuneError && len(raw) > 1:
		b.WriteString(raw)
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\r':
		b.WriteString(`\r`)
	case r == '\t':
		b.WriteString(`\t`)
	case len(raw) == 1:
		fmt.Fprintf(b, `\x%02x`, raw[0])
	case r > 0xffff:
		fmt.Fprintf(b, `\U%08x`, r)
	default:
		fmt.Fprintf(b, `\u%04x`, r)
	}
}

// Text is an error in one line, fit for a terminal. Errors that were joined stand side by side.
func Text(err error) string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var lines, texts []string
		for _, e := range joined.Unwrap() {
			lines, texts = append(lines, e.Error()), append(texts, Text(e))
		}
		if strings.Join(lines, "\n") == err.Error() {
			return strings.Join(texts, "; ")
		}
	}
	if inner := errors.Unwrap(err); inner != nil {
		if head, ok := strings.CutSuffix(err.Error(), inner.Error()); ok {
			return Escape(head) + Text(inner)
		}
	}
	return Escape(err.Error())
}

// Printf is fmt.Fprintf with the strings, errors and Stringers among args escaped. The format is the program's own.
func Printf(w io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintf(w, format, fit(args)...)
	return err
}

// Println is fmt.Fprintln with the strings, errors and Stringers among args escaped.
func Println(w io.Writer, args ...any) error {
	_, err := fmt.Fprintln(w, fit(args)...)
	return err
}

// fit copies args with the text among them escaped.
func fit(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		out[i] = fitOne(arg)
	}
	return out
}

func fitOne(arg any) any {
	if err, ok := arg.(error); ok {
		return Text(err)
	}
	v := reflect.ValueOf(arg)
	if !v.IsValid() {
		return arg
	}
	text, stringer := arg.(fmt.Stringer)
	switch v.Kind() {
	case reflect.String:
		if stringer {
			return Escape(text.String())
		}
		return Escape(v.String())
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8,
		reflect.Uint16,
		reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return arg // a duration prints in words of its own
	}
	if stringer {
		return Escape(text.String())
	}
	return Escape(fmt.Sprint(arg))
}
