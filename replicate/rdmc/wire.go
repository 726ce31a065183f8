package rdmc

import (
	"encoding/binary"
	"fmt"
)

// Sizes of control messages.
const (
	maxControl    = 1024
	controlHeader = 32
	failureHeader = 8
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

// controlMessage is what neighbours tell each other. On the wire, little endian:
//
//	0  version 1, flags 1, reserved 2
//	4  epoch 4
//	8  blocks granted to the receiver of this message, in all 8
//	16 control messages received from it, in all 8
//	24 with flagClosed: the group's last message 8
//	   with flagSmall: small messages that the receiver of this message may have sent, in all 8
//	   with flagFailed: reason 1, reserved 1, suspects n 2, reporter 4, n ranks of 4
//	   reports to the end, 20 each: rank 4, messages done 8, blocks of the next 8
type controlMessage struct {
	epoch    uint32
	granted  uint64
	received uint64
	active   bool
	closed   bool
	last     uint64
	failure  *failure
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

// appendBinary encodes all but the reports.
func (m *controlMessage) appendBinary(b []byte) []byte {
	var flags byte
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
	b = append(b, controlVersion, flags, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, m.epoch)
	b = binary.LittleEndian.AppendUint64(b, m.granted)
	b = binary.LittleEndian.AppendUint64(b, m.received)
	b = binary.LittleEndian.AppendUint64(b, m.last)
	if m.small {
		b = binary.LittleEndian.AppendUint64(b, m.smallGranted)
	}
	if m.failure != nil {
		b = m.failure.appendBinary(b)
	}
	return b
}

func (f *failure) appendBinary(b []byte) []byte {
	suspects := f.suspects[:min(len(f.suspects), maxSuspects)]
	b = append(b, byte(f.reason), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(suspects)))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.reporter))
	for _, rank := range suspects {
		b = binary.LittleEndian.AppendUint32(b, uint32(rank))
	}
	return b
}

func appendReport(b []byte, r report) []byte {
	b = binary.LittleEndian.AppendUint32(b, r.rank)
	b = binary.LittleEndian.AppendUint64(b, r.done)
	return binary.LittleEndian.AppendUint64(b, r.blocks)
}

// decodeControl decodes a control message into m, whose list of reports is used again.
func decodeControl(b []byte, m *controlMessage) error {
	if len(b) < controlHeader || len(b) > maxControl || b[0] != controlVersion {
		return fmt.Errorf("%w: control message of %d bytes", ErrCorrupt, len(b))
	}
	flags := b[1]
	if flags&^flagsKnown != 0 {
		return fmt.Errorf("%w: control message with flags %#x", ErrCorrupt, flags)
	}
	*m = controlMessage{
		epoch:    binary.LittleEndian.Uint32(b[4:]),
		granted:  binary.LittleEndian.Uint64(b[8:]),
		received: binary.LittleEndian.Uint64(b[16:]),
		last:     binary.LittleEndian.Uint64(b[24:]),
		active:   flags&flagActive != 0,
		closed:   flags&flagClosed != 0,
		reports:  m.reports[:0],
	}
	b = b[controlHeader:]
	if flags&flagSmall != 0 {
		if len(b) < 8 {
			return fmt.Errorf("%w: truncated credit for small messages", ErrCorrupt)
		}
		m.small, m.smallGranted, b = true, binary.LittleEndian.Uint64(b), b[8:]
	}
	if flags&flagFailed != 0 {
		var err error
		if m.failure, b, err = decodeFailure(b); err != nil {
			return err
		}
	}
	if len(b)%reportSize != 0 {
		return fmt.Errorf("%w: reports of %d bytes", ErrCorrupt, len(b))
	}
	for ; len(b) > 0; b = b[reportSize:] {
		m.reports = append(m.reports, report{
			rank:   binary.LittleEndian.Uint32(b),
			done:   binary.LittleEndian.Uint64(b[4:]),
			blocks: binary.LittleEndian.Uint64(b[12:]),
		})
	}
	return nil
}

func decodeFailure(b []byte) (*failure, []byte, error) {
	if len(b) < failureHeader {
		return nil, nil, fmt.Errorf("%w: truncated failure", ErrCorrupt)
	}
	count := int(binary.LittleEndian.Uint16(b[2:]))
	f := &failure{reason: Reason(b[0]), reporter: int(binary.LittleEndian.Uint32(b[4:]))}
	b = b[failureHeader:]
	if count > maxSuspects || len(b) < 4*count {
		return nil, nil, fmt.Errorf("%w: failure with %d suspects", ErrCorrupt, count)
	}
	for ; count > 0; count-- {
		f.suspects = append(f.suspects, int(binary.LittleEndian.Uint32(b)))
		b = b[4:]
	}
	return f, b, nil
}
