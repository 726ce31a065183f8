package core

import "testing"

// Control messages and trailers are made and read for each batch of blocks.
func TestControlMessagesDoNotAllocate(t *testing.T) {
	m := ControlMessage{epoch: 1, granted: 2, received: 3, active: true, small: true, smallGranted: 5}
	buf := make([]byte, 0, MaxControl)
	var got ControlMessage
	if n := testing.AllocsPerRun(100, func() {
		b := m.appendBinary(buf)
		for i := range uint32(3) {
			b = appendReport(b, report{rank: i, done: 10, blocks: 11})
		}
		if err := decodeControl(b, &got); err != nil || len(got.reports) != 3 {
			t.Error(got, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
