package mixed

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// verbsBytes is the size of an address of rdma/verbs; that of rdma/tcp has 49 bytes and the dial address.
const (
	verbsBytes = 88
	tcpBytes   = 49
)

func sampleAddress() address {
	return address{host: hostID{1, 2, 3}, offers: []offer{
		{name: "verbs", directory: 1<<44 - 1, address: bytes.Repeat([]byte{'V'}, verbsBytes)},
		{name: "tcp", address: append(bytes.Repeat([]byte{'T'}, tcpBytes),
			"[2001:db8:1111:2222:3333:4444:5555:6666]:65535"...)},
	}, avoid: filter{1, 0, 0, 0, 0, 0, 0, 9}}
}

func TestAddressRoundTrip(t *testing.T) {
	want := sampleAddress()
	b, err := want.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeAddress(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("decoded %+v, %v, want %+v", got, err, want)
	}
	for n := range b {
		if _, err := decodeAddress(b[:n]); !errors.Is(err, rdma.ErrRequest) {
			t.Errorf("the first %d of %d bytes: %v", n, len(b), err)
		}
	}
	if _, err := decodeAddress(append(b, 0)); !errors.Is(err, rdma.ErrRequest) {
		t.Errorf("a byte too many: %v", err)
	}
}

// TestAddressFits: verbs and tcp fit together, with a filter, up to dial addresses of 79 bytes.
func TestAddressFits(t *testing.T) {
	a := sampleAddress()
	a.avoid = make(filter, filterMin)
	for _, c := range []struct {
		hostPort int
		fits     bool
	}{{len("255.255.255.255:65535"), true}, {47, true}, {79, true}, {80, false}} {
		a.offers[1].address = append(bytes.Repeat([]byte{'T'}, tcpBytes), strings.Repeat("h", c.hostPort)...)
		b, err := a.encode()
		if (err == nil) != c.fits || err != nil && !errors.Is(err, rdma.ErrRequest) {
			t.Errorf("dial address of %d bytes: %d in all, %v", c.hostPort, len(b), err)
		}
	}
}

func FuzzDecodeAddress(f *testing.F) {
	a := sampleAddress()
	b, err := a.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{addressKind, addressVersion, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 't', 0, 0, 0})
	f.Add([]byte{})
	other := sampleAddress()
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeAddress(b)
		if err != nil {
			if !errors.Is(err, rdma.ErrRequest) {
				t.Fatalf("error %v", err)
			}
			return
		}
		c1, err1 := choose(&got, &other)
		c2, err2 := choose(&other, &got)
		if (err1 == nil) != (err2 == nil) || c1.kind != c2.kind || c1.local != c2.remote || c1.remote != c2.local {
			t.Fatalf("the ends choose %+v, %v and %+v, %v", c1, err1, c2, err2)
		}
		codertest.Again(t, b, func(b []byte) ([]byte, error) {
			a, err := decodeAddress(b)
			if err != nil {
				return nil, err
			}
			return a.encode()
		})
	})
}
