package core

import (
	"bytes"
	"testing"
)

func FuzzOpenEnvelope(f *testing.F) {
	p := Proposal{Origin: 1, Data: []byte("x")}
	f.Add(p.Envelope(5))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, at, err := OpenEnvelope(b); err == nil && !bytes.Equal(p.Envelope(at), b) {
			t.Fatal("envelope changes")
		}
	})
}
