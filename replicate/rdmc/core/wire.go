package core

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// Sizes of control messages.
const (
	MaxControl    = 1024
	controlHeader = 32
	reportSize    = 20
	maxSuspects   = 64
)

const controlVersion = 3

// Flags of a control message.
const (
	flagActive = 1 << iota
	flagClosed
	flagFailed
	flagSmall
	flagHeld // of earlier versions; it means nothing now

	flagsKnown = flagActive | flagClosed | flagFailed | flagSmall | flagHeld
)

// ControlMessage is what neighbours tell each other. On the wire, little endian:
//
//	0  version 1, flags 1, reserved 2
//	4  epoch 4
//	8  blocks granted to the receiver of this message, in all 8
//	16 control messages received from it, in all 8
//	24 with flagClosed: the group's last message 8
//	   with flagSmall: small messages that the receiver of this message may have sent, in all 8
//	   with flagFailed: reason 1, reserved 1, suspects n 2, reporter 4, n ranks of 4
//	   reports to the end, 20 each: rank 4, messages done 8, blocks of the next 8
type ControlMessage struct {
	epoch    uint32
	granted  uint64
	received uint64
	active   bool
	closed   bool
	last     uint64
	failure  *Failure
	reports  []report

	small        bool
	smallGranted uint64
}

// report is how far a member is.
type report struct {
	rank   uint32
	done   uint64
	blocks uint64
}

// flags say what is in the message.
func (m *ControlMessage) flags() (flags uint8) {
	if m.active {
		flags |= flagActive
	}
	if m.closed {
		flags |= flagClosed
	}
	if m.failure != nil {
		flags |= flagFailed
	}
	if m.small {
		flags |= flagSmall
	}
	return flags
}

// Active reports whether the sender has messages under way, or waits for the end of the group.
func (m *ControlMessage) Active() bool { return m.active }

// code lists all fields but the reports.
func (m *ControlMessage) code(c *coder.Coder) {
	flags := m.flags()
	c.Same8("version of control messages", controlVersion)
	c.U8(&flags)
	c.Pad(2)
	c.U32(&m.epoch)
	c.U64(&m.granted)
	c.U64(&m.received)
	c.U64(&m.last)
	if flags&^flagsKnown != 0 {
		c.Fail("flags %#x", flags)
	}
	if c.Reading() {
		m.active, m.closed, m.small = flags&flagActive != 0, flags&flagClosed != 0, flags&flagSmall != 0
	}
	if m.small {
		c.U64(&m.smallGranted)
	}
	if flags&flagFailed == 0 {
		return
	}
	if c.Reading() {
		m.failure = &Failure{}
	}
	m.failure.code(c)
}

func (f *Failure) code(c *coder.Coder) {
	suspects := f.Suspects[:min(len(f.Suspects), maxSuspects)]
	reason, count, reporter := uint8(f.Reason), uint16(len(suspects)), uint32(f.Reporter)
	c.U8(&reason)
	c.Pad(1)
	c.U16(&count)
	c.U32(&reporter)
	if c.Reading() {
		if int(count) > min(maxSuspects, c.Left()/4) {
			c.Fail("failure with %d suspects", count)
			count = 0
		}
		*f = Failure{Reason: Reason(reason), Reporter: int(reporter), Suspects: make([]int, count)}
		suspects = f.Suspects
	}
	for i := range suspects {
		rank := uint32(suspects[i])
		if c.U32(&rank); c.Reading() {
			suspects[i] = int(rank)
		}
	}
}

func (r *report) code(c *coder.Coder) {
	c.U32(&r.rank)
	c.U64(&r.done)
	c.U64(&r.blocks)
}

// appendBinary encodes all but the reports.
func (m *ControlMessage) appendBinary(b []byte) []byte {
	c := coder.Writer(b, coder.Little)
	m.code(&c)
	return c.Written()
}

func appendReport(b []byte, r report) []byte {
	c := coder.Writer(b, coder.Little)
	r.code(&c)
	return c.Written()
}

// decodeControl decodes a control message into m, whose list of reports is used again.
func decodeControl(b []byte, m *ControlMessage) error {
	if len(b) > MaxControl {
		return fmt.Errorf("%w: control message of %d bytes", ErrCorrupt, len(b))
	}
	*m = ControlMessage{reports: m.reports[:0]}
	c := coder.Reader(b, coder.Little)
	for m.code(&c); c.Left() > 0; {
		var r report
		r.code(&c)
		m.reports = append(m.reports, r)
	}
	if err := c.Finish(); err != nil {
		return fmt.Errorf("%w: control message: %w", ErrCorrupt, err)
	}
	return nil
}
