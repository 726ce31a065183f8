package control

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

const (
	inboxBufferBytes = 32 << 10
	// readBytes of a frame that has begun have to come within frameTimeout. A frame that takes long over a slow link is
	// read as long as it moves.
	readBytes = 32 << 10
	// bulkBytes is how long a payload must be for its bytes to count as progress.
	bulkBytes = 4 << 10
)

// inbox reads frames from a connection. It waits for a frame to begin without limit, for each readBytes of its rest
// only until frameTimeout.
type inbox struct {
	conn         net.Conn
	buf          *bufio.Reader
	frameTimeout time.Duration
	limited      bool         // a read deadline is set
	came         atomic.Int64 // bytes of long payloads
}

func newInbox(conn net.Conn, frameTimeout time.Duration) *inbox {
	return &inbox{conn: conn, buf: bufio.NewReaderSize(conn, inboxBufferBytes), frameTimeout: frameTimeout}
}

// header reads the next header. The payload must be taken or skipped before the next call.
func (in *inbox) header() (header, error) {
	if err := in.unlimit(); err != nil {
		return header{}, err
	}
	if _, err := in.buf.Peek(1); err != nil {
		return header{}, err
	}
	if err := in.limit(headerBytes); err != nil {
		return header{}, err
	}
	raw, err := in.buf.Peek(headerBytes)
	if err != nil {
		return header{}, noEOF(err)
	}
	h, err := decodeHeader(raw)
	if err != nil {
		return header{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	in.buf.Discard(headerBytes)
	return h, nil
}

// payload reads the payload of h into new memory that the caller owns.
func (in *inbox) payload(h header) ([]byte, error) {
	if h.length == 0 {
		return nil, nil
	}
	b := make([]byte, h.length)
	for part := range slices.Chunk(b, readBytes) {
		if err := in.limit(len(part)); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(in.buf, part); err != nil {
			return nil, noEOF(err)
		}
		if h.length >= bulkBytes {
			in.came.Add(int64(len(part)))
		}
	}
	return b, nil
}

// skip drops the payload of h.
func (in *inbox) skip(h header) error {
	for left := int(h.length); left > 0; left -= readBytes {
		n := min(left, readBytes)
		if err := in.limit(n); err != nil {
			return err
		}
		if _, err := in.buf.Discard(n); err != nil {
			return noEOF(err)
		}
	}
	return nil
}

// limit bounds the reads that follow, unless n bytes are here already.
func (in *inbox) limit(n int) error {
	if in.buf.Buffered() >= n {
		return nil
	}
	in.limited = true
	return in.conn.SetReadDeadline(time.Now().Add(in.frameTimeout))
}

func (in *inbox) unlimit() error {
	if !in.limited || in.buf.Buffered() > 0 {
		return nil
	}
	in.limited = false
	return in.conn.SetReadDeadline(time.Time{})
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
