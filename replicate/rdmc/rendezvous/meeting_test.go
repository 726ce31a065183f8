package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

func TestVerdict(t *testing.T) {
	ids := []int{0, 2, 5, 6}
	for _, c := range []struct {
		reason   rdmc.Reason
		suspects []int
		reporter int
		out      []int
		fatal    bool
	}{
		{rdmc.ReasonSilent, []int{2}, 1, []int{5}, false},
		{rdmc.ReasonDisconnected, []int{1, 3, 1}, 0, []int{2, 6}, false},
		{rdmc.ReasonSilent, []int{0}, 3, []int{6}, false},
		{rdmc.ReasonSilent, []int{0}, -1, nil, false},
		{rdmc.ReasonSilent, []int{9}, 1, nil, false},
		{rdmc.ReasonAborted, nil, 0, nil, false},
		{rdmc.ReasonSource, []int{0}, 0, nil, true},
		{rdmc.ReasonSink, []int{3}, 3, []int{6}, false},
	} {
		out, fatal := verdict(&rdmc.GroupError{Reason: c.reason, Suspects: c.suspects, Reporter: c.reporter}, ids)
		if !slices.Equal(out, c.out) || fatal != c.fatal {
			t.Errorf("%+v: %v, %v", c, out, fatal)
		}
	}
}

func TestRoll(t *testing.T) {
	r := newRoll([]int{0, 1, 2, 3, 4})
	r.come(1, rdmc.Ranges{{First: 0, Count: 5}})
	r.come(7, rdmc.AllBlocks(10)) // was not called
	r.gone(2)
	r.come(2, rdmc.AllBlocks(10)) // has left
	r.come(4, rdmc.Ranges{{First: 0, Count: 3}, {First: 8, Count: 2}})
	if r.all() || !slices.Equal(r.present(), []int{0, 1, 4}) {
		t.Errorf("%+v", r)
	}
	r.gone(3)
	if want := (rdmc.Ranges{{First: 3, Count: 7}}); !r.all() || !slices.Equal(r.lacking(10), want) {
		t.Errorf("lacking %v", r.lacking(10))
	}
	r.gone(4)
	if want := (rdmc.Ranges{{First: 5, Count: 5}}); !slices.Equal(r.lacking(10), want) || !slices.Equal(r.present(), []int{0, 1}) {
		t.Errorf("lacking %v", r.lacking(10))
	}
}

func TestTooManyRunsMoveAll(t *testing.T) {
	var have rdmc.Ranges
	for i := range uint64(maxRuns + 1) {
		have = append(have, rdmc.Range{First: 2*i + 1, Count: 1})
	}
	r := newRoll([]int{1})
	r.come(1, have)
	if got := r.lacking(4 * maxRuns); !slices.Equal(got, rdmc.AllBlocks(4*maxRuns)) {
		t.Errorf("%d runs", len(got))
	}
}

func TestAlgorithmFor(t *testing.T) {
	for _, c := range []struct {
		asked schedule.Algorithm
		n     int
		want  schedule.Algorithm
	}{
		{0, 5, schedule.BinomialPipeline},
		{schedule.Chain, 5, schedule.Chain},
		{schedule.Hypercube, 8, schedule.Hypercube},
		{schedule.Hypercube, 7, schedule.BinomialPipeline},
	} {
		if got := algorithmFor(c.asked, c.n); got != c.want {
			t.Errorf("%v for %d: %v", c.asked, c.n, got)
		}
	}
}

func sampleFrames() []frame {
	return []frame{
		{kind: kindHello, rank: 7},
		{kind: kindWelcome, welcome: welcome{members: 8, blockSize: 4096, detect: time.Second}},
		{kind: kindOut, epoch: 3, text: "silent"},
		{kind: kindEnd},
		{kind: kindCall, epoch: 2, number: 9, members: []int{0, 3}},
		{kind: kindMeet, epoch: 2, number: 9, have: rdmc.Ranges{{First: 3, Count: 4}, {First: 9, Count: 1}}},
		{kind: kindForm, epoch: 2, algorithm: schedule.Chain, members: []int{0, 2, 5}},
		{kind: kindAddresses, epoch: 2, parts: map[int][]byte{1: {1, 2}}},
		{kind: kindConnected, epoch: 2, text: "no"},
		{kind: kindBegin, epoch: 2, number: 9, message: rdmc.Announcement{Seq: 1, Size: 99, Blocks: rdmc.Ranges{{First: 1, Count: 2}}}},
		{kind: kindDelivered, epoch: 2, number: 9},
	}
}

func TestFramesRoundTrip(t *testing.T) {
	for _, want := range sampleFrames() {
		got, err := decodeFrame(want.appendBinary(nil))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v: %+v, %v", want, got, err)
		}
	}
}

func TestBadFrames(t *testing.T) {
	for _, bad := range []frame{
		{kind: 99},
		{kind: kindWelcome, welcome: welcome{members: 1, blockSize: 1, detect: time.Second}},
		{kind: kindWelcome, welcome: welcome{members: 2, blockSize: 1, detect: time.Hour}},
		{kind: kindForm, members: []int{0}},
		{kind: kindForm, members: []int{1, 2}},
		{kind: kindForm, members: []int{0, 2, 2}},
		{kind: kindForm, members: []int{0, 3, 2}},
		{kind: kindAddresses, parts: map[int][]byte{1: make([]byte, 2<<10)}},
	} {
		if f, err := decodeFrame(bad.appendBinary(nil)); err == nil {
			t.Errorf("%+v was taken for %+v", bad, f)
		}
	}
}

func FuzzDecodeFrame(f *testing.F) {
	for _, one := range sampleFrames() {
		f.Add(one.appendBinary(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeFrame(b)
		if err != nil {
			return
		}
		again, err := decodeFrame(got.appendBinary(nil))
		if err != nil || !bytes.Equal(again.appendBinary(nil), got.appendBinary(nil)) && len(got.parts) < 2 { // a map has no order
			t.Fatalf("%+v became %+v, %v", got, again, err)
		}
	})
}

func TestSessionsAreChecked(t *testing.T) {
	for _, cfg := range []Config{
		{Rank: -1, Members: 3},
		{Members: 1},
		{Members: 3, BlockSize: -4},
		{Members: 3, Detect: time.Millisecond},
		{Members: 3, Detect: time.Hour},
		{Members: 3, Algorithm: schedule.Hybrid},
		{Members: 3, Listen: "0.0.0.0:0"},
		{Members: 3, Listen: "[::]:7401"},
		{Rank: 1, Listen: ":7401"},
	} {
		if _, err := Open(t.Context(), cfg); !errors.Is(err, rdmc.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// TestTheRoomIsGuarded sends rubbish, a rank that is taken and one that is too large before the others come, and
// another member after them.
func TestTheRoomIsGuarded(t *testing.T) {
	p := newParty(t, 3, func(*Config) {})
	p.open()
	late := p.configs[1]
	if _, err := Open(testContext(t), late); !errors.Is(err, ErrOut) || !strings.Contains(err.Error(), "has begun") {
		t.Errorf("a late member: %v", err)
	}
	p.again([]int{0, 1, 2})

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	root := make(chan error, 1)
	go func() {
		s, err := Open(ctx, Config{Members: 3, Listener: listener})
		if err == nil {
			s.Close()
		}
		root <- err
	}()
	for _, rubbish := range []string{"GET / HTTP/1.0\r\n\r\n", "\x0d\x00\x00\x00\x01............", "\xff\xff\xff\x7f"} {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(rubbish))
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if f, err := receive(conn, maxFrame); err != nil || f.kind != kindOut {
			t.Errorf("%q: %+v, %v", rubbish, f, err)
		}
		conn.Close()
	}
	if _, err := Open(ctx, Config{Rank: 3, Room: listener.Addr().String()}); !errors.Is(err, ErrOut) || !strings.Contains(err.Error(), "give 1 to 2") {
		t.Errorf("rank 3 of 3: %v", err)
	}
	cancel()
	if err := <-root; err == nil || !strings.Contains(err.Error(), "ranks [1 2] did not come") {
		t.Errorf("the root: %v", err)
	}
	if _, err := Open(ctx, Config{Rank: 1, Room: listener.Addr().String()}); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("without a root: %v", err)
	}
}
