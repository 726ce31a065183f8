package tcp

import (
	"encoding/binary"

	"github.com/minio/crc64nvme"

	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// crcBytes is the room of a checksum at the end of a sealed message.
const crcBytes = 8

// seal is a message that is summed up piece by piece while it is sent, so that the socket copies each piece from the
// processor's cache, and that carries its sum at its end.
type seal struct {
	on     bool
	begun  bool
	crc    uint64
	pieces []soft.Piece // not begun; they belong to the send slot
	mem    []byte       // what is left of the piece before them
}

// newSeal begins with the first byte. The last piece has room for the sum at its end.
func newSeal(pieces []soft.Piece) seal { return seal{on: true, pieces: pieces} }

// next appends at most sumBytes of the message, summed up, to runs, and with the last ones the sum.
func (s *seal) next(runs [][]byte) [][]byte {
	s.begun = true
	for room := sumBytes; room > 0; {
		if len(s.mem) == 0 && len(s.pieces) > 0 {
			s.mem, s.pieces = s.pieces[0].Mem, s.pieces[1:]
			continue
		}
		n := len(s.mem)
		if len(s.pieces) == 0 {
			n -= crcBytes
		}
		n = min(n, room)
		if n > 0 {
			s.crc = crc64nvme.Update(s.crc, s.mem[:n])
			runs = append(runs, s.mem[:n])
			s.mem = s.mem[n:]
			room -= n
		}
		if len(s.pieces) == 0 && len(s.mem) == crcBytes {
			binary.LittleEndian.PutUint64(s.mem, s.crc)
			s.on = false
			return append(runs, s.mem)
		}
	}
	return runs
}
