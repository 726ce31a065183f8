package ring

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

// unordered is a device that promises nothing of the order of a write's bytes.
type unordered struct{ rdma.Device }

func (unordered) OrderedWrites() bool { return false }

// side is one end of a channel on a stepped fabric: nothing moves but by calls of the test.
type side struct {
	e        *Endpoint
	c        *Channel
	seed     uint64
	sent     int
	received int
	failed   error
}

// messageOf is message number i of a side.
func messageOf(seed uint64, i, eager int) []byte {
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	n := r.IntN(eager + 1)
	if r.IntN(3) > 0 {
		n = min(n, r.IntN(40))
	}
	b := make([]byte, n)
	for j := range b {
		b[j] = byte(r.Uint32())
	}
	if n >= 16 { // a value that a flag could have
		binary.LittleEndian.PutUint64(b[8*r.IntN(n/8):], tailOf(flagValue(1+r.IntN(2))))
	}
	return b
}

// trySend sends the next message if there is room, and reports whether there was.
func (s *side) trySend(t *rapid.T) bool {
	t.Helper()
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.failed = s.c.sendErrorLocked(); s.failed != nil {
		return false
	}
	if !s.c.postNumberedLocked(kindData, messageOf(s.seed, s.sent, s.c.remote.eager())) {
		return false
	}
	s.sent++
	return true
}

// tryRecv takes the next message if it is there, and checks it.
func (s *side) tryRecv(t *rapid.T, from *side) bool {
	t.Helper()
	var buf [4096]byte
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	n, ok, err := s.c.tryRecvLocked(buf[:])
	if err != nil {
		s.failed = err
		return false
	}
	if !ok {
		return false
	}
	want := messageOf(from.seed, s.received, s.c.local.eager())
	if !bytes.Equal(buf[:n], want) {
		t.Fatalf("message %d: %d bytes, want %d, or others", s.received, n, len(want))
	}
	s.received++
	return true
}

func (s *side) progress(queue bool) {
	s.e.poll.Lock()
	defer s.e.poll.Unlock()
	s.e.progressLocked(queue)
}

// setBusy is what a caller that begins to poll, or stops, does.
func (s *side) setBusy(on bool) {
	if on {
		s.e.busy.Store(true)
		return
	}
	s.e.rest()
}

func newSide(t *rapid.T, d rdma.Device, seed uint64) *side {
	t.Helper()
	e, err := newEndpoint(d, Config{
		EagerBytes: 24 + 8*rapid.IntRange(0, 12).Draw(t, "eager"), Slots: rapid.IntRange(2, 6).Draw(t, "slots"),
		Receives: rapid.IntRange(2, 5).Draw(t, "receives"),
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := e.NewChannel()
	if err != nil {
		t.Fatal(err)
	}
	return &side{e: e, c: c, seed: seed}
}

// steppedPair makes two connected sides.
func steppedPair(t *rapid.T) (*mem.Fabric, [2]*side) {
	t.Helper()
	f := mem.NewFabric(mem.Config{Seed: rapid.Uint64().Draw(t, "seed"), Stepped: true, DelayMax: time.Millisecond})
	var s [2]*side
	for i, name := range []string{"a", "b"} {
		var d rdma.Device = f.Device(name)
		if rapid.Bool().Draw(t, "unordered") {
			d = unordered{d}
		}
		s[i] = newSide(t, d, uint64(i+1))
	}
	for i := range s {
		if err := s[i].c.Connect(context.Background(), s[1-i].c.Address()); err != nil {
			t.Fatal(err)
		}
	}
	return f, s
}

// step does one random thing.
func step(t *rapid.T, f *mem.Fabric, s [2]*side) {
	i := rapid.IntRange(0, 1).Draw(t, "side")
	switch rapid.IntRange(0, 11).Draw(t, "step") {
	case 0, 1, 2:
		s[i].trySend(t)
	case 3, 4:
		s[i].tryRecv(t, s[1-i])
	case 5, 6, 7:
		f.Step()
	case 8:
		s[i].progress(true)
	case 9:
		s[i].progress(false)
	case 10:
		s[i].setBusy(true)
	case 11:
		if rapid.IntRange(0, 3).Draw(t, "rest") == 0 {
			s[i].setBusy(false)
		}
	}
}

// settle lets everything happen that can without another message.
func settle(t *rapid.T, f *mem.Fabric, s [2]*side) {
	for quiet := 0; quiet < 3; {
		quiet++
		for i := range s {
			s[i].progress(true)
			for s[i].tryRecv(t, s[1-i]) {
				quiet = 0
			}
		}
		for f.Step() {
			quiet = 0
		}
	}
}

func closeSides(t *rapid.T, f *mem.Fabric, s [2]*side) {
	for i := range s {
		if err := s[i].e.Close(); err != nil {
			t.Error(err)
		}
		if err := f.Device([]string{"a", "b"}[i]).Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestOrderAndBytesUnderFallBack: whatever is polled, delayed, full or asleep, messages come whole, once and in
// order, over both ways, and nothing is stuck: when all has been read there is room again.
func TestOrderAndBytesUnderFallBack(t *testing.T) {
	var total counts
	rapid.Check(t, func(t *rapid.T) {
		f, s := steppedPair(t)
		defer closeSides(t, f, s)
		for range rapid.IntRange(50, 500).Draw(t, "steps") {
			step(t, f, s)
		}
		settle(t, f, s)
		for i := range s {
			if s[i].failed != nil || s[i].received != s[1-i].sent {
				t.Fatalf("side %d received %d of %d, %v", i, s[i].received, s[1-i].sent, s[i].failed)
			}
		}
		for i := range s {
			if !s[i].trySend(t) {
				t.Fatalf("side %d: all is read, and there is no room: %+v", i, s[i].c.out)
			}
			n := countsOf(s[i].c)
			total.Written += n.Written
			total.Sent += n.Sent
			total.Joins += n.Joins
			total.Leaves += n.Leaves
		}
	})
	if total.Written == 0 || total.Sent == 0 || total.Leaves == 0 {
		t.Errorf("not all ways were taken: %+v", total)
	}
	t.Logf("%+v", total)
}

// TestPeerDiesInAnyState: what was received is a beginning of what was sent, and then both reading and writing say
// that the connection is lost.
func TestPeerDiesInAnyState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, s := steppedPair(t)
		defer closeSides(t, f, s)
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			step(t, f, s)
		}
		f.Kill("b")
		for range rapid.IntRange(0, 50).Draw(t, "more") {
			step(t, f, s)
		}
		settle(t, f, s)
		if s[0].received > s[1].sent {
			t.Fatalf("received %d of %d", s[0].received, s[1].sent)
		}
		s[0].tryRecv(t, s[1])
		if !errors.Is(s[0].failed, ErrBroken) {
			t.Fatalf("reading says %v", s[0].failed)
		}
		if s[0].trySend(t) || !errors.Is(s[0].failed, ErrBroken) {
			t.Fatalf("writing says %v", s[0].failed)
		}
	})
}

// TestSameSeedSameHistory: a stepped fabric replays.
func TestSameSeedSameHistory(t *testing.T) {
	history := func() (counts, time.Duration) {
		var n counts
		var at time.Duration
		f := mem.NewFabric(mem.Config{Seed: 9, Stepped: true, DelayMax: time.Millisecond})
		ends, chans := [2]*Endpoint{}, [2]*Channel{}
		for i, name := range []string{"a", "b"} {
			var err error
			if ends[i], err = newEndpoint(f.Device(name), Config{Slots: 3, Receives: 2}); err != nil {
				t.Fatal(err)
			}
			if chans[i], err = ends[i].NewChannel(); err != nil {
				t.Fatal(err)
			}
			ends[i].busy.Store(true)
		}
		for i := range chans {
			if err := chans[i].Connect(context.Background(), chans[1-i].Address()); err != nil {
				t.Fatal(err)
			}
		}
		r, buf := rand.New(rand.NewPCG(4, 4)), make([]byte, 64)
		for range 2000 {
			switch r.IntN(4) {
			case 0:
				chans[0].mu.Lock()
				chans[0].postNumberedLocked(kindData, buf[:r.IntN(64)])
				chans[0].mu.Unlock()
			case 1:
				chans[1].mu.Lock()
				if _, _, err := chans[1].tryRecvLocked(buf); err != nil {
					t.Error(err)
				}
				chans[1].mu.Unlock()
			case 2:
				f.Step()
			case 3:
				for _, e := range ends {
					e.poll.Lock()
					e.progressLocked(true)
					e.poll.Unlock()
				}
			}
		}
		n, at = countsOf(chans[0]), f.Now()
		for i, e := range ends {
			if err := errors.Join(e.Close(), f.Device([]string{"a", "b"}[i]).Close()); err != nil {
				t.Error(err)
			}
		}
		return n, at
	}
	n1, at1 := history()
	n2, at2 := history()
	if n1 != n2 || at1 != at2 || n1.Written == 0 || n1.Sent == 0 {
		t.Errorf("%+v at %v, then %+v at %v", n1, at1, n2, at2)
	}
}
