package tcp

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/rdma"
)

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := frame{
			kind:   frameKind(rapid.IntRange(1, int(frameKindEnd)-1).Draw(t, "kind")),
			length: rapid.Uint32Range(0, maxMessage).Draw(t, "length"),
			imm:    rapid.Uint32().Draw(t, "imm"), ack: rapid.Uint32().Draw(t, "ack"),
			key: rapid.Uint64().Draw(t, "key"), addr: rapid.Uint64().Draw(t, "addr"),
			credit: rapid.Uint32().Draw(t, "credit"),
		}
		if f.kind == frameNak {
			f.status = rdma.Status(rapid.IntRange(1, int(rdma.StatusLocal)).Draw(t, "status"))
		}
		var b [frameBytes]byte
		f.encode(&b)
		got, err := decodeFrame(b[:])
		if err != nil || got != f {
			t.Fatalf("got %+v, %v, want %+v", got, err, f)
		}
		bit := rapid.IntRange(0, frameBytes*8-1).Draw(t, "bit")
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := decodeFrame(b[:]); err == nil {
			t.Fatalf("frame with bit %d flipped was taken", bit)
		}
	})
}

func TestDialsIsAgreedOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hostPort := rapid.SampledFrom([]string{"", "h:1"})
		a, b := newAddress(hostPort.Draw(t, "a")), newAddress(hostPort.Draw(t, "b"))
		ab, errA := dials(&a, &b)
		ba, errB := dials(&b, &a)
		if none := a.hostPort == "" && b.hostPort == ""; none != (errA != nil) || none != (errB != nil) {
			t.Fatalf("errors %v, %v", errA, errB)
		}
		if errA == nil && ab == ba {
			t.Fatalf("both or neither dial: %v", ab)
		}
		if errA == nil && ((ab && b.hostPort == "") || (ba && a.hostPort == "")) {
			t.Fatal("the side that cannot be dialled is dialled")
		}
	})
}

func FuzzDecodeFrame(f *testing.F) {
	var b [frameBytes]byte
	for kind := frameSend; kind < frameNak; kind++ {
		(&frame{kind: kind, length: 77, key: 1 << 60}).encode(&b)
		f.Add(bytes.Clone(b[:]))
	}
	(&frame{kind: frameNak, status: rdma.StatusLength}).encode(&b)
	f.Add(bytes.Clone(b[:]))
	f.Fuzz(func(t *testing.T, in []byte) {
		fr, err := decodeFrame(in)
		if err != nil {
			return
		}
		var out [frameBytes]byte
		fr.encode(&out)
		if !bytes.Equal(out[:], in[:frameBytes]) {
			t.Errorf("decoded %+v from %x, encoded to %x", fr, in[:frameBytes], out)
		}
	})
}

func FuzzDecodePreamble(f *testing.F) {
	a, b := newAddress("x:1"), newAddress("y:2")
	key := pairKey(a.secret[:], b.secret[:])
	hi := encodeHello(b.token, a.token, [nonceBytes]byte{1}, b.secret[:])
	acc := encodeAccept(a.token, [nonceBytes]byte{2}, 7, key, hi[:])
	con := encodeConfirm(9, key, hi[:], acc[:])
	for _, s := range [][]byte{hi[:], acc[:], con[:]} {
		f.Add(bytes.Clone(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if h, err := decodeHello(in); err == nil && h.verify(b.secret[:]) == nil && !bytes.Equal(in, hi[:]) {
			t.Errorf("forged hello %x", in)
		}
		if _, err := decodeAccept(in, a.token, key, hi[:]); err == nil && !bytes.Equal(in, acc[:]) {
			t.Errorf("forged accept %x", in)
		}
		if _, err := decodeConfirm(in, key, hi[:], acc[:]); err == nil && !bytes.Equal(in, con[:]) {
			t.Errorf("forged confirm %x", in)
		}
	})
}

func FuzzDecodeAddress(f *testing.F) {
	a := newAddress("host:7400")
	f.Add(a.encode())
	f.Add([]byte{addressKind})
	f.Fuzz(func(t *testing.T, in []byte) {
		a, err := decodeAddress(in)
		if err != nil {
			return
		}
		if out := a.encode(); !bytes.Equal(in, out) || len(out) > 256 {
			t.Errorf("address %x became %x", in, out)
		}
	})
}
