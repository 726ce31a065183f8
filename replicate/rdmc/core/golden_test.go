package core

import (
	"bytes"
	"testing"

	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// Other nodes speak these bytes.
func TestGoldenBytes(t *testing.T) {
	full := ControlMessage{epoch: 1, granted: 2, received: 3, active: true, closed: true, last: 4, small: true,
		smallGranted: 5,
		failure:      &Failure{Reason: 2, Suspects: []int{6, 7}, Reporter: 8}}
	block := bytes.Repeat([]byte{0x5a}, 10+TrailerSize)
	Trailer{Seq: 1, Block: 2, Size: 3, Epoch: 4, Length: 10}.Seal(Split(block))
	set := Ranges{{First: 1, Count: 2}, {First: 300, Count: 1 << 20}}
	codertest.Golden(t, map[string][]byte{
		"control":       appendReport(full.appendBinary(nil), report{rank: 9, done: 10, blocks: 11}),
		"control-empty": new(ControlMessage).appendBinary(nil),
		"block":         block,
		"announcement":  Announcement{Seq: 1, Size: 1 << 40, Blocks: set}.AppendBinary(nil),
	})
}
