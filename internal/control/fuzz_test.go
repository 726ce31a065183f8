package control

import (
	"bytes"
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/internal/format"
)

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]frameType{frameHello, frameGoodbye, frameCall, frameReply, frameError,
			frameCancel}).Draw(t, "kind")
		limit, _ := payloadMax(kind)
		h := header{kind: kind, length: rapid.Uint32Range(0, limit).Draw(t, "length"),
			argument: rapid.Uint32().Draw(t, "argument")}
		if kind != frameHello && kind != frameGoodbye {
			h.id = rapid.Uint64Min(1).Draw(t, "id")
		}
		if kind == frameCall {
			h.timeoutMS = rapid.Uint32().Draw(t, "timeout")
		}
		got, err := decodeHeader(appendHeader(nil, h))
		if err != nil || got != h {
			t.Fatalf("%+v -> %+v, %v", h, got, err)
		}
	})
}

// The bytes of a frame are promised: a change here is a change of the protocol.
func TestGoldenFrames(t *testing.T) {
	for name, c := range map[string]struct{ got, want []byte }{
		"call": {append(appendHeader(nil, header{kind: frameCall, length: 2, id: 0x0102030405060708, argument: 0xff000001,
			timeoutMS: 1500}), "hi"...),
			[]byte("\x00\x00\x00\x02\x03\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\xff\x00\x00\x01\x00\x00\x05\xdchi")},
		"hello": {appendHello(nil, saying(7, format.End{Used: 2, Known: format.Range{Oldest: 1, Newest: 3}})),
			[]byte("\x00\x00\x00\x14\x01" +
				"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
				"\x00\x00\x00\x01\x00\x00\x00\x07\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x03")},
	} {
		if !bytes.Equal(c.got, c.want) {
			t.Errorf("%s: %x, want %x", name, c.got, c.want)
		}
	}
}

// A hello may end behind the generation, and may have more than this version knows.
func TestHellosOfOtherVersions(t *testing.T) {
	ours := saying(7, format.End{Used: 2, Known: format.Range{Oldest: 1, Newest: 3}})
	all := appendHello(nil, ours)[headerBytes:]
	if m, err := decodeHello(all[:8]); err != nil || m != (hello{version: 1, generation: 7}) {
		t.Errorf("without formats: %+v, %v", m, err)
	}
	if m, err := decodeHello(append(slices.Clone(all), "more"...)); err != nil || m != ours {
		t.Errorf("with more: %+v, %v", m, err)
	}
	for n := range len(all) {
		if _, err := decodeHello(all[:n]); (err == nil) != (n == 8) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
}

func FuzzDecodeHeader(f *testing.F) {
	f.Add(appendHeader(nil, header{kind: frameCall, id: 1, length: 3}))
	f.Add(appendHello(nil, hello{version: 1, generation: 2}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeader(b)
		if err != nil {
			return
		}
		if limit, known := payloadMax(h.kind); !known || h.length > limit {
			t.Fatalf("accepted %+v", h)
		}
		if again := appendHeader(nil, h); !bytes.Equal(again, b[:headerBytes]) {
			t.Fatalf("%x read as %+v", b[:headerBytes], h)
		}
	})
}

func FuzzDecodeHello(f *testing.F) {
	f.Add(appendHello(nil, hello{version: 1, generation: 2})[headerBytes:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeHello(b); err == nil && m.version == 0 {
			t.Fatal("version 0")
		}
	})
}

// FuzzServeConn feeds bytes to a serving connection: it must end by itself, whatever they are.
func FuzzServeConn(f *testing.F) {
	call := append(appendHeader(nil, header{kind: frameCall, id: 1, length: 2, argument: kindTest}), "hi"...)
	f.Add(call)
	f.Add(append(append([]byte{}, call...), call...))
	f.Add(append(append([]byte{}, call...), appendHeader(nil, header{kind: frameCancel, id: 1})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewServer(quiet())
		s.HandleCall(kindTest, echo)
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.ServeConn(context.Background(), theirs, Caller{Node: 2})
		}()
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			io.Copy(io.Discard, ours)
		}()
		ours.SetWriteDeadline(time.Now().Add(10 * time.Second))
		ours.Write(b)
		ours.Close()
		await(t, "end of the connection", done)
		<-drained
	})
}

// FuzzClient feeds bytes to a calling connection with two calls under way.
func FuzzClient(f *testing.F) {
	f.Add(append(appendHeader(nil, header{kind: frameReply, id: 1, length: 2}), "hi"...))
	f.Add(append(appendHeader(nil, header{kind: frameError, id: 2, length: 2, argument: 5}), "hi"...))
	f.Add(append(appendHeader(nil, header{kind: frameGoodbye, length: 2, argument: 3}), "hi"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		c := newClient(theirs)
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			io.Copy(io.Discard, ours)
		}()
		var calls [2]<-chan answer
		for i := range calls {
			var err error
			if _, calls[i], err = c.open(); err != nil {
				t.Fatal(err)
			}
		}
		ours.SetWriteDeadline(time.Now().Add(10 * time.Second))
		ours.Write(b)
		ours.Close()
		for _, answered := range calls {
			select {
			case <-answered:
			case <-c.done:
			case <-time.After(10 * time.Second):
				t.Fatal("the call hangs")
			}
		}
		c.close()
		<-drained
	})
}
