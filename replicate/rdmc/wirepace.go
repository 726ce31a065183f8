package rdmc

import (
	"encoding/binary"
	"fmt"
)

// figureElsewhere is the flag of a member whose link others used too.
const figureElsewhere = 1

// appendPaces appends what is told of paces.
func (m *controlMessage) appendPaces(b []byte) []byte {
	if m.paced {
		b = binary.LittleEndian.AppendUint32(b, m.pace.pace)
		b = append(b, m.pace.busy, m.pace.wait, 0, 0)
	}
	if len(m.figures) > 0 {
		b = append(b, byte(len(m.figures)), 0, 0, 0)
	}
	for i := range m.figures {
		b = m.figures[i].appendBinary(b)
	}
	return b
}

func (f *memberFigures) appendBinary(b []byte) []byte {
	var flags byte
	if f.elsewhere {
		flags = figureElsewhere
	}
	for _, v := range [...]uint32{f.rank, f.rate, f.pace, f.pulse} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return append(b, f.busy, f.wait, f.peers, flags)
}

// decodePaces decodes what is told of paces, and returns what is behind it.
func (m *controlMessage) decodePaces(b []byte, flags byte) ([]byte, error) {
	if flags&flagPaced != 0 {
		if len(b) < paceSize {
			return nil, fmt.Errorf("%w: truncated pace", ErrCorrupt)
		}
		m.paced, m.pace, b = true, laneFigures{pace: binary.LittleEndian.Uint32(b), busy: b[4], wait: b[5]}, b[paceSize:]
	}
	if flags&flagFigures == 0 {
		return b, nil
	}
	if len(b) < 4 {
		return nil, fmt.Errorf("%w: truncated figures", ErrCorrupt)
	}
	n := int(b[0])
	b = b[4:]
	if n == 0 || n > maxFigures || len(b) < n*figuresSize {
		return nil, fmt.Errorf("%w: %d figures in %d bytes", ErrCorrupt, n, len(b))
	}
	for ; n > 0; n-- {
		m.figures = append(m.figures, decodeFigures(b))
		b = b[figuresSize:]
	}
	return b, nil
}

func decodeFigures(b []byte) memberFigures {
	u32 := binary.LittleEndian.Uint32
	return memberFigures{u32(b), figures{
		rate: u32(b[4:]), pace: u32(b[8:]), pulse: u32(b[12:]),
		busy: b[16], wait: b[17], peers: b[18], elsewhere: b[19]&figureElsewhere != 0,
	}}
}
