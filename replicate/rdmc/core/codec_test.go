package core

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTrailerFindsChanges(t *testing.T) {
	want := Trailer{Seq: 7, Block: 1 << 33, Epoch: 9, Length: 100}
	buf := bytes.Repeat([]byte{0x5a}, 100+TrailerSize)
	want.Seal(Split(buf))
	if got, err := Unseal(Split(buf)); err != nil || got != want {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range buf {
		for bit := range 8 {
			buf[i] ^= 1 << bit
			if _, err := Unseal(Split(buf)); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("byte %d bit %d: %v", i, bit, err)
			}
			buf[i] ^= 1 << bit
		}
	}
	for n := range buf {
		if _, err := Unseal(Split(buf[:n])); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

func FuzzDecodeBlock(f *testing.F) {
	buf := make([]byte, 10+TrailerSize)
	Trailer{Seq: 1, Length: 10}.Seal(Split(buf))
	f.Add(buf)
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Unseal(Split(b))
		if err != nil {
			return
		}
		again := bytes.Clone(b)
		got.Seal(Split(again))
		if !bytes.Equal(again, b) {
			t.Fatalf("%x sealed again is %x", b, again)
		}
	})
}

// TestUnknownFlagsAreRefused: what a flag adds to a control message can't be skipped by a receiver that does not know
// the flag. The flag that earlier versions set adds nothing.
func TestUnknownFlagsAreRefused(t *testing.T) {
	m := ControlMessage{epoch: 3, granted: 4, active: true}
	for bit := range 8 {
		b := m.appendBinary(nil)
		b[1] |= 1 << bit
		b = append(b, make([]byte, 8)...) // of a flag that adds something
		if 1<<bit&(flagSmall) == 0 {
			b = b[:controlHeader]
		}
		var got ControlMessage
		err := decodeControl(b, &got)
		if bad := 1<<bit == flagFailed || 1<<bit&^flagsKnown != 0; (err != nil) != bad {
			t.Errorf("flag %d: %v", 1<<bit, err)
		}
	}
}

func FuzzDecodeControl(f *testing.F) {
	full := ControlMessage{epoch: 3, granted: 4, received: 5, active: true, closed: true, last: 8, small: true,
		smallGranted: 9, failure: &Failure{Reason: ReasonSink, Reporter: 2, Suspects: []int{2, 3}}}
	f.Add(appendReport(full.appendBinary(nil), report{rank: 1, done: 2, blocks: 3}))
	f.Add((&ControlMessage{}).appendBinary(nil))
	f.Add((&ControlMessage{small: true}).appendBinary(nil)[:controlHeader+7])
	f.Fuzz(func(t *testing.T, b []byte) {
		var m ControlMessage
		if err := decodeControl(b, &m); err != nil {
			return
		}
		again := m.appendBinary(nil)
		for _, r := range m.reports {
			again = appendReport(again, r)
		}
		var n ControlMessage
		if err := decodeControl(again, &n); err != nil || len(again) != len(b) {
			t.Fatalf("%x encoded again is %x: %v", b, again, err)
		}
	})
}

// FuzzControlAtCore feeds decoded messages to a core: whatever a neighbour says, it must not panic.
func FuzzControlAtCore(f *testing.F) {
	f.Add((&ControlMessage{epoch: 7, granted: 1 << 60, received: 1 << 60}).appendBinary(nil), uint8(0))
	f.Add((&ControlMessage{epoch: 7, small: true, smallGranted: 1 << 63}).appendBinary(nil), uint8(0))
	f.Add(appendReport((&ControlMessage{epoch: 7, closed: true, last: 9}).appendBinary(nil),
		report{rank: 1 << 31, done: 1 << 63}), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, rank uint8) {
		var m ControlMessage
		if err := decodeControl(b, &m); err != nil {
			return
		}
		w := newWorld(1, simPlan(5), simLimits)
		const k = 10
		w.announce(Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}, none(k))
		n := w.nodes[int(rank)%len(w.nodes)]
		w.after(2000, func() { w.run(n, func() { n.core.ControlReceived(0, &m) }) })
		steps := 0
		w.loop(func() bool { steps++; return steps > 5000 })
	})
}

func FuzzDecodeAnnouncement(f *testing.F) {
	f.Add(Announcement{Seq: 4, Size: 1 << 40, Blocks: AllBlocks(1 << 20)}.AppendBinary(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := DecodeAnnouncement(b)
		if err != nil {
			return
		}
		again, err := DecodeAnnouncement(a.AppendBinary(nil))
		if err != nil || !cmp.Equal(again, a) {
			t.Fatalf("%+v decoded again is %+v: %v", a, again, err)
		}
		_ = a.Validate(4096)
	})
}
