package rdmc

import (
	"bytes"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/codertest"
)

// Other nodes speak these bytes.
func TestGoldenBytes(t *testing.T) {
	full := controlMessage{epoch: 1, granted: 2, received: 3, active: true, closed: true, last: 4, small: true,
		smallGranted: 5,
		failure:      &failure{reason: 2, suspects: []int{6, 7}, reporter: 8}}
	block := bytes.Repeat([]byte{0x5a}, 10+trailerSize)
	trailer{seq: 1, block: 2, size: 3, epoch: 4, length: 10}.seal(split(block))
	set := Ranges{{First: 1, Count: 2}, {First: 300, Count: 1 << 20}}
	codertest.Golden(t, map[string][]byte{
		"control":       appendReport(full.appendBinary(nil), report{rank: 9, done: 10, blocks: 11}),
		"control-empty": new(controlMessage).appendBinary(nil),
		"block":         block,
		"announcement":  Announcement{Seq: 1, Size: 1 << 40, Blocks: set}.AppendBinary(nil),
	})
}
