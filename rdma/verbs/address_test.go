//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

func someAddress() address {
	a := address{lid: 7, mtu: 5, link: linkEthernet, readsIn: 16, qpn: 0x123456, bellQPN: 1, bellKey: 0x7fffffff}
	a.gid[15] = 1
	a.fresh()
	return a
}

func TestAddress(t *testing.T) {
	a := someAddress()
	got, err := decodeAddress(a.encode())
	if err != nil || got != a {
		t.Errorf("%+v became %+v, %v", a, got, err)
	}
	if n := len(a.encode()); n > 256 {
		t.Errorf("address of %d bytes", n)
	}
	b := someAddress()
	if a.secret == b.secret || a.token == b.token || a.psn > numberMask {
		t.Error("addresses repeat their secrets")
	}
	for name, spoil := range map[string]func(b []byte) []byte{
		"empty":       func([]byte) []byte { return nil },
		"short":       func(b []byte) []byte { return b[:len(b)-1] },
		"long":        func(b []byte) []byte { return append(b, 0) },
		"of tcp":      func(b []byte) []byte { b[0] = 'T'; return b },
		"version":     func(b []byte) []byte { b[1]++; return b },
		"MTU 0":       func(b []byte) []byte { b[68] = 0; return b },
		"MTU 6":       func(b []byte) []byte { b[68] = 6; return b },
		"link":        func(b []byte) []byte { b[69] = 3; return b },
		"spare byte":  func(b []byte) []byte { b[71] = 1; return b },
		"queue pair":  func(b []byte) []byte { b[75] = 1; return b },
		"packet":      func(b []byte) []byte { b[79] = 1; return b },
		"datagram qp": func(b []byte) []byte { b[83] = 1; return b },
	} {
		if _, err := decodeAddress(spoil(a.encode())); !errors.Is(err, rdma.ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecodeAddress(f *testing.F) {
	a := someAddress()
	f.Add(a.encode())
	f.Add([]byte("V"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAddress(b)
		if err == nil && !bytes.Equal(a.encode(), b) {
			t.Errorf("%x became %x", b, a.encode())
		}
	})
}

func TestMessage(t *testing.T) {
	a, b := someAddress(), someAddress()
	key := pairKey(&a, &b)
	if !bytes.Equal(key, pairKey(&b, &a)) {
		t.Error("the sides derive different keys")
	}
	for _, want := range []message{
		{kind: messageReady, to: a.token, from: b.token},
		{kind: messageReady, seen: true, to: b.token},
		{kind: messageGone, from: a.token},
	} {
		text := want.encode(key)
		got, ok := decodeMessage(text[:])
		if !ok || got != want || !proven(text[:], key) {
			t.Errorf("%+v became %+v", want, got)
		}
		for i := range text {
			bad := text
			bad[i] ^= 1
			if proven(bad[:], key) {
				t.Errorf("the proof holds with byte %d changed", i)
			}
		}
	}
	b.secret[0]++
	text := (&message{kind: messageReady}).encode(key)
	if proven(text[:], pairKey(&a, &b)) {
		t.Error("the proof holds with another secret")
	}
}

func FuzzDecodeMessage(f *testing.F) {
	text := (&message{kind: messageReady, seen: true}).encode(nil)
	f.Add(text[:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok := decodeMessage(b)
		if !ok {
			return
		}
		if again := m.encode(nil); !bytes.Equal(again[:4+2*tokenBytes], b[:4+2*tokenBytes]) {
			t.Errorf("%x became %x", b, again)
		}
	})
}
