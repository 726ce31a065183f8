package control

import (
	"errors"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

// Bounds of the protocol.
const (
	// MaxPayload is the most bytes that a call or its reply can carry.
	MaxPayload = 4 << 20

	headerBytes     = 24
	textBytesMax    = 4 << 10
	helloBytes      = 20
	helloBytesMax   = 1 << 10
	protocolVersion = 1
)

// errFrame is a frame that no correct peer sends.
var errFrame = errors.New("malformed frame")

type frameType uint8

// Types 4, 7, 8 and 9 were those of streams of answers, which nothing used. They are not given another meaning.
const (
	frameHello   frameType = 1
	frameGoodbye frameType = 2
	frameCall    frameType = 3
	frameReply   frameType = 5
	frameError   frameType = 6
	frameCancel  frameType = 10
)

// header is the fixed part of a frame.
type header struct {
	length    uint32
	kind      frameType
	id        uint64
	argument  uint32
	timeoutMS uint32
}

// payloadMax is how long the payload of a frame of each type may be.
func payloadMax(t frameType) (uint32, bool) {
	switch t {
	case frameHello:
		return helloBytesMax, true
	case frameGoodbye, frameError:
		return textBytesMax, true
	case frameCall, frameReply:
		return MaxPayload, true
	case frameCancel:
		return 0, true
	}
	return 0, false
}

func (h *header) code(c *coder.Coder) {
	c.U32(&h.length)
	c.U8((*uint8)(&h.kind))
	c.Zeros(3)
	c.U64(&h.id)
	c.U32(&h.argument)
	c.U32(&h.timeoutMS)
}

func appendHeader(b []byte, h header) []byte {
	c := coder.Writer(b, coder.Big)
	h.code(&c)
	return c.Written()
}

// decodeHeader reads a header and checks all that can be checked without knowing the connection.
func decodeHeader(b []byte) (h header, err error) {
	c := coder.Reader(b, coder.Big)
	h.code(&c)
	limit, known := payloadMax(h.kind)
	greets := h.kind == frameHello || h.kind == frameGoodbye
	switch {
	case !c.OK():
		return header{}, fmt.Errorf("%w: header: %w", errFrame, c.Err())
	case !known:
		return header{}, fmt.Errorf("%w: type %d", errFrame, h.kind)
	case h.length > limit:
		return header{}, fmt.Errorf("%w: %d bytes in a frame of type %d, at most %d allowed", errFrame, h.length, h.kind,
			limit)
	case greets != (h.id == 0):
		return header{}, fmt.Errorf("%w: type %d with id %d", errFrame, h.kind, h.id)
	case h.timeoutMS != 0 && h.kind != frameCall:
		return header{}, fmt.Errorf("%w: type %d with a timeout", errFrame, h.kind)
	}
	return h, nil
}

// hello is the first frame of each side.
type hello struct {
	version    uint32
	generation uint32 // of the cluster; 0 = does not know yet
	format     format.End
}

// saying is the hello of one end.
func saying(generation uint32, end format.End) hello {
	return hello{version: protocolVersion, generation: generation, format: end}
}

// code lists the fields. One that did not say its formats knows the first one.
func (m *hello) code(c *coder.Coder) {
	c.U32(&m.version)
	c.U32(&m.generation)
	if c.Reading() && c.Left() == 0 {
		return
	}
	for _, p := range []*uint64{&m.format.Used, &m.format.Known.Oldest, &m.format.Known.Newest} {
		number := uint32(*p)
		c.U32(&number)
		*p = uint64(number)
	}
}

func appendHello(b []byte, m hello) []byte {
	c := coder.Writer(appendHeader(b, header{length: helloBytes, kind: frameHello}), coder.Big)
	m.code(&c)
	return c.Written()
}

// decodeHello reads the payload of a hello. Bytes after those known are for later versions and are ignored.
func decodeHello(b []byte) (m hello, err error) {
	c := coder.Reader(b, coder.Big)
	if m.code(&c); !c.OK() {
		return hello{}, fmt.Errorf("%w: hello: %w", errFrame, c.Err())
	}
	if m.version == 0 {
		return hello{}, fmt.Errorf("%w: version 0", errFrame)
	}
	return m, nil
}
