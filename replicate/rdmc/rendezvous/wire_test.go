package rendezvous

import (
	"reflect"
	"testing"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

func sampleFrames() []frame {
	return []frame{
		{kind: kindHello, rank: 7},
		{kind: kindWelcome, welcome: welcome{members: 8, number: 3, blockSize: 4096, algorithm: schedule.Chain}},
		{kind: kindRefused, text: "rank 9"},
		{kind: kindAllHere},
		{kind: kindAddresses, parts: map[int][]byte{1: {1, 2}}},
		{kind: kindConnected, text: "no"},
		{kind: kindBegun},
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
		{kind: kindWelcome, welcome: welcome{members: 1, blockSize: 1}},
		{kind: kindWelcome, welcome: welcome{members: 2}},
		{kind: kindAddresses, parts: map[int][]byte{1: make([]byte, 2<<10)}},
	} {
		if f, err := decodeFrame(bad.appendBinary(nil)); err == nil {
			t.Errorf("%+v was taken for %+v", bad, f)
		}
	}
	if f, err := decodeFrame(nil); err == nil {
		t.Errorf("nothing was taken for %+v", f)
	}
}

func FuzzDecodeFrame(f *testing.F) {
	for _, one := range sampleFrames() {
		f.Add(one.appendBinary(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		codertest.Stable(t, b, func(b []byte) ([]byte, error) { // parts come in any order
			f, err := decodeFrame(b)
			return f.appendBinary(nil), err
		})
	})
}
