package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A name in Linux is any bytes, but a string in JSON is Unicode. A byte that is not part of valid UTF-8 is written as
// the character rawFirst + byte, in Unicode's private use area. The bytes of such characters in a name are written that
// way too, so each name has one form, and each form belongs to one name. All names of valid UTF-8 without those
// characters stay as they are.
const (
	rawBase  = 0xef00
	rawFirst = rawBase + 0x80
	rawLast  = rawBase + 0xff
)

func isRaw(r rune) bool { return r >= rawFirst && r <= rawLast }

// packName makes a string of any bytes fit for JSON.
func packName(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, isRaw) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if isRaw(r) || r == utf8.RuneError && n == 1 {
			for _, c := range []byte(s[i : i+n]) {
				b.WriteRune(rawBase + rune(c))
			}
		} else {
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// unpackName undoes packName.
func unpackName(s string) string {
	if !strings.ContainsFunc(s, isRaw) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if isRaw(r) {
			b.WriteByte(byte(r - rawBase))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Marshal is json.Marshal that keeps strings of any bytes, and writes what is not printable as \uXXXX, so that the
// text can go to a terminal. [Unmarshal] undoes it.
func Marshal(v any) ([]byte, error) {
	var packed any
	if v != nil {
		packed = mapStrings(reflect.ValueOf(v), packName).Interface()
	}
	raw, err := json.Marshal(packed)
	if err != nil {
		return nil, err
	}
	return escapeJSON(raw), nil
}

// Unmarshal decodes what Marshal made into *v.
func Unmarshal(raw []byte, v any) error { return decodeJSON(json.NewDecoder(bytes.NewReader(raw)), v) }

// decodeJSON decodes the next value of a decoder.
func decodeJSON(dec *json.Decoder, v any) error {
	if err := dec.Decode(v); err != nil {
		return err
	}
	at := reflect.ValueOf(v).Elem()
	at.Set(mapStrings(at, unpackName))
	return nil
}

// encodeLine writes a value and a newline.
func encodeLine(w io.Writer, v any) error {
	raw, err := Marshal(v)
	if err == nil {
		_, err = w.Write(append(raw, '\n'))
	}
	return err
}

// escapeJSON writes the characters that are not printable as \uXXXX. In JSON they can only stand in strings.
func escapeJSON(raw []byte) []byte {
	unfit := func(r rune) bool { return r > unicode.MaxASCII && !unicode.IsPrint(r) && !isRaw(r) || r == 0x7f }
	if !bytes.ContainsFunc(raw, unfit) {
		return raw
	}
	var b bytes.Buffer
	for _, r := range string(raw) {
		switch {
		case !unfit(r):
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// mapStrings copies a value with f applied to all its strings. What has its own form in JSON, such as a time, stays.
func mapStrings(v reflect.Value, f func(string) string) reflect.Value {
	if v.Type().Implements(marshaler) {
		return v
	}
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.String:
		out.SetString(f(v.String()))
		return out
	case reflect.Struct:
		out.Set(v)
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				out.Field(i).Set(mapStrings(v.Field(i), f))
			}
		}
		return out
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		if !v.IsNil() {
			return mapBehind(v, f)
		}
	}
	return v
}

// mapBehind is mapStrings for what a value points to.
func mapBehind(v reflect.Value, f func(string) string) reflect.Value {
	switch v.Kind() {
	case reflect.Pointer:
		out := reflect.New(v.Type().Elem())
		out.Elem().Set(mapStrings(v.Elem(), f))
		return out
	case reflect.Interface:
		return mapStrings(v.Elem(), f)
	case reflect.Slice:
		out := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			out.Index(i).Set(mapStrings(v.Index(i), f))
		}
		return out
	}
	out := reflect.MakeMapWithSize(v.Type(), v.Len())
	for it := v.MapRange(); it.Next(); {
		out.SetMapIndex(mapStrings(it.Key(), f), mapStrings(it.Value(), f))
	}
	return out
}
