package control

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// linkNews is the kernel's message about a network interface.
func linkNews(kind uint16, index, flags uint32) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint32(b[unix.SizeofNlMsghdr+4:], index)
	binary.NativeEndian.PutUint32(b[unix.SizeofNlMsghdr+8:], flags)
	return b
}

// An interface that gets its carrier back is noticed, and nothing else is.
func TestCarrierThatIsBack(t *testing.T) {
	const up, running = unix.IFF_UP, unix.IFF_UP | unix.IFF_RUNNING
	c := carriers{}
	for i, step := range []struct {
		news []byte
		back bool
	}{
		{linkNews(unix.RTM_NEWLINK, 2, running), false}, // it was so before
		{linkNews(unix.RTM_NEWLINK, 2, up), false},
		{linkNews(unix.RTM_NEWLINK, 3, running), false},
		{linkNews(unix.RTM_NEWADDR, 2, running), false},
		{linkNews(unix.RTM_NEWLINK, 2, running)[:unix.SizeofNlMsghdr+8], false},
		{linkNews(unix.RTM_NEWLINK, 2, running), true},
		{linkNews(unix.RTM_NEWLINK, 2, running), false},
		{append(linkNews(unix.RTM_NEWLINK, 2, up), linkNews(unix.RTM_NEWLINK, 2, running)...), true},
		{append(linkNews(unix.RTM_NEWLINK, 2, up), linkNews(unix.RTM_DELLINK, 2, up)...), false},
		{linkNews(unix.RTM_NEWLINK, 2, running), false}, // another interface
	} {
		if back := c.take(step.news); back != step.back {
			t.Errorf("step %d: %v, want %v", i, back, step.back)
		}
	}
}
