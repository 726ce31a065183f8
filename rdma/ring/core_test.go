package ring

import (
	"bytes"
	"errors"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slotOf is a zeroed, aligned slot.
func slotOf(n int) []byte { return make([]byte, n) }

func TestFrameComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := frame{
			kind: kind(rapid.IntRange(1, int(kindLast)).Draw(t, "kind")), size: rapid.IntRange(0, 200).Draw(t, "size"),
			number: rapid.Uint32().Draw(t, "number"), slotsFreed: rapid.Uint32().Draw(t, "slots"),
			recvsFreed: rapid.Uint32().Draw(t, "recvs"),
			set:        rapid.Uint16().Draw(t, "set"), setSaw: rapid.Uint16().Draw(t, "saw"),
		}
		slot := slotOf(256)
		for i := range f.size {
			slot[headerBytes+i] = byte(i * 7)
		}
		n := seal(slot, &f)
		w, ok, err := arrived(slot[:256])
		if n != tailOffset(f.size)+wordBytes || !ok || err != nil {
			t.Fatalf("%d bytes, arrived %v %v", n, ok, err)
		}
		got, err := decode(slot, w)
		if err != nil || got != f {
			t.Fatalf("%+v %v, want %+v", got, err, f)
		}
		got, err = decodeReceived(slot, headerBytes+f.size)
		if err != nil || got != f {
			t.Fatalf("received %+v %v, want %+v", got, err, f)
		}
	})
}

// TestNoPartOfAWriteIsAMessage: a receiver has cleared the head word of a slot, whatever was there before. A write has
// come only in part: its words in any order, except that the last comes last, and the bytes of a word in any order. It
// must not pass for a message (section 4.2: the secondary flag).
func TestNoPartOfAWriteIsAMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mine, theirs := slotOf(128), slotOf(128)
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			size := rapid.IntRange(0, 128-overheadBytes).Draw(t, "size")
			copy(mine[headerBytes:], someBytes(t, size))
			n := seal(mine, &frame{kind: kindData, size: size, number: 7})
			whole := n - wordBytes
			for _, i := range rapid.Permutation(indexes(whole)).Draw(t, "order") {
				theirs[i] = mine[i]
				if _, ok, err := arrived(theirs); ok || err != nil {
					t.Fatalf("taken with byte %d of %d, %v", i, n, err)
				}
			}
			copy(theirs[whole:], mine[whole:n])
			w, ok, err := arrived(theirs)
			if !ok || err != nil {
				t.Fatalf("not taken when whole: %v", err)
			}
			if _, err := decode(theirs, w); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(mine, theirs) {
				t.Fatal("slots differ")
			}
			clearHead(theirs)
		}
	})
}

// someBytes draws bytes, words of which are often flag values.
func someBytes(t *rapid.T, n int) []byte {
	b := make([]byte, 0, n+wordBytes)
	for len(b) < n {
		switch rapid.IntRange(0, 3).Draw(t, "what") {
		case 0:
			b = append(b, wordBytesOf(tailOf(flagPrimary))...)
		case 1:
			b = append(b, wordBytesOf(tailOf(flagSecondary))...)
		default:
			b = append(b, wordBytesOf(rapid.Uint64().Draw(t, "word"))...)
		}
	}
	return b[:n]
}

func wordBytesOf(w uint64) []byte {
	b := make([]byte, wordBytes)
	for i := range b {
		b[i] = byte(w >> (8 * i))
	}
	return b
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func TestStaleTailTakesSecondaryFlag(t *testing.T) {
	slot := slotOf(128)
	f := frame{kind: kindData, size: 8}
	for i, want := range []flagValue{flagPrimary, flagSecondary, flagPrimary, flagSecondary} {
		seal(slot, &f)
		if h, ok := decodeHead(loadWord(slot, 0)); !ok || h.flag != want {
			t.Errorf("round %d: flag %d, want %d", i, h.flag, want)
		}
	}
}

func TestChangedByteIsSeen(t *testing.T) {
	slot := slotOf(128)
	f := frame{kind: kindData, size: 20, number: 3}
	seal(slot, &f)
	for i := 8; i < headerBytes+f.size; i++ {
		slot[i] ^= 0x10
		if _, err := decode(slot, loadWord(slot, 0)); !errors.Is(err, ErrProtocol) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		slot[i] ^= 0x10
	}
}

func FuzzDecodeMessage(f *testing.F) {
	slot := slotOf(128)
	seal(slot, &frame{kind: kindData, size: 5, number: 1})
	f.Add(slot)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if fr, err := decodeReceived(b, len(b)); err == nil && (fr.size != len(b)-headerBytes || fr.kind > kindLast) {
			t.Fatalf("%d bytes decoded as %+v", len(b), fr)
		}
		mem := slotOf(128)
		copy(mem, b)
		w, ok, err := arrived(mem)
		if !ok || err != nil {
			return
		}
		if fr, err := decode(mem, w); err == nil && fr.size > len(mem)-overheadBytes {
			t.Fatalf("slot decoded as %+v", fr)
		}
	})
}

func FuzzDecodeAddress(f *testing.F) {
	good := address{slots: 16, receives: 8, slotBytes: 2112, ordered: true, key: 77, pair: []byte("pair")}
	f.Add(good.encode())
	f.Add([]byte{addressKind, addressVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAddress(b)
		if err != nil {
			return
		}
		if max(a.slots, a.receives)*a.slotBytes > ringBytesMax || a.slots < slotsMin || a.receives < slotsMin ||
			a.eager() < 1 || len(a.pair) > pairAddressMax {
			t.Fatalf("%+v", a)
		}
		again, err := decodeAddress(a.encode())
		if err != nil || again.key != a.key || again.slots != a.slots || !bytes.Equal(again.pair, a.pair) ||
			again.ordered != a.ordered {
			t.Fatalf("%+v comes back as %+v, %v", a, again, err)
		}
	})
}

// TestOrderOverTwoWays: messages split over two ways, each of which keeps its order, come out in order, whatever the
// interleaving (section 4.5), also where numbers wrap.
func TestOrderOverTwoWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const receives = 5
		o := newOrder(4, receives)
		o.expected = rapid.SampledFrom([]uint32{0, 1<<32 - 3}).Draw(t, "first")
		first := o.expected
		var ring, send []uint32 // under way
		sent, got := uint32(0), uint32(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				if sent-got < 4+receives && len(ring) < 4 {
					ring = append(ring, first+sent)
					sent++
				}
			case 1:
				if sent-got < 4+receives && len(send)+o.early.n < receives {
					send = append(send, first+sent)
					sent++
				}
			case 2:
				if len(ring) > 0 && !o.hasRing {
					mustAdd(t, &o, arrival{ring: true, number: ring[0]})
					ring = ring[1:]
				}
			case 3:
				if len(send) > 0 {
					mustAdd(t, &o, arrival{number: send[0]})
					send = send[1:]
				}
			}
			for {
				a, ok, err := o.next()
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				if a.number != first+got {
					t.Fatalf("number %d, want %d", a.number, first+got)
				}
				got++
			}
		}
	})
}

func mustAdd(t *rapid.T, o *order, a arrival) {
	t.Helper()
	if err := o.add(a); err != nil {
		t.Fatal(err)
	}
}

func TestOrderRefusesWrongNumbers(t *testing.T) {
	for name, adds := range map[string][]arrival{
		"behind":       {{number: 99}},
		"far ahead":    {{number: 106}},
		"neither next": {{number: 101}, {number: 102, ring: true}},
		"one place":    {{number: 101, ring: true}, {number: 102, ring: true}},
		"too many":     {{number: 101}, {number: 102}, {number: 103}},
	} {
		o := newOrder(4, 2)
		o.expected = 100
		var err error
		for _, a := range adds {
			if err == nil {
				err = o.add(a)
			}
		}
		if err == nil {
			_, _, err = o.next()
		}
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCreditsNeverExceedBuffers: no matter which credits are reported and in which order, no more messages are under
// way than the peer has buffers, and no credit stays unreported for ever.
func TestCreditsNeverExceedBuffers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots, receives := uint32(rapid.IntRange(2, 6).Draw(t, "slots")), uint32(rapid.IntRange(2, 6).Draw(t, "receives"))
		o := outflow{slots: slots, receives: receives, written: 1<<32 - 2, slotsFreed: 1<<32 - 2, set: 1}
		in := inflow{slots: slots, receives: receives, slotsFreed: 1<<32 - 2, slotsTold: 1<<32 - 2, set: 1, setTold: 1,
			setSaw: 1}
		var back outflow
		var told []frame
		for range 300 {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				if r := o.route(); r != routeNone {
					o.take(r)
				}
			case 1:
				if in.slotsFreed != o.written {
					in.slotsFreed++
				} else if in.recvsFreed != o.sent {
					in.recvsFreed++
				}
			case 2:
				if in.owes(&back) || rapid.Bool().Draw(t, "rides") {
					var f frame
					in.stamp(&f, &back)
					told = append(told, f)
				}
			case 3:
				if len(told) > 0 {
					i := rapid.IntRange(0, len(told)-1).Draw(t, "which")
					if err := o.heard(&told[i]); err != nil {
						t.Fatal(err)
					}
				}
			}
			if o.written-in.slotsFreed > slots || o.sent-in.recvsFreed > receives {
				t.Fatalf("%d of %d slots and %d of %d receives in use", o.written-in.slotsFreed, slots, o.sent-in.recvsFreed,
					receives)
			}
		}
		for in.slotsFreed != o.written {
			in.slotsFreed++
		}
		if in.owes(&back) {
			var f frame
			in.stamp(&f, &back)
			told = append(told, f)
		}
		for i := range told {
			if err := o.heard(&told[i]); err != nil {
				t.Fatal(err)
			}
		}
		if o.route() == routeNone {
			t.Fatal("all is free and nothing may be sent")
		}
	})
}

func TestCreditsRefuseWhatWasNotUsed(t *testing.T) {
	o := outflow{slots: 4, receives: 4, written: 3, slotsFreed: 1, sent: 2}
	for _, f := range []frame{{slotsFreed: 4}, {slotsFreed: 1, recvsFreed: 3}, {slotsFreed: 1 << 30}} {
		before := o
		if err := o.heard(&f); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v taken: %v", f, err)
		}
		o = before
	}
	in := inflow{set: 3, setSaw: 2}
	if _, err := in.heard(&frame{setSaw: 4}); !errors.Is(err, ErrProtocol) {
		t.Errorf("a confirmation of what was not said: %v", err)
	}
}

// TestPollingSet: section 4.6.
func TestPollingSet(t *testing.T) {
	message := func(s *pollingSet, id, times int) {
		for range times {
			s.grow(id)
			s.heard(id)
			member := false
			for _, m := range s.members {
				member = member || m == id
			}
			if member {
				continue
			}
			if join, instead := s.wants(id); join {
				if instead != none {
					s.leave(instead)
				}
				s.join(id)
			}
		}
	}
	first := pollingSet{limit: 2}
	message(&first, 4, 1)
	message(&first, 1, 1)
	message(&first, 3, displaceMin-1)
	wantMembers(t, &first, 4, 1)
	first.leave(4)
	message(&first, 3, 1)
	wantMembers(t, &first, 1, 3)

	traffic := pollingSet{limit: 2}
	message(&traffic, 0, 10)
	message(&traffic, 1, 40)
	message(&traffic, 2, 31)
	wantMembers(t, &traffic, 0, 1)
	message(&traffic, 2, 1)
	wantMembers(t, &traffic, 1, 2) // 32 against 10
	message(&traffic, 0, 40)
	wantMembers(t, &traffic, 1, 2) // 50 against 32
	message(&traffic, 5, trafficMax)
	wantMembers(t, &traffic, 1, 5) // the least of the two made room
	message(&traffic, 5, 10*trafficMax)
	if traffic.traffic[1] > 0 || traffic.traffic[5] > trafficMax {
		t.Errorf("counts %v do not fade", traffic.traffic)
	}

	off := pollingSet{limit: -1}
	message(&off, 0, 1000)
	wantMembers(t, &off)
}

func wantMembers(t *testing.T, s *pollingSet, want ...int) {
	t.Helper()
	if len(s.members) > max(s.limit, 0) {
		t.Errorf("%d members, limit %d", len(s.members), s.limit)
	}
	for _, w := range want {
		found := false
		for _, m := range s.members {
			found = found || m == w
		}
		if !found || len(want) != len(s.members) {
			t.Errorf("members %v, want %v", s.members, want)
			return
		}
	}
}
